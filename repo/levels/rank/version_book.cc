// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/version_book.h"

#include <algorithm>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet::levels {
namespace {

constexpr std::size_t kSharesAtStart = 3;  ///< A fourth comes where peers are slow to say that they captured.
/// Shares that may be in memory at a time: one that is captured, one that waits, one that is written, one that is kept.
constexpr std::size_t kSharesMax = 4;
/// Small shares are captured faster than ranks speak with each other: of those there may be more.
constexpr std::uint64_t kSmallSharesBytes = std::uint64_t{64} << 20;
constexpr std::size_t kSmallSharesMax = 16;
/// So long a loop that does not wait for levels waits for a peer to say that it captured the versions before.
constexpr Duration kPeerPause = std::chrono::seconds(1);
/// A deadline, since a condition variable takes no Time::max().
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr std::size_t kVersionsKnown = 4096;  ///< For poll() and wait().

}  // namespace

Status VersionBook::allocate() {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < kSharesAtStart; ++i) {
    FRESHET_ASSIGN(ShareMemory memory, ShareMemory::allocate(job_.cut->offsets.back()));
    shares_.push_back(std::make_shared<Share>(std::move(memory)));
  }
  return {};
}

Status VersionBook::begin(VersionNumber number, std::uint64_t step, Time began) {
  const MutexLock lock(mutex_);
  if (is_over()) return fail(why_over());
  Entry& entry = versions_[number];
  entry.step = step;
  entry.captured_at = began;
  for (const Level level : job_.levels) entry.levels[level] = State::open;
  while (versions_.size() > kVersionsKnown && !is_open(versions_.begin()->second)) {
    if (versions_.begin()->second.share != nullptr) break;
    versions_.erase(versions_.begin());
  }
  return {};
}

bool VersionBook::wait_in_loop(const std::function<bool()>& is_there, std::optional<Error>& why) {
  const bool waits = job_.options.when_behind == WhenBehind::wait;
  const Time deadline = waits ? Time::max() : system_clock().now() + kPeerPause;
  for (;;) {
    const Time look = std::min(deadline, Interruption::next_look(system_clock().now() + kLookAgain));
    {
      const MutexLock lock(mutex_);
      do {
        if (is_over()) {
          why = why_over();
          return false;
        }
        if (is_there()) return true;
      } while (changed_.wait_until(mutex_, look));
      if (is_there()) return true;
    }
    if (Interruption::is_wanted()) {
      why = Error(Code::cancelled, "the wait for the levels was interrupted");
      return false;
    }
    if (look == deadline) return false;
  }
}

std::shared_ptr<Share> VersionBook::free_share(std::optional<Error>& why) {
  std::shared_ptr<Share> free;
  const auto take = [&]() FRESHET_REQUIRES(mutex_) {
    if (!may_take_share()) return false;
    const auto at = std::ranges::find(shares_, 0, [](const auto& share) { return share->users; });
    if (at == shares_.end()) return shares_.size() < shares_max();
    free = *at;
    free->users = 1;
    return true;
  };
  if (!wait_in_loop(take, why)) {
    if (!why) {
      why = Error(Code::out_of_space, "the levels are behind, and no memory is free: this step has no checkpoint");
    }
    return nullptr;
  }
  if (free != nullptr) return free;
  auto memory = ShareMemory::allocate(job_.cut->offsets.back());
  if (!memory) {
    why = memory.error();
    return nullptr;
  }
  auto share = std::make_shared<Share>(*std::move(memory));
  share->users = 1;
  const MutexLock lock(mutex_);
  shares_.push_back(share);
  return share;
}

void VersionBook::end_capture(const std::shared_ptr<Share>& share, bool is_whole) {
  const MutexLock lock(mutex_);
  const auto at = versions_.find(share->version.number);
  if (at != versions_.end()) at->second.captured_at = system_clock().now();
  if (at != versions_.end() && is_whole) {
    at->second.share = share;
  } else {
    --share->users;
  }
  changed_.notify_all();
}

Result<bool> VersionBook::poll(VersionNumber version, Level level) const {
  const MutexLock lock(mutex_);
  const auto at = versions_.find(version);
  if (at == versions_.end() || !at->second.levels.contains(level)) {
    return fail(Code::not_found,
                format("no version {} was begun here, or it has no level {}", version, name_of(level)));
  }
  const State state = at->second.levels.at(level);
  if (state == State::failed) return fail(*at->second.error);
  if (state == State::open && over_) return fail(*over_);
  return state == State::reached;
}

Status VersionBook::wait(VersionNumber version, Level level, Duration at_most, const std::stop_token& stop) const {
  const Time deadline = deadline_in(at_most);
  const StopWakes wakes(stop, mutex_, changed_);
  for (;;) {
    FRESHET_ASSIGN(const bool reached, poll(version, level));
    if (reached) return {};
    const MutexLock lock(mutex_);
    if (stop.stop_requested()) {
      return fail(Code::cancelled,
                  format("the wait for version {} at {} was stopped by its caller", version, name_of(level)));
    }
    if (over_ || versions_.at(version).levels.at(level) != State::open) continue;
    if (!changed_.wait_until(mutex_, deadline)) {
      return fail(Code::timed_out, format("version {} did not reach {} in time", version, name_of(level)));
    }
  }
}

