// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper/copies.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "repo/tier/board_file.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {
namespace {

/// Where less than this part of a quota is left, a file that has no room is taken for the end of the room. Elsewhere it
/// is only a large file.
constexpr std::uint64_t kLittleParts = 64;
/// The reserve's share of a quota; of a quota of few large files at most kLargestParts.
constexpr std::uint64_t kReserveParts = 16;
constexpr std::uint64_t kLargestParts = 4;
/// So many of the largest files that were told have room in the reserve, where the share allows it.
constexpr std::uint64_t kReserveFilesLeast = 4;
constexpr std::size_t kToldCopiesMax = Reserve::kCopiesMax;
/// What is behind the readers goes in pieces of that share of the reserve.
constexpr std::uint64_t kFreedParts = 8;

std::uint64_t key_of(const Identity& identity) { return file_key(identity.source, identity.inode); }

std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return a - std::min(a, b); }

}  // namespace

Copies::Copies(const Config& config, const Board& board, Lookahead& lookahead)
    : config_(config),
      board_(board),
      lookahead_(lookahead),
      used_(config.tiers.size()),
      files_(config.tiers.size()),
      off_(config.tiers.size()),
      unused_(config.tiers.size()),
      unused_bytes_(config.tiers.size()) {}

const HeldCopy* Copies::find(std::uint64_t key) const {
  const auto held = held_.find(key);
  return held == held_.end() ? nullptr : &held->second;
}

bool Copies::has(std::uint64_t key, const Identity& identity) const {
  const HeldCopy* const held = find(key);
  return held != nullptr && held->identity == identity;
}

std::vector<std::uint64_t> Copies::keys() const {
  std::vector<std::uint64_t> keys;
  keys.reserve(held_.size());
  for (const auto& [key, held] : held_) keys.push_back(key);
  return keys;
}

HeldCopy Copies::strike(HeldFiles::iterator held) {
  const HeldCopy gone = held->second;
  used_[gone.tier] = minus(used_[gone.tier], gone.identity.size);
  --files_[gone.tier];
  if (const std::uint64_t bytes = reserve_.remove(held->first); bytes > 0) {
    ahead_bytes_ = minus(ahead_bytes_, bytes);
    lookahead_.unblock();
  }
  held_.erase(held);
  return gone;
}

std::optional<HeldCopy> Copies::strike(std::uint64_t key, const Identity* only) {
  const auto held = held_.find(key);
  if (held == held_.end() || (only != nullptr && !(held->second.identity == *only))) return std::nullopt;
  return strike(held);
}

void Copies::set_tier(std::uint32_t tier, const std::vector<Identity>& identities, std::uint64_t bytes) {
  std::erase_if(held_, [&](const auto& entry) { return entry.second.tier == tier; });
  if (tier == reserve_tier_) {
    reserve_.clear();
    told_.clear();
    ahead_bytes_ = 0;
  }
  for (const Identity& identity : identities) held_[key_of(identity)] = {.identity = identity, .tier = tier};
  used_[tier] = bytes;
  files_[tier] = identities.size();
}

/// Where no reserve is yet, what waits for room is tried again.
void Copies::end(std::uint64_t key) {
  copying_.erase(key);
  if (ahead_bytes_ == 0) lookahead_.unblock();
}

std::uint64_t Copies::kept_free(std::uint32_t tier) const {
  return tier == reserve_tier_ ? minus(reserve_share_, ahead_bytes_) : 0;
}

std::uint64_t Copies::quota_of(std::uint32_t tier) const {
  return minus(config_.tiers[tier].quota_bytes, kept_free(tier));
}

std::uint64_t Copies::room_bytes() const {
  std::uint64_t room = 0;
  for (std::uint32_t i = 0; i < used_.size(); ++i) {
    const std::uint64_t quota = config_.tiers[i].quota_bytes + unused_bytes_[i];
    if (!off_[i]) room = std::max(room, minus(quota, used_[i] + kept_free(i)));
  }
  return room;
}

