// SPDX-License-Identifier: Apache-2.0
// The keeper's threads that go through everything: one counts the copies that it finds, lists folders which are to be
// copied ahead, and looks whether the sources of copies are still there; one reads the copies again.

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "repo/tier/keeper.h"
#include "repo/tier/path_links.h"

namespace freshet::tier {
namespace {

constexpr std::size_t kAheadWaitingMax = 1024;
/// Copies are read again when nothing was to be copied for that long, once each that long, and so slowly: 16 MiB/s.
constexpr Duration kScrubAfter = std::chrono::seconds(3);
constexpr Duration kScrubEach = std::chrono::hours(24);
constexpr std::uint64_t kScrubNsPerKibibyte = 1'000'000'000 / (16 * 1024);

}  // namespace

/// Waits for room in the queue; does nothing once no tier has any, or the keeper ends.
void Keeper::push_ahead(std::string path) {
  {
    const MutexLock lock(mutex_);
    while (ahead_.size() >= kAheadWaitingMax && !stop_.load() && !is_full_) changed_.wait(mutex_);
    if (stop_.load() || is_full_) return;
    ahead_.push_back(std::move(path));
    publish_books();
  }
  changed_.notify_all();
}

void Keeper::take_stock() {
  // Whoever opens something meanwhile asks: what room there is will be seen.
  store(board_.room_bytes, ~std::uint64_t{0});
  for (std::uint32_t i = 0; i < config_.tiers.size(); ++i) {
    {
      const MutexLock lock(mutex_);
      if (off_[i]) continue;
    }
    const Status counted = take_stock_of(i);
    const MutexLock lock(mutex_);
    if (!counted) turn_off(i, counted.error().message());
  }
  look_at_board();
  const MutexLock lock(mutex_);
  has_stock_ = true;
  if (config_.evicts_unused) list_unused();
  publish_books();
}

Status Keeper::take_stock_of(std::uint32_t tier) {
  const std::string& path = config_.tiers[tier].path;
  std::vector<std::pair<Identity, std::uint64_t>> found;
  std::uint64_t used = 0;
  FRESHET_TRY(each_copy(path, [&](const Identity& identity, std::uint64_t bytes, bool sound) {
    if (sound) {
      found.emplace_back(identity, bytes);
    } else if (::unlink(copy_path(path, identity).c_str()) != 0) {
      used += bytes;
    }
  }));
  if (config_.never_validates) (void)mend_path_links(path);
  const MutexLock lock(mutex_);
  std::erase_if(held_, [&](const auto& entry) { return entry.second.tier == tier; });
  files_[tier] = 0;
  for (const auto& [identity, bytes] : found) {
    const std::uint64_t key = file_key(identity.source, identity.inode);
    // Of two copies of one file at most one is of today; the next open of it tells which.
    if (const auto known = held_.find(key); known != held_.end() && known->second.tier == tier) {
      const bool older = std::pair(identity.ctime, identity.ctime_ns) <
                         std::pair(known->second.identity.ctime, known->second.identity.ctime_ns);
      const Identity& gone = older ? identity : known->second.identity;
      (void)remove_copy(path, gone);
      if (older) continue;
      used -= known->second.identity.size;
      --files_[tier];
    }
    held_[key] = {.identity = identity, .tier = tier};
    used += bytes;
    ++files_[tier];
    // What nobody has noted is as if it were new.
    std::uint32_t nth = 0;
    if (config_.evicts_unused && place_of_file(board_, key) == kFilesCounted) (void)note_file(board_, key, 0, nth);
  }
  used_[tier] = used;
  return {};
}

bool Keeper::wait_until(Time time) {
  const MutexLock lock(mutex_);
  while (!stop_.load() && system_clock().now() < time) (void)ends_.wait_until(mutex_, time);
  return !stop_.load();
}

void Keeper::check_held(std::uint64_t key) {
  Held known;
  {
    const MutexLock lock(mutex_);
    const auto held = held_.find(key);
    if (held == held_.end() || copying_.contains(key)) return;
    known = held->second;
  }
  const std::string& tier = config_.tiers[known.tier].path;
  const CopyCheck check = check_copy(tier, known.identity, [this](std::uint64_t bytes) {
    return wait_until(system_clock().now() + Duration(bytes * kScrubNsPerKibibyte / 1024));
  });
  // What could not be read to its end, for want of a descriptor too, is looked at again tomorrow.
  if (!check.was_read || check.good) return;
  {
    const MutexLock lock(mutex_);
    const auto held = held_.find(key);
    if (held == held_.end() || !(held->second.identity == known.identity) || copying_.contains(key)) return;
    (void)strike(held);
    publish_books();
  }
  (void)remove_copy(tier, known.identity);
  add(board_.counters.corrupt, 1);
}

void Keeper::scrub() {
  constexpr int kIdleOnly = 3 << 13;
  (void)::syscall(SYS_ioprio_set, 1, 0, kIdleOnly);
  for (;;) {
    if (!wait_until(system_clock().now() + kScrubAfter)) return;
    const Time begin = system_clock().now();
    std::vector<std::uint64_t> keys;
    {
      const MutexLock lock(mutex_);
      if (!is_idle_now()) continue;
      for (const auto& [key, held] : held_) keys.push_back(key);
    }
    for (const std::uint64_t key : keys) {
      while (!is_idle()) {
        if (!wait_until(system_clock().now() + kScrubAfter)) return;
      }
      check_held(key);
      if (stop_.load()) return;
    }
    if (!wait_until(begin + kScrubEach)) return;
  }
}

void Keeper::walk() {
  namespace files = std::filesystem;
  take_stock();
  changed_.notify_all();
  if (is_idle()) on_idle_();
  for (;;) {
    std::string root;
    bool looks = false;
    {
      const MutexLock lock(mutex_);
      while (roots_.empty() && !should_look_ && !stop_.load()) changed_.wait(mutex_);
      if (stop_.load()) return;
      walking_ = true;
      looks = std::exchange(should_look_, false);
      if (!looks) {
        root = std::move(roots_.front());
        roots_.pop_front();
      }
    }
    const auto is_over = [this] {
      const MutexLock lock(mutex_);
      return stop_.load() || is_full_;
    };
    std::error_code error;
    if (looks) {
      look_for_sources();
    } else if (!files::is_directory(root, error)) {
      push_ahead(root);
    } else {
      files::recursive_directory_iterator at(root, files::directory_options::skip_permission_denied, error);
      for (; !error && at != files::recursive_directory_iterator() && !is_over(); at.increment(error)) {
        std::error_code gone;
        if (at->is_regular_file(gone)) push_ahead(at->path().string());
      }
    }
    bool idle = false;
    {
      const MutexLock lock(mutex_);
      walking_ = false;
      idle = is_idle_now();
    }
    if (idle) on_idle_();
  }
}

}  // namespace freshet::tier