Status VersionBook::settle(const std::function<bool()>& all_is_told, Duration at_most,
                           const std::stop_token& stop) const {
  const Time deadline = deadline_in(at_most);
  const StopWakes wakes(stop, mutex_, changed_);
  const MutexLock lock(mutex_);
  for (;;) {
    if (over_) return fail(*over_);
    const bool open = std::ranges::any_of(versions_, [&](const auto& entry) { return is_open(entry.second); });
    if (!open && all_is_told()) return {};
    if (stop.stop_requested()) return fail(Code::cancelled, "the wait for every level was stopped by its caller");
    if (!changed_.wait_until(mutex_, deadline)) return fail(Code::timed_out, "not every level ended in time");
  }
}

bool VersionBook::knows(VersionNumber number) const {
  const MutexLock lock(mutex_);
  return versions_.contains(number);
}

std::shared_ptr<const Share> VersionBook::borrow(const Version& version, bool to_write) {
  const MutexLock lock(mutex_);
  const auto at = versions_.find(version.number);
  if (at == versions_.end() || at->second.share == nullptr || at->second.share->version != version) return nullptr;
  if (to_write) at->second.was_written = true;
  const std::shared_ptr<Share>& share = at->second.share;
  ++share->users;
  return {share.get(), [this, share](const Share*) { give_back(*share); }};
}

void VersionBook::give_back(Share& share) {
  const MutexLock lock(mutex_);
  --share.users;
  changed_.notify_all();
}

std::vector<std::pair<Version, std::uint64_t>> VersionBook::in_memory() const {
  const MutexLock lock(mutex_);
  std::vector<std::pair<Version, std::uint64_t>> versions;
  for (const auto& [number, entry] : versions_) {
    if (entry.share != nullptr && entry.is_captured) versions.emplace_back(entry.share->version, entry.step);
  }
  return versions;
}

std::vector<VersionNumber> VersionBook::open_versions() const {
  const MutexLock lock(mutex_);
  std::vector<VersionNumber> open;
  for (const auto& [number, entry] : versions_) {
    if (is_open(entry)) open.push_back(number);
  }
  return open;
}

void VersionBook::take_note(const LevelNote& note) {
  const MutexLock lock(mutex_);
  const auto at = versions_.find(note.version);
  if (at == versions_.end() || note.level > Level::local) return;
  if (note.level == Level::local) at->second.needs_share = false;
  if (note.level == Level::memory) {
    at->second.is_captured = note.kind == LevelNote::Kind::reached;
    at->second.needs_share = at->second.is_captured;
  }
  let_go_of_shares();
  changed_.notify_all();
}

std::optional<VersionBook::Untold> VersionBook::untold(VersionNumber number, Level level) const {
  const MutexLock lock(mutex_);
  const auto at = versions_.find(number);
  if (at == versions_.end()) return std::nullopt;
  const auto state = at->second.levels.find(level);
  if (state == at->second.levels.end() || state->second != State::open) return std::nullopt;
  return Untold{.captured_at = at->second.captured_at,
                .was_written = at->second.was_written,
                .has_failed = at->second.error.has_value()};
}

void VersionBook::mark(const LevelNote& note) {
  const MutexLock lock(mutex_);
  Entry& entry = versions_.at(note.version);
  entry.levels[note.level] = note.kind == LevelNote::Kind::reached ? State::reached : State::failed;
  if (note.error && !entry.error) entry.error = note.error;
  changed_.notify_all();
}

void VersionBook::wake() const {
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void VersionBook::end(const Error& why) {
  const MutexLock lock(mutex_);
  over_ = why;
  changed_.notify_all();
}

void VersionBook::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Error VersionBook::why_over() const { return over_ ? *over_ : Error(Code::cancelled, "the checkpointer is closed"); }

bool VersionBook::is_open(const Entry& entry) {
  return std::ranges::any_of(entry.levels, [](const auto& at) { return at.second == State::open; });
}

bool VersionBook::may_take_share() const {
  if (job_.options.when_behind == WhenBehind::skip) return true;
  return std::ranges::count_if(versions_, [&](const auto& entry) { return is_open(entry.second); }) <= 1;
}

std::size_t VersionBook::shares_max() const {
  const std::uint64_t small = kSmallSharesBytes / std::max<std::uint64_t>(job_.cut->offsets.back(), 1);
  return std::clamp<std::size_t>(small, kSharesMax, kSmallSharesMax) + job_.keeps(Level::memory, 1) - 1;
}

void VersionBook::let_go_of_shares() {
  // In memory stay the newest that all captured, and what the folder does not have yet.
  std::uint32_t keep = job_.keeps(Level::memory, 1);
  for (auto at = versions_.rbegin(); at != versions_.rend(); ++at) {
    Entry& entry = at->second;
    if (entry.share == nullptr) continue;
    if (entry.is_captured && keep > 0) {
      --keep;
      continue;
    }
    if (entry.needs_share) continue;
    --entry.share->users;
    entry.share.reset();
  }
}

}  // namespace freshet::levels
