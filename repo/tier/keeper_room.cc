// SPDX-License-Identifier: Apache-2.0
// The keeper's books of room: who gets it, and which copies go for it.

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "repo/tier/board_file.h"
#include "repo/tier/keeper.h"

namespace freshet::tier {
namespace {

/// Sources are asked for one by one, which takes a slow one long: not more often than that.
constexpr Duration kBetweenLooks = std::chrono::minutes(10);
/// Where less than this part of a quota is left, a file that has no room is taken for the end of the room. Elsewhere it
/// is only a large file.
constexpr std::uint64_t kLittleParts = 64;

/// A network's file system that is not mounted leaves an empty folder, or another one: nothing of it is gone.
bool is_mounted(const std::string& source, std::uint64_t device) {
  std::error_code error;
  return device != 0 && device_at(source) == device && !std::filesystem::is_empty(source, error) && !error;
}

}  // namespace

void Keeper::publish_books() {
  std::uint64_t room = 0;
  for (std::uint32_t i = 0; i < used_.size(); ++i) {
    store(board_.tiers[i].used_bytes, used_[i]);
    store(board_.tiers[i].files, files_[i]);
    const std::uint64_t quota = config_.tiers[i].quota_bytes + unused_bytes_[i];
    if (!off_[i] && quota > used_[i] + kept_free(i)) room = std::max(room, quota - used_[i] - kept_free(i));
  }
  store(board_.room_bytes, room);
  store(board_.queued_files,
        asked_.size() + ahead_.size() + later_.size() + active_ + (is_blocked_ ? 0 : lookahead_.waiting()));
  store(board_.follows, lookahead_.is_empty() ? std::uint32_t{0} : std::uint32_t{1});
}

Keeper::Held Keeper::strike(HeldFiles::iterator held) {
  const Held gone = held->second;
  used_[gone.tier] -= std::min(used_[gone.tier], gone.identity.size);
  --files_[gone.tier];
  if (const std::uint64_t bytes = reserve_.remove(held->first); bytes > 0) {
    ahead_bytes_ -= std::min(ahead_bytes_, bytes);
    is_blocked_ = false;
  }
  held_.erase(held);
  return gone;
}

std::optional<Keeper::Held> Keeper::release_held(std::uint64_t key) {
  const MutexLock lock(mutex_);
  const auto held = held_.find(key);
  if (held == held_.end()) return std::nullopt;
  return strike(held);
}

void Keeper::remove_evicted(const std::vector<Held>& evicted) {
  for (const Held& held : evicted) {
    (void)remove_copy(config_.tiers[held.tier].path, held.identity);
    add(board_.counters.evicted_files, 1);
  }
}

std::uint64_t Keeper::kept_free(std::uint32_t tier) const {
  return tier == reserve_tier_ && reserve_share_ > ahead_bytes_ ? reserve_share_ - ahead_bytes_ : 0;
}

bool Keeper::is_little_left() const {
  bool any = false;
  for (std::uint32_t i = 0; i < config_.tiers.size(); ++i) {
    if (off_[i]) continue;
    any = true;
    const std::uint64_t quota = config_.tiers[i].quota_bytes;
    const std::uint64_t taken = used_[i] - std::min(used_[i], unused_bytes_[i]) + kept_free(i);
    if (quota - std::min(quota, taken) >= quota / kLittleParts) return false;
  }
  return any;
}

std::uint32_t Keeper::reserve_now(std::uint64_t bytes, std::set<std::uint32_t>& tried, std::vector<Held>& evicted) {
  for (const bool evicts : {false, true}) {
    if (evicts && !config_.evicts_unused) break;
    for (std::uint32_t i = 0; i < config_.tiers.size(); ++i) {
      const std::uint64_t quota = config_.tiers[i].quota_bytes - std::min(config_.tiers[i].quota_bytes, kept_free(i));
      if (off_[i] || tried.contains(i) || bytes > quota) continue;
      if (used_[i] > quota - bytes && !(evicts && evict_for(bytes, i, evicted))) continue;
      tried.insert(i);
      used_[i] += bytes;
      return i;
    }
  }
  is_full_ = is_full_ || is_little_left();
  return kTiersMax;
}

std::uint32_t Keeper::reserve(const Identity& identity, std::set<std::uint32_t>& tried) {
  std::vector<Held> evicted;
  std::uint32_t found = kTiersMax;
  {
    const MutexLock lock(mutex_);
    found = reserve_now(identity.size, tried, evicted);
    if (found == kTiersMax) store(board_.wants_room, std::uint32_t{1});
  }
  remove_evicted(evicted);
  return found;
}

void Keeper::look_at_board() {
  if (!config_.evicts_unused) return;
  const FileDescriptor locks = open_lock_file(board_path(config_));
  const std::uint32_t oldest =
      oldest_run(board_, [&](std::uint32_t place) { return is_byte_locked(locks.get(), kRunByte + place); });
  const bool wants_room = load(board_.wants_room) != 0;
  const MutexLock lock(mutex_);
  if (oldest != oldest_run_) {
    oldest_run_ = oldest;
    list_unused();
    publish_books();
  }
  if (const Time now = system_clock().now(); wants_room && now >= look_again_) {
    store(board_.wants_room, std::uint32_t{0});
    look_again_ = now + kBetweenLooks;
    should_look_ = true;
    changed_.notify_all();
  }
}

bool Keeper::is_unused(std::uint64_t key) const {
  const std::uint32_t last = last_run_of(board_, key);
  return last != kNoRun && last + kRunsKept <= oldest_run_ && !copying_.contains(key);
}

void Keeper::list_unused() {
  for (auto& list : unused_) list.clear();
  std::ranges::fill(unused_bytes_, std::uint64_t{0});
  for (const auto& [key, held] : held_) {
    if (!is_unused(key)) continue;
    unused_[held.tier].push_back(key);
    unused_bytes_[held.tier] += held.identity.size;
  }
  for (auto& list : unused_) {
    std::ranges::sort(list, std::ranges::greater(),
                      [&](std::uint64_t key) { return std::pair(last_run_of(board_, key), key); });
  }
}

bool Keeper::evict_for(std::uint64_t bytes, std::uint32_t tier, std::vector<Held>& evicted) {
  const std::uint64_t quota =
      config_.tiers[tier].quota_bytes - std::min(config_.tiers[tier].quota_bytes, kept_free(tier));
  const auto has_room = [&]() FRESHET_NO_THREAD_SAFETY_ANALYSIS { return used_[tier] <= quota - bytes; };
  if (unused_bytes_[tier] < used_[tier] - (quota - bytes)) return false;
  // Some of the list may have been opened since: then this goes on with what is left, and may end without room.
  while (!has_room() && !unused_[tier].empty()) {
    const std::uint64_t key = unused_[tier].back();
    unused_[tier].pop_back();
    const auto held = held_.find(key);
    if (held == held_.end() || held->second.tier != tier) continue;
    unused_bytes_[tier] -= std::min(unused_bytes_[tier], held->second.identity.size);
    if (is_unused(key)) evicted.push_back(strike(held));
  }
  if (unused_[tier].empty()) unused_bytes_[tier] = 0;
  return has_room();
}

bool Keeper::is_mounted_at(const std::string& path) const {
  bool below = false;
  for (std::size_t i = 0; i < config_.sources.size(); ++i) {
    if (!path.starts_with(config_.sources[i] + "/")) continue;
    below = true;
    if (!is_mounted(config_.sources[i], load(board_.sources[i].device))) return false;
  }
  return below;
}

bool Keeper::is_source_gone(const Held& held) const {
  const std::uint32_t place = held.identity.source;
  if (place >= config_.sources.size()) return true;
  const std::string path = source_of_copy(config_.tiers[held.tier].path, held.identity);
  if (path.empty() || !is_mounted_at(path)) return false;
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return (errno == ENOENT || errno == ENOTDIR) && is_mounted_at(path);
  return device_of(now) == load(board_.sources[place].device) && !(identity_of(place, now) == held.identity);
}

void Keeper::look_for_sources() {
  std::vector<std::uint64_t> keys;
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, held] : held_) keys.push_back(key);
  }
  for (const std::uint64_t key : keys) {
    std::optional<Held> known;
    {
      const MutexLock lock(mutex_);
      if (stop_.load()) return;
      if (const auto held = held_.find(key); held != held_.end() && !copying_.contains(key)) known = held->second;
    }
    if (!known || !is_source_gone(*known)) continue;
    std::vector<Held> evicted;
    {
      const MutexLock lock(mutex_);
      const auto held = held_.find(key);
      if (held != held_.end() && held->second.identity == known->identity && !copying_.contains(key))
        evicted.push_back(strike(held));
      is_full_ = false;
      publish_books();
    }
    remove_evicted(evicted);
  }
}

}  // namespace freshet::tier
