// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Follows a log: starts from the newest snapshot, reads one record after the other, and looks for more. Where a record
/// is emptied, the tail starts anew from the newest snapshot. A listing is only a hint: the end of the log is where a
/// record is missing, and a snapshot that an emptied record names is asked for by its name.
///
/// One thread at a time; belongs to a LogMachine.

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "repo/log/log_options.h"
#include "repo/log/log_state.h"
#include "repo/log/snapshot.h"
#include "repo/log/store_calls.h"

namespace freshet::log {

/// Of a record that the tail met.
struct Seen {
  std::uint64_t number = 0;
  LogId writer;
  std::uint64_t sequence = 0;
  RecordKind kind = RecordKind::batches;
  bool emptied = false;
};

class LogTail {
 public:
  LogTail(const LogOptions& options, CallBook& calls) : options_(options), calls_(calls) {}

  /// Sends what is due.
  void on_tick(Time now);
  /// Looks at once, by a call that begins now, and from here on `every` after each look.
  void look(Time now, Duration every);
  void set_pause(Duration every) { every_ = every; }
  /// False: the ticket is of another machine. `seen` gets the records that it read.
  bool on_answer(Ticket ticket, Answer& answer, Time now, std::vector<Seen>& seen);
  /// The caller made the next record.
  Status apply_own(const Record& record);

  const LogState& state() const { return state_; }
  LogState& state() { return state_; }
  /// The state is not the log's at any position that matters: it is being read anew.
  bool is_restarting() const { return phase_ != Phase::looks; }
  /// When the last look began that found no further record, and when it ended.
  const std::optional<Time>& end_seen() const { return end_seen_; }
  const std::optional<Time>& end_answered() const { return end_answered_; }
  /// Why the last call failed; none after one that did not.
  const std::optional<Error>& trouble() const { return trouble_; }
  /// The log is damaged, or of another format. The tail has stopped.
  const std::optional<Error>& error() const { return error_; }
  Time next_tick() const { return due_; }

 private:
  enum class Phase : std::uint8_t { listing, head, parts, looks };
  struct Asked {
    std::uint64_t number = 0;  ///< Of a record or a part.
    Time start;
  };

  void restart(std::uint64_t snapshot, Time now);
  void retry_restart(Time now, std::string_view why);
  void ask(Time now);
  void forget_asked();
  void ask_records(Time now);
  void ask_briefly(Time now);
  /// True: a short read's answer is as good as the long read's, which is forgotten.
  bool takes_brief(const Asked& asked, const Answer& answer, Time now);
  void ask_parts(Time now);
  void on_listing(const Answer& answer, Time now);
  void on_head(const Answer& answer, Time now);
  void on_part(std::uint64_t part, Answer& answer, Time now);
  void load(Time now);
  void read_on(Time now, std::vector<Seen>& seen);
  bool read_one(const Answer& answer, Time now, std::vector<Seen>& seen);
  void stop(Error error) { error_ = std::move(error); }

  const LogOptions& options_;
  CallBook& calls_;
  Phase phase_ = Phase::listing;
  LogState state_;
  Time due_{};
  Duration every_ = std::chrono::seconds(1);
  std::map<Ticket, Asked> asked_;

  // Records that came before an earlier one.
  struct Arrived {
    Answer answer;
    Time start;
  };
  std::map<std::uint64_t, Arrived> arrived_;
  std::uint64_t window_ = 1;  ///< Records asked for at a time; grows while there are more.
  std::uint64_t asked_to_ = 0;
  Duration record_call_ = std::chrono::milliseconds(1500);  ///< A read of a record may take so long.
  std::optional<std::pair<Ticket, Asked>> brief_;           ///< A short read beside a long one.
  Time brief_due_{};
  std::uint64_t large_ = 0;  ///< The last record that a short read found too large for it.

  // Of a start from a snapshot.
  std::uint64_t snapshot_ = 0;
  int misses_ = 0;
  SnapshotHead head_;
  std::vector<std::optional<std::string>> parts_;
  std::size_t parts_asked_ = 0;

  std::optional<Time> end_seen_;
  std::optional<Time> end_answered_;
  std::optional<Error> trouble_;
  std::optional<Error> error_;
};

}  // namespace freshet::log