bool Copies::is_little_left() const {
  bool any = false;
  for (std::uint32_t i = 0; i < used_.size(); ++i) {
    if (off_[i]) continue;
    any = true;
    const std::uint64_t quota = config_.tiers[i].quota_bytes;
    const std::uint64_t taken = minus(used_[i], unused_bytes_[i]) + kept_free(i);
    if (minus(quota, taken) >= quota / kLittleParts) return false;
  }
  return any;
}

std::uint32_t Copies::reserve(std::uint64_t bytes, std::set<std::uint32_t>& tried, std::vector<HeldCopy>& evicted) {
  for (const bool evicts : {false, true}) {
    if (evicts && !config_.evicts_unused) break;
    for (std::uint32_t i = 0; i < used_.size(); ++i) {
      const std::uint64_t quota = quota_of(i);
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

void Copies::made(const Identity& identity, std::uint32_t tier) {
  held_[key_of(identity)] = {.identity = identity, .tier = tier};
  ++files_[tier];
}

void Copies::not_made(std::uint64_t bytes, std::uint32_t tier) { used_[tier] = minus(used_[tier], bytes); }

bool Copies::set_oldest_run(std::uint32_t run) { return std::exchange(oldest_run_, run) != run; }

bool Copies::is_unused(std::uint64_t key) const {
  const std::uint32_t last = last_run_of(board_, key);
  return last != kNoRun && last + kRunsKept <= oldest_run_ && !copying_.contains(key);
}

void Copies::list_unused() {
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

bool Copies::evict_for(std::uint64_t bytes, std::uint32_t tier, std::vector<HeldCopy>& evicted) {
  const std::uint64_t room_at = quota_of(tier) - bytes;
  if (unused_bytes_[tier] < used_[tier] - room_at) return false;
  // Some of the list may have been opened since: then this goes on with what is left, and may end without room.
  while (used_[tier] > room_at && !unused_[tier].empty()) {
    const std::uint64_t key = unused_[tier].back();
    unused_[tier].pop_back();
    const auto held = held_.find(key);
    if (held == held_.end() || held->second.tier != tier) continue;
    unused_bytes_[tier] = minus(unused_bytes_[tier], held->second.identity.size);
    if (is_unused(key)) evicted.push_back(strike(held));
  }
  if (unused_[tier].empty()) unused_bytes_[tier] = 0;
  return used_[tier] <= room_at;
}

std::uint32_t Copies::opens_of(std::uint64_t key) const {
  const std::uint32_t place = place_of_file(board_, key);
  return place < kFilesCounted ? static_cast<std::uint32_t>(load(board_.file_opens[place]) & 0xffff) : 0;
}

void Copies::strike_droppable(std::uint64_t wanted, Lookahead::Stream stream, std::vector<HeldCopy>& evicted) {
  const auto keys = reserve_.droppable(
      wanted, stream, system_clock().now(), [this](std::uint64_t key) { return opens_of(key); },
      [this](Lookahead::Stream told) { return lookahead_.is_live(told); });
  for (const std::uint64_t key : keys) {
    if (const auto held = held_.find(key); held != held_.end() && !copying_.contains(key))
      evicted.push_back(strike(held));
  }
}

std::vector<HeldCopy> Copies::free_for_blocked() {
  std::vector<HeldCopy> evicted;
  if (const std::optional<Lookahead::Blocked>& blocked = lookahead_.blocked()) {
    const auto [bytes, stream] = *blocked;
    strike_droppable(std::max(bytes, reserve_share_ / kFreedParts), stream, evicted);
  }
  return evicted;
}

void Copies::hold_room(const std::vector<HeldCopy>& evicted) {
  for (const HeldCopy& held : evicted) used_[held.tier] += held.identity.size;
}

void Copies::give_room(const std::vector<HeldCopy>& evicted) {
  for (const HeldCopy& held : evicted) used_[held.tier] = minus(used_[held.tier], held.identity.size);
}

void Copies::see_streams() {
  if (!lookahead_.has_next()) lookahead_.unblock();
  if (!lookahead_.is_empty()) return;
  reserve_.clear();
  told_.clear();
  reserve_tier_ = kTiersMax;
  reserve_share_ = 0;
  ahead_bytes_ = 0;
  largest_told_ = 0;
}

void Copies::fill_reserve() {
  const std::uint64_t quota = config_.tiers[reserve_tier_].quota_bytes;
  const auto has_share = [this, quota] { return minus(used_[reserve_tier_], ahead_bytes_) <= quota - reserve_share_; };
  while (!has_share() && !told_.empty() && !reserve_.is_full()) {
    const Reserve::Copy copy = told_.back();
    told_.pop_back();
    const HeldCopy* const held = find(copy.key);
    if (held == nullptr || held->tier != reserve_tier_ || reserve_.contains(copy.key)) continue;
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

void Copies::note_told(const Reserve::Copy& copy) {
  if (told_.size() >= kToldCopiesMax) told_.pop_front();
  told_.push_back(copy);
}

bool Copies::choose_reserve() {
  if (reserve_tier_ != kTiersMax && !off_[reserve_tier_]) return true;
  reserve_.clear();
  ahead_bytes_ = 0;
  const auto on = std::ranges::find(off_, false);
  if (on == off_.end()) return false;
  reserve_tier_ = static_cast<std::uint32_t>(on - off_.begin());
  return true;
}

Copies::Place Copies::place_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t& tier,
                                  std::vector<HeldCopy>& evicted) {
  const std::uint64_t key = key_of(identity);
  if (copying_.contains(key)) return Place::nowhere;
  const Reserve::Copy copy{.key = key,
                           .bytes = identity.size,
                           .stream = told.stream,
                           .place = told.place,
                           .opens = opens_of(key),
                           .made = system_clock().now()};
  if (has(key, identity)) {
    if (reserve_.contains(key)) {
      reserve_.add(copy);
    } else {
      note_told(copy);
    }
    return Place::known;
  }
  largest_told_ = std::max(largest_told_, identity.size);
  std::set<std::uint32_t> tried;
  tier = reserve(identity.size, tried, evicted);
  if (tier != kTiersMax) return Place::stays;
  if (!choose_reserve()) return Place::nowhere;
  const std::uint64_t quota = config_.tiers[reserve_tier_].quota_bytes;
  reserve_share_ = std::max(quota / kReserveParts, std::min(kReserveFilesLeast * largest_told_, quota / kLargestParts));
  if (identity.size > reserve_share_) return Place::nowhere;
  fill_reserve();
  const auto over_share = [&] { return minus(ahead_bytes_ + identity.size, reserve_share_); };
  const auto over_quota = [&] { return minus(used_[reserve_tier_] + identity.size, quota); };
  const auto has_room = [&] { return over_share() == 0 && over_quota() == 0 && !reserve_.is_full(); };
  if (!has_room()) {
    strike_droppable(std::max({over_share(), over_quota(), std::uint64_t{1}}), told.stream, evicted);
  }
  // A reserve that is not there yet is made of what comes next and is here; nobody has to open that for this one's
  // sake. What is being copied just now may be what it is made of.
  if (!has_room()) return ahead_bytes_ == 0 && copying_.empty() ? Place::nowhere : Place::waits;
  tier = reserve_tier_;
  used_[tier] += identity.size;
  ahead_bytes_ += identity.size;
  return Place::ahead;
}

void Copies::end_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t opens, std::uint32_t tier,
                       Place place, bool is_made) {
  const bool was_ahead = place == Place::ahead && tier == reserve_tier_;
  if (was_ahead) ahead_bytes_ = minus(ahead_bytes_, identity.size);
  if (!is_made) lookahead_.unblock();  // Its room is free.
  if (!is_made || lookahead_.is_empty()) return;
  const Reserve::Copy copy{.key = key_of(identity),
                           .bytes = identity.size,
                           .stream = told.stream,
                           .place = told.place,
                           .opens = opens,
                           .made = system_clock().now()};
  if (!was_ahead) return note_told(copy);
  reserve_.add(copy);
  ahead_bytes_ += identity.size;
}

void remove_evicted(const Config& config, Board& board, const std::vector<HeldCopy>& evicted) {
  for (const HeldCopy& held : evicted) {
    (void)remove_copy(config.tiers[held.tier].path, held.identity);
    add(board.counters.evicted_files, 1);
  }
}

}  // namespace freshet::tier
