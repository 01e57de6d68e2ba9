// SPDX-License-Identifier: Apache-2.0
// The keeper ahead of its readers: what programs told is copied in their order. While there is room, copies stay. When
// there is none left, a share of the first tier that works becomes the reserve: its copies go once their readers opened
// them, and what was told next takes their room. So an epoch of a set that does not fit reads at the source what it
// must, and nobody waits for that.

#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "repo/tier/board_file.h"
#include "repo/tier/keeper.h"

namespace freshet::tier {
namespace {

/// The reserve's share of a quota; of a quota of few large files at most kLargestParts.
constexpr std::uint64_t kReserveParts = 16;
constexpr std::uint64_t kLargestParts = 4;
/// So many of the largest files that were told have room in the reserve, where the share allows it.
constexpr std::uint64_t kReserveFilesLeast = 4;
constexpr std::size_t kToldCopiesMax = Reserve::kCopiesMax;
/// What is behind the readers goes in pieces of that share of the reserve.
constexpr std::uint64_t kFreedParts = 8;
/// Opens of other files come often; the reserve is not looked through at each.
constexpr Duration kBetweenScans = std::chrono::milliseconds(2);
/// A file that changes each time it is looked at is not copied ahead.
constexpr int kYoungTriesMax = 3;
/// An open may have been missed; it is looked for again.
constexpr long kLookAgainNs = 100'000'000;

}  // namespace

Result<Lookahead::Stream> Keeper::begin_order() {
  const MutexLock lock(mutex_);
  Result<Lookahead::Stream> stream = lookahead_.begin();
  publish_books();
  return stream;
}

Status Keeper::tell(Lookahead::Stream stream, std::string path) {
  Status told;
  bool is_first = false;
  {
    const MutexLock lock(mutex_);
    told = lookahead_.tell(stream, std::move(path));
    is_first = lookahead_.waiting() == 1;
  }
  if (is_first) changed_.notify_all();
  return told;
}

void Keeper::tell_anew(Lookahead::Stream stream) {
  const MutexLock lock(mutex_);
  lookahead_.anew(stream);
  is_blocked_ = false;
}

void Keeper::end_order(Lookahead::Stream stream, bool stays) {
  {
    const MutexLock lock(mutex_);
    if (stays) {
      lookahead_.leave(stream);
    } else {
      lookahead_.end(stream);
      is_blocked_ = false;
    }
    see_streams();
    publish_books();
  }
  changed_.notify_all();
}

void Keeper::note_miss(const std::string& path) {
  {
    const MutexLock lock(mutex_);
    if (!lookahead_.missed(path)) return;
    is_blocked_ = false;
    see_streams();
  }
  changed_.notify_all();
}

bool Keeper::has_orders() const {
  const MutexLock lock(mutex_);
  return !lookahead_.is_empty();
}

/// Nobody tells anything any more: the reserve's copies stay, and its share is everybody's.
void Keeper::see_streams() {
  if (!lookahead_.has_next()) is_blocked_ = false;
  if (!lookahead_.is_empty()) return;
  reserve_.clear();
  told_.clear();
  reserve_tier_ = kTiersMax;
  reserve_share_ = 0;
  ahead_bytes_ = 0;
  largest_told_ = 0;
}

/// Where no reserve is yet, what waits for room is tried again.
void Keeper::end_copying(std::uint64_t key) {
  copying_.erase(key);
  if (ahead_bytes_ == 0) is_blocked_ = false;
}

std::uint32_t Keeper::opens_of(std::uint64_t key) const {
  const std::uint32_t place = place_of_file(board_, key);
  return place < kFilesCounted ? static_cast<std::uint32_t>(load(board_.file_opens[place]) & 0xffff) : 0;
}

void Keeper::free_behind(std::uint64_t wanted, Lookahead::Stream stream, std::vector<Held>& evicted) {
  const auto keys = reserve_.droppable(
      wanted, stream, system_clock().now(), [this](std::uint64_t key) { return opens_of(key); },
      [this](Lookahead::Stream told) FRESHET_NO_THREAD_SAFETY_ANALYSIS { return lookahead_.is_live(told); });
  for (const std::uint64_t key : keys) {
    if (const auto held = held_.find(key); held != held_.end() && !copying_.contains(key))
      evicted.push_back(strike(held));
  }
}

void Keeper::fill_reserve() {
  const std::uint64_t quota = config_.tiers[reserve_tier_].quota_bytes;
  const auto has_share = [this, quota]() FRESHET_NO_THREAD_SAFETY_ANALYSIS {
    return used_[reserve_tier_] - std::min(used_[reserve_tier_], ahead_bytes_) <= quota - reserve_share_;
  };
  while (!has_share() && !told_.empty() && !reserve_.is_full()) {
    const Reserve::Copy copy = told_.back();
    told_.pop_back();
    const auto held = held_.find(copy.key);
    if (held == held_.end() || held->second.tier != reserve_tier_ || reserve_.contains(copy.key)) continue;
    reserve_.add(copy);
    ahead_bytes_ += copy.bytes;
  }
  // What was not told yet comes later, if at all. No stream is behind it, so it goes at once.
  const Time now = system_clock().now();
  for (const auto& [key, held] : held_) {
    if (has_share() || reserve_.is_full()) break;
    if (held.tier != reserve_tier_ || copying_.contains(key) || reserve_.contains(key)) continue;
    reserve_.add({.key = key, .bytes = held.identity.size, .opens = opens_of(key), .made = now});
    ahead_bytes_ += held.identity.size;
  }
}

Keeper::Place Keeper::place_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t& tier,
                                  std::vector<Held>& evicted) {
  const std::uint64_t key = file_key(identity.source, identity.inode);
  if (copying_.contains(key)) return Place::nowhere;
  const Reserve::Copy copy{.key = key,
                           .bytes = identity.size,
                           .stream = told.stream,
                           .place = told.place,
                           .opens = opens_of(key),
                           .made = system_clock().now()};
  if (const auto held = held_.find(key); held != held_.end() && held->second.identity == identity) {
    if (reserve_.contains(key)) {
      reserve_.add(copy);
    } else {
      if (told_.size() >= kToldCopiesMax) told_.pop_front();
      told_.push_back(copy);
    }
    return Place::known;
  }
  largest_told_ = std::max(largest_told_, identity.size);
  std::set<std::uint32_t> tried;
  tier = reserve_now(identity.size, tried, evicted);
  if (tier != kTiersMax) return Place::stays;
  if (reserve_tier_ == kTiersMax || off_[reserve_tier_]) {
    reserve_.clear();
    ahead_bytes_ = 0;
    const auto on = std::ranges::find(off_, false);
    if (on == off_.end()) return Place::nowhere;
    reserve_tier_ = static_cast<std::uint32_t>(on - off_.begin());
  }
  const std::uint64_t quota = config_.tiers[reserve_tier_].quota_bytes;
  reserve_share_ = std::max(quota / kReserveParts, std::min(kReserveFilesLeast * largest_told_, quota / kLargestParts));
  if (identity.size > reserve_share_) return Place::nowhere;
  fill_reserve();
  const auto has_room = [&]() FRESHET_NO_THREAD_SAFETY_ANALYSIS {
    return ahead_bytes_ + identity.size <= reserve_share_ && used_[reserve_tier_] + identity.size <= quota &&
           !reserve_.is_full();
  };
  if (!has_room()) {
    const std::uint64_t ahead = ahead_bytes_ + identity.size;
    const std::uint64_t used = used_[reserve_tier_] + identity.size;
    const std::uint64_t over_share = ahead - std::min(ahead, reserve_share_);
    const std::uint64_t over_quota = used - std::min(used, quota);
    free_behind(std::max({over_share, over_quota, std::uint64_t{1}}), told.stream, evicted);
  }
  // A reserve that is not there yet is made of what comes next and is here; nobody has to open that for this one's
  // sake. What is being copied just now may be what it is made of.
  if (!has_room()) return ahead_bytes_ == 0 && copying_.empty() ? Place::nowhere : Place::waits;
  tier = reserve_tier_;
  used_[tier] += identity.size;
  ahead_bytes_ += identity.size;
  return Place::ahead;
}

