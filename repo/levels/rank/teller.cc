// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/teller.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::levels {
namespace {

/// Numbers that are promised ahead, so that begin() does not wait for the folder.
constexpr VersionNumber kNumbersAhead = 16;
/// After a folder's refusal to promise more.
constexpr Duration kPromiseAgain = std::chrono::milliseconds(200);

}  // namespace

void Teller::join() {
  if (thread_.joinable()) thread_.join();
}

void Teller::stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

Status Teller::begin_life(Promises promises) {
  promises.number_max += kNumbersAhead;
  FRESHET_TRY(job_.folders->write_promises(promises));
  const MutexLock lock(mutex_);
  promises_ = std::move(promises);
  return {};
}

bool Teller::has_answer(VersionNumber number) const {
  const MutexLock lock(mutex_);
  return number <= promises_.number_max || promise_error_;
}

Status Teller::check_promised(VersionNumber number) const {
  const MutexLock lock(mutex_);
  if (number <= promises_.number_max) return {};
  return fail(Code::out_of_space,
              format("the folder does not take the record of the versions' numbers: this step has no checkpoint{}{}",
                     promise_error_ ? ": " : "", promise_error_ ? promise_error_->message() : ""));
}

void Teller::use(VersionNumber number) {
  const MutexLock lock(mutex_);
  used_ = number;
  changed_.notify_all();
}

void Teller::end_life(VersionNumber number_max) {
  Promises promises;
  {
    const MutexLock lock(mutex_);
    finished_ = true;
    promises_.number_max = number_max;
    promises = promises_;
  }
  if (const Status written = job_.folders->write_promises(promises); !written) job_.warn(written.error().message());
}

void Teller::tell(const LevelNote& note) {
  const MutexLock lock(mutex_);
  to_tell_.push_back({.note = note, .lost = {}, .error = {}, .at = system_clock().now()});
  changed_.notify_all();
}

void Teller::tell_lost(const std::vector<std::uint32_t>& lost, const Error& why) {
  const MutexLock lock(mutex_);
  to_tell_.push_back({.note = {}, .lost = lost, .error = why, .at = system_clock().now()});
  changed_.notify_all();
}

bool Teller::has_told_all() const {
  const MutexLock lock(mutex_);
  return to_tell_.empty();
}

bool Teller::is_short() const { return !finished_ && used_ != 0 && used_ + kNumbersAhead / 2 > promises_.number_max; }

void Teller::run() {
  for (;;) {
    std::optional<Told> told;
    bool extend = false;
    {
      const MutexLock lock(mutex_);
      // What was said before the job's end is still told.
      while (!stopping_ && to_tell_.empty() && !is_short()) changed_.wait(mutex_);
      if (stopping_) return;
      extend = is_short();
      if (!to_tell_.empty()) told = to_tell_.front();
    }
    if (extend) promise_more();
    if (!told) continue;
    carry_out(*told);
    {
      const MutexLock lock(mutex_);
      to_tell_.pop_front();
    }
    book_.wake();
  }
}

void Teller::promise_more() {
  Promises promises;
  {
    const MutexLock lock(mutex_);
    promises = promises_;
    promises.number_max = used_ + kNumbersAhead;
  }
  const Status written = job_.folders->write_promises(promises);
  {
    const MutexLock lock(mutex_);
    promise_error_.reset();
    if (written) promises_.number_max = promises.number_max;
    if (!written) promise_error_ = written.error();
  }
  book_.wake();
  if (written) return;
  job_.warn(written.error().message());
  // Numbers that are left are used up first; then begin() says so. Not tried again at once.
  const MutexLock lock(mutex_);
  if (!stopping_) changed_.wait_until(mutex_, system_clock().now() + kPromiseAgain);
}

void Teller::acknowledge(const LevelNote& note) {
  Promises promises;
  {
    const MutexLock lock(mutex_);
    promises = promises_;
  }
  VersionNumber& newest = promises.acknowledged[static_cast<std::size_t>(note.level)];
  newest = std::max(newest, note.version);
  const Status written = job_.folders->write_promises(promises);
  // The version is safe there all the same; only that it should be missed is not recorded.
  if (!written) return job_.warn(written.error().message());
  const MutexLock lock(mutex_);
  promises_.acknowledged = promises.acknowledged;
}

/// A disk that is full fails version after version: one line tells of it.
void Teller::log_failure(const LevelNote& note) {
  if (!failing_.insert(note.level).second) return;
  const std::string_view level = name_of(note.level);
  job_.warn(
      format("version {} (step {}) did not reach {}: {}; the job goes on, and the log does not tell of {} again before "
             "a version reaches it",
             note.version, note.step, level, note.error->message(), level));
}

void Teller::carry_out(const Told& told) {
  CheckpointEvent event;
  const auto report = [&] {
    if (job_.options.on_event) job_.options.on_event(event);
  };
  if (!told.note) {
    event.kind = CheckpointEvent::Kind::lost;
    event.peers = told.lost;
    event.error = told.error;
    return report();
  }
  const LevelNote& note = *told.note;
  const bool reached = note.kind == LevelNote::Kind::reached;
  if (reached && note.level != Level::memory) {
    if (note.level == Level::external && job_.options.rank != 0) job_.point("external_synced", note.step);
    acknowledge(note);
  }
  const auto untold = book_.untold(note.version, note.level);
  if (!untold) return;
  event.kind = reached ? CheckpointEvent::Kind::reached : CheckpointEvent::Kind::failed;
  event.version = note.version;
  event.step = note.step;
  event.level = note.level;
  event.after = told.at - untold->captured_at;
  event.error = note.error;
  report();
  if (reached) failing_.erase(note.level);
  // At memory, a call or the log told of it. A level that is behind passes versions over, as the job said.
  const bool is_news = note.level != Level::memory && !untold->has_failed;
  if (is_news && note.error && note.error->code() != Code::cancelled) log_failure(note);
  const bool is_in_folder = note.level == Level::local || note.level == Level::group;
  if (reached && is_in_folder) kept_.keep(note.level, note.version);
  book_.mark(note);
  if (reached && is_in_folder) kept_.clean(note.step, false);
  // A shard that another rank lacks is of no use. Shards of earlier lives are removed only after a newer version is
  // complete at all ranks.
  if (!reached && note.level == Level::local && untold->was_written) kept_.clean(note.step, true);
}

}  // namespace freshet::levels
