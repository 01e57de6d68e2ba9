// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A member of a repository's log in an object store, as a value: it is told the time and what came of its calls, and
/// returns calls. It does no I/O, reads no clock and starts no thread. repo/log/PROTOCOL.md has the rules and reasons.
///
/// Each member follows the log. A member that is told to claim() it challenges the owner, and owns the log if the owner
/// does not answer. An owner appends batches: all of a batch is applied or nothing, and batches that wait together
/// share one record. An owner that another member replaced follows again.
///
/// `now` is the host's CLOCK_BOOTTIME, which goes on while the host is suspended, and never goes back. The shell calls
/// on_tick() at least each 100 ms, fetches take_calls() and take_ends() after each call, and brings an answer for each
/// call (repo/log/store_calls.h).
///
/// One thread at a time.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "repo/log/appender.h"
#include "repo/log/log_keeper.h"
#include "repo/log/log_options.h"
#include "repo/log/log_state.h"
#include "repo/log/log_tail.h"
#include "repo/log/store_calls.h"

namespace freshet::log {

enum class Role : std::uint8_t {
  follows,  ///< A reader, or a standby.
  claims,   ///< It challenges the owner, or waits for the answer.
  owns,
  ending,  ///< The owner's end is on its way.
};

/// The outcome of a batch.
struct BatchEnd {
  enum class Outcome : std::uint8_t {
    applied,
    not_applied,  ///< And never will be.
    unknown,      ///< It may be applied, or may be applied later: the log tells.
  };
  std::uint64_t batch = 0;
  Outcome outcome = Outcome::unknown;
  Error error = Error(Code::unavailable, "");  ///< Unless applied: why.
};

class LogMachine {
 public:
  LogMachine(LogOptions options, Time now);
  LogMachine(const LogMachine&) = delete;
  LogMachine& operator=(const LogMachine&) = delete;

  void on_tick(Time now);
  void on_answer(Ticket ticket, Answer answer, Time now);
  std::vector<Call> take_calls() { return calls_.take(); }
  std::vector<BatchEnd> take_ends() { return std::exchange(ends_, {}); }

  /// Wants to own the log. claim_error() tells if it came to nothing; role() if it came to something. No effect unless
  /// the member follows.
  void claim(Time now);
  /// unavailable: a living owner, with its address.
  const std::optional<Error>& claim_error() const { return claim_error_; }
  /// Gives the log up, after the batches that wait. From now on no more are taken, and names are not answered. A claim
  /// ends.
  void give_up(Time now);

  /// The number by which the batch's end is told. Errors, after which it is not applied:
  ///   failed_precondition: this member does not own the log.
  ///   invalid_argument, out_of_space: see check_batch_size().
  ///   unavailable: too much waits already.
  Result<std::uint64_t> append(Batch batch, Time now);
  /// Whether state() may be told as the present one, at this moment: this member owns the log, and no other one can.
  bool may_answer(Time now) const;
  /// The owner looks through all uploaded objects once, and condemns those that nobody can name any more.
  void sweep() { keeper_.sweep(); }
  bool is_sweeping() const { return keeper_.is_sweeping(); }
  /// An upload token for the owner's own objects. The owner draws a new one when half of its life is over, so an object
  /// has the other half to be named.
  LogId own_token() const;

  Role role() const { return role_; }
  /// No batch waits or is in flight.
  bool is_settled() const { return !appender_.is_busy() && waiting_.empty(); }
  /// At the last record that this member read. An owner's state has all its applied batches.
  const LogState& state() const { return tail_.state(); }
  /// True once the member has seen the end of the log. Position 0 then means that there is no log.
  bool has_seen_end() const { return has_seen_end_; }
  /// When the last look began that found nothing after state().
  const std::optional<Time>& end_seen() const { return tail_.end_seen(); }
  /// Looks at once. end_seen() tells when it is over.
  void look(Time now) { tail_.look(now, look_every()); }
  /// Why the store does not answer as it should; none if it does.
  const std::optional<Error>& trouble() const {
    return appender_.is_busy() && appender_.trouble() ? appender_.trouble() : tail_.trouble();
  }
  /// The store refused every try of the record in flight, so it stands nowhere. Null: not so.
  const Error* refusal() const {
    return appender_.is_busy() && appender_.can_be_given_up() && appender_.trouble() ? &*appender_.trouble() : nullptr;
  }
  /// corrupt or unsupported: this member can go on no more.
  const std::optional<Error>& error() const { return tail_.error(); }

 private:
  enum class Claim : std::uint8_t { looks, challenges, waits, takes };
  enum class From : std::uint8_t { caller, keeper, renewal };
  struct Waiting {
    std::uint64_t number = 0;  ///< Of a caller's.
    From from = From::caller;
    Batch batch;
    std::size_t bytes = 0;
    Time deadline;
    bool is_told = false;  ///< Its end is told already.
  };

  Duration look_every() const;
  void on_seen(const std::vector<Seen>& seen, Time now);
  void on_stands(bool counts_as_look, bool is_emptied, Time now);
  void on_displaced();
  void update(Time now);
  void update_claim(Time now);
  void begin_record(RecordKind kind, Time now);
  void end_claim(Error error);
  void on_owned(Time now);
  void queue_own_batches(Time now);
  void on_lost();
  void compose(Time now);
  void end_late_batches(Time now);
  void tell(Waiting& waiting, BatchEnd::Outcome outcome, Error error);
  std::string owner_text() const;

  const LogOptions options_;
  CallBook calls_;
  LogTail tail_;
  Appender appender_;
  LogKeeper keeper_;

  Role role_ = Role::follows;
  bool has_seen_end_ = false;
  std::uint64_t sequence_ = 0;
  std::optional<Time> look_counted_;  ///< The start of the last look that counts for answers.

  Claim claim_ = Claim::looks;
  Time claim_begun_{};
  Time challenge_stands_{};
  std::optional<Error> claim_error_;
  bool gives_up_ = false;

  std::uint64_t own_tokens_ = 0;  ///< That were used before the present one.
  Time renewal_due_{};
  bool renewal_waits_ = false;

  std::uint64_t last_batch_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::deque<Waiting> waiting_;
  std::deque<Waiting> in_flight_;  ///< Of the appender's record, in its order.
  std::vector<BatchEnd> ends_;
};

}  // namespace freshet::log
