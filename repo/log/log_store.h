// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A member of a repository's log, with threads, a clock and a store: the shell around a LogMachine. It has what a
/// Backend needs for its records: batches that are applied whole, values by key, scans. Objects' bytes do not go
/// through it: whoever wants them asks the object store for the places of a value.
///
/// Any thread. Each call ends by its deadline, or a little later; or with cancelled, when the thread's Interruption
/// (core/base/interruption.h) wants it.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/log/log_machine.h"

namespace freshet::log {

/// Does a call at a store, and waits for its answer: until `call.within` is over, or a little longer. Any thread.
class StoreCaller {
 public:
  virtual ~StoreCaller() = default;
  virtual Answer run(const Call& call) = 0;
  /// Calls under way end early, and later ones at once, with `failed` or `unsettled`.
  virtual void stop() {}
};

class LogStore {
 public:
  struct Options {
    /// `self.id` and `first_token` are drawn here.
    LogOptions log;
    /// To the first sight of the log's end.
    Duration open_within = std::chrono::seconds(30);
    /// An orderly end waits so long for the store.
    Duration close_within = std::chrono::seconds(3);
  };

  /// Follows the log. A log without a record is none: is_empty(). Errors: those of the store's calls; corrupt,
  /// unsupported.
  static Result<std::unique_ptr<LogStore>> open(std::shared_ptr<StoreCaller> store, Options options);
  /// An owner gives the log up.
  ~LogStore();
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  /// Owns the log from here on, or fails. The first owner of an empty log makes it. unavailable: another process owns
  /// it, and lives; the message has its address. timed_out: not settled by the deadline; the claim goes on.
  /// failed_precondition: the store lets this process write no records; the claim goes on.
  Status claim(Time deadline) FRESHET_EXCLUDES(mutex_);
  Role role() const FRESHET_EXCLUDES(mutex_);
  /// The owner, as far as this member knows.
  std::optional<LogMember> owner() const FRESHET_EXCLUDES(mutex_);
  bool is_empty() const FRESHET_EXCLUDES(mutex_);

  /// Durable on return. LogMachine::append() has the errors; besides:
  ///   failed_precondition: the batch names an object whose token has ended, or that is condemned.
  ///   unavailable: not applied, and never will be: another process owns the log, or the store refused.
  ///   timed_out: the batch may be applied, or may be applied later. settle() tells when this is known.
  Status apply(Batch batch, Time deadline) FRESHET_EXCLUDES(mutex_);
  /// Waits until no record is in flight, and this owner may answer. get() then shows whether a batch was applied.
  /// unavailable: another process owns the log. timed_out.
  Status settle(Time deadline) FRESHET_EXCLUDES(mutex_);

  /// Not found: none. An owner answers only while no other process can own the log; otherwise unavailable, also after
  /// it was replaced. Members that never owned it answer from the last record that they read: look() first.
  Result<std::optional<Value>> get(std::string_view key) const FRESHET_EXCLUDES(mutex_);
  /// Whether get() would answer at this moment. A caller that keeps names from here asks this before it answers with
  /// them.
  Status check_current() const FRESHET_EXCLUDES(mutex_);
  /// corrupt or unsupported: this member can go on no more.
  std::optional<Error> error() const FRESHET_EXCLUDES(mutex_);
  /// Calls `each` in the order of the keys' bytes until it returns false. `each` may call this object. Errors as get().
  Status scan(std::string_view prefix, const std::function<bool(std::string_view key, const Value& value)>& each) const
      FRESHET_EXCLUDES(mutex_);
  /// Reads to the log's end, as it is at this moment or later.
  Status look(Time deadline) FRESHET_EXCLUDES(mutex_);

  /// A name for one upload by this owner. Draw another one for each try. failed_precondition: it does not own the log.
  Result<ObjectName> draw_object() FRESHET_EXCLUDES(mutex_);
  /// Names of one drawing: their keys differ in the last kDrawnDigits digits, so one listing has them all. At most
  /// kDrawnMax.
  static constexpr std::size_t kDrawnDigits = 4;
  static constexpr std::size_t kDrawnMax = std::size_t{1} << (4 * kDrawnDigits);
  Result<std::vector<ObjectName>> draw_objects(std::size_t count) FRESHET_EXCLUDES(mutex_);
  /// Whether a batch may name the object now: its token lives, and it is not condemned.
  bool may_name(const ObjectName& object) const FRESHET_EXCLUDES(mutex_);
  /// Condemns uploaded objects that nobody can name any more; the grace follows. Waits until all are looked through, or
  /// until the deadline: then it goes on behind. failed_precondition: this member does not own the log.
  Status sweep(Time deadline) FRESHET_EXCLUDES(mutex_);

 private:
  LogStore(std::shared_ptr<StoreCaller> store, Options options);

  void start_threads();
  void work(bool urgent_only) FRESHET_EXCLUDES(mutex_);
  void tick() FRESHET_EXCLUDES(mutex_);
  void pump() FRESHET_REQUIRES(mutex_);
  bool take_call(bool urgent_only, Call& call) FRESHET_REQUIRES(mutex_);
  Status may_read() const FRESHET_REQUIRES(mutex_);
  /// unavailable: it owned the log, and another process took it over.
  Status check_not_replaced() const FRESHET_REQUIRES(mutex_);
  /// Waits for a change of the machine; the mutex is free meanwhile. False: the deadline is over. cancelled: this
  /// thread's Interruption wants it.
  Result<bool> wait(Time deadline) FRESHET_REQUIRES(mutex_);

  const std::shared_ptr<StoreCaller> store_;
  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;       ///< Something of the machine.
  CondVar to_do_;         ///< For workers.
  CondVar urgent_to_do_;  ///< For those that are for records only.
  CondVar closed_;        ///< For the ticker.
  LogMachine machine_ FRESHET_GUARDED_BY(mutex_);
  std::deque<Call> urgent_ FRESHET_GUARDED_BY(mutex_);  ///< For records of the log.
  std::deque<Call> other_ FRESHET_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::optional<BatchEnd>> batches_ FRESHET_GUARDED_BY(mutex_);  ///< Somebody waits for them.
  bool closing_ FRESHET_GUARDED_BY(mutex_) = false;
  bool has_owned_ FRESHET_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace freshet::log