void Keeper::fetch(Lookahead::Told told, Slot& slot) {
  struct stat file {};
  // A look is cheaper than an open, and from the second epoch on mostly enough.
  if (::stat(told.path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return;
  const std::uint32_t source = source_on(board_, device_of(file));
  if (source == kSourcesMax) return;
  const Identity identity = identity_of(source, file);
  const std::uint64_t key = file_key(source, identity.inode);
  if (const std::int64_t young = young_for_ns(identity); young > 0) {
    const MutexLock lock(mutex_);
    if (told.tries >= kYoungTriesMax) return;
    ++told.tries;
    told_from_ = std::max(told_from_, system_clock().now() + Duration(young));
    return lookahead_.put_back(std::move(told));
  }
  std::uint32_t tier = kTiersMax;
  std::uint32_t opens = 0;
  Place place = Place::nowhere;
  std::vector<Held> evicted;
  {
    const MutexLock lock(mutex_);
    opens = opens_of(key);
    place = place_ahead(identity, told, tier, evicted);
    if (place == Place::stays || place == Place::ahead) copying_.insert(key);
    if (place == Place::waits) {
      is_blocked_ = true;
      blocked_bytes_ = identity.size;
      blocked_stream_ = told.stream;
      lookahead_.put_back(told);
    }
  }
  remove_evicted(evicted);
  if (place == Place::waits) changed_.notify_all();
  if (place != Place::stays && place != Place::ahead) return;
  copy_ahead(identity, told, opens, tier, place, slot);
  {
    const MutexLock lock(mutex_);
    end_copying(key);
  }
  tell_change();
}

void Keeper::copy_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t opens, std::uint32_t tier,
                        Place place, Slot& slot) {
  const std::uint64_t key = file_key(identity.source, identity.inode);
  if (const auto old = release_held(key); old) (void)remove_copy(config_.tiers[old->tier].path, old->identity);
  FileDescriptor fd;
  const std::optional<OpenSource> source = open_source(told.path, fd);
  const bool is_same = source && source->identity == identity;
  CopyEnd end{.kind = CopyEnd::Kind::changed, .reason = "", .read_bytes = 0};
  if (is_same) {
    end = copy_into(*source, tier, slot);
    settle_copy(*source, tier, end);
  }
  const MutexLock lock(mutex_);
  if (!is_same) used_[tier] -= std::min(used_[tier], identity.size);
  const bool was_ahead = place == Place::ahead && tier == reserve_tier_;
  if (was_ahead) ahead_bytes_ -= std::min(ahead_bytes_, identity.size);
  if (end.kind != CopyEnd::Kind::made) is_blocked_ = false;  // Its room is free.
  if (end.kind != CopyEnd::Kind::made || lookahead_.is_empty()) return;
  const Reserve::Copy copy{.key = key,
                           .bytes = identity.size,
                           .stream = told.stream,
                           .place = told.place,
                           .opens = opens,
                           .made = system_clock().now()};
  if (was_ahead) {
    reserve_.add(copy);
    ahead_bytes_ += identity.size;
  } else {
    if (told_.size() >= kToldCopiesMax) told_.pop_front();
    told_.push_back(copy);
  }
}

bool Keeper::unblock() {
  std::vector<Held> evicted;
  {
    const MutexLock lock(mutex_);
    if (is_blocked_) free_behind(std::max(blocked_bytes_, reserve_share_ / kFreedParts), blocked_stream_, evicted);
    if (evicted.empty()) return false;
    // Their room is nobody's until they are removed; and there is something to do.
    for (const Held& held : evicted) used_[held.tier] += held.identity.size;
    is_blocked_ = true;
    ++active_;
  }
  remove_evicted(evicted);
  {
    const MutexLock lock(mutex_);
    for (const Held& held : evicted) used_[held.tier] -= std::min(used_[held.tier], held.identity.size);
    is_blocked_ = false;
    --active_;
    publish_books();
  }
  changed_.notify_all();
  return true;
}

void Keeper::follow() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      while (!is_blocked_ && !stop_.load()) changed_.wait(mutex_);
      if (stop_.load()) return;
    }
    store(board_.awaits_open, std::uint32_t{1});
    if (!unblock()) {
      const timespec at_most = {.tv_sec = 0, .tv_nsec = kLookAgainNs};
      (void)::syscall(SYS_futex, &board_.awaits_open, FUTEX_WAIT, 1, &at_most, nullptr, 0);
      std::this_thread::sleep_for(kBetweenScans);
    }
    store(board_.awaits_open, std::uint32_t{0});
  }
}

}  // namespace freshet::tier
