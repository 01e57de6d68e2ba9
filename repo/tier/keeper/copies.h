// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The copies that the tiers have, and who gets the room that is left. While there is room, copies stay. When there is
/// none, copies that no run used lately go, if that is configured. And where programs told what they will open, a share
/// of the first tier that works becomes the reserve: its copies go once their readers opened them, and what was told
/// next takes their room. So an epoch of a set that does not fit reads at the source what it must, and nobody waits for
/// that.
///
/// Books alone: the class touches no file, and reads of the board only what that counts. Owned by whoever locks it.

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/clock.h"
#include "repo/tier/board.h"
#include "repo/tier/config.h"
#include "repo/tier/copy_name.h"
#include "repo/tier/keeper/lookahead.h"
#include "repo/tier/keeper/reserve.h"

namespace freshet::tier {

/// A copy in a tier.
struct HeldCopy {
  Identity identity;
  std::uint32_t tier = 0;
};

class Copies {
 public:
  /// All of these outlive it. `lookahead` has the same lock.
  Copies(const Config& config, const Board& board, Lookahead& lookahead);

  const HeldCopy* find(std::uint64_t key) const;
  bool has(std::uint64_t key, const Identity& identity) const;
  std::vector<std::uint64_t> keys() const;
  /// Takes a copy off the books. Nothing: there is none; or it is another one than `only`.
  std::optional<HeldCopy> strike(std::uint64_t key, const Identity* only = nullptr);
  /// The true content of a tier, in place of the books. `bytes`: of all files there.
  void set_tier(std::uint32_t tier, const std::vector<Identity>& identities, std::uint64_t bytes);

  // Making a copy: begin(), reserve() or place_ahead(), made() or not_made(), end().
  /// False: one is being made.
  bool begin(std::uint64_t key) { return copying_.insert(key).second; }
  bool is_being_made(std::uint64_t key) const { return copying_.contains(key); }
  bool is_any_being_made() const { return !copying_.empty(); }
  void end(std::uint64_t key);
  /// A tier with room for so many bytes, now reserved; kTiersMax when there is none. `evicted`: copies that went for
  /// it.
  std::uint32_t reserve(std::uint64_t bytes, std::set<std::uint32_t>& tried, std::vector<HeldCopy>& evicted);
  void made(const Identity& identity, std::uint32_t tier);
  void not_made(std::uint64_t bytes, std::uint32_t tier);

  // What was told ahead.
  enum class Place : std::uint8_t { known, stays, ahead, waits, nowhere };
  /// Where a file that was told goes; `tier` is then reserved for it.
  Place place_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t& tier,
                    std::vector<HeldCopy>& evicted);
  /// A copy of `place` was made, or not. `opens`: how often its file had been opened when the order came to it.
  void end_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t opens, std::uint32_t tier,
                 Place place, bool is_made);
  /// Strikes what is behind readers, so that what is blocked gets room.
  std::vector<HeldCopy> free_for_blocked();
  /// Room of these copies that is nobody's until they are removed.
  void hold_room(const std::vector<HeldCopy>& evicted);
  void give_room(const std::vector<HeldCopy>& evicted);
  /// A stream ended, or went on. Where nobody tells anything any more, the reserve's copies stay, and its share is
  /// everybody's.
  void see_streams();
  std::uint32_t opens_of(std::uint64_t key) const;

  void turn_off(std::uint32_t tier) { off_[tier] = true; }
  void turn_on(std::uint32_t tier) { off_[tier] = false; }
  bool is_off(std::uint32_t tier) const { return off_[tier]; }
  /// The run from which unused copies are counted. False: it was that already.
  bool set_oldest_run(std::uint32_t run);
  void list_unused();

  std::uint64_t used_bytes(std::uint32_t tier) const { return used_[tier]; }
  std::uint64_t files(std::uint32_t tier) const { return files_[tier]; }
  /// Of the tier with the most.
  std::uint64_t room_bytes() const;
  /// The tiers are nearly full: nothing is prefetched.
  bool is_full() const { return is_full_; }
  void look_for_room() { is_full_ = false; }

 private:
  using HeldFiles = std::pmr::unordered_map<std::uint64_t, HeldCopy>;
  HeldCopy strike(HeldFiles::iterator held);
  void strike_droppable(std::uint64_t wanted, Lookahead::Stream stream, std::vector<HeldCopy>& evicted);
  /// The quota without what is kept free for the reserve.
  std::uint64_t quota_of(std::uint32_t tier) const;
  std::uint64_t kept_free(std::uint32_t tier) const;
  bool is_little_left() const;
  bool is_unused(std::uint64_t key) const;
  /// Strikes unused copies until the tier has room; none when that is not enough.
  bool evict_for(std::uint64_t bytes, std::uint32_t tier, std::vector<HeldCopy>& evicted);
  void note_told(const Reserve::Copy& copy);
  /// False: no tier works.
  bool choose_reserve();
  /// Makes copies that were told, and lie before their readers, copies that go after them, until the reserve has its
  /// share.
  void fill_reserve();

  const Config& config_;
  const Board& board_;
  Lookahead& lookahead_;
  /// Memory of held_ alone: strewn among what a copy needs for a moment, an entry would keep several times its size.
  std::pmr::unsynchronized_pool_resource held_memory_{
      {.max_blocks_per_chunk = 1024, .largest_required_pool_block = 256}};
  HeldFiles held_{&held_memory_};
  std::unordered_set<std::uint64_t> copying_;
  // By tier.
  std::vector<std::uint64_t> used_;
  std::vector<std::uint64_t> files_;
  std::vector<bool> off_;
  std::vector<std::vector<std::uint64_t>> unused_;  ///< When they were listed, the longest unused last.
  std::vector<std::uint64_t> unused_bytes_;
  std::uint32_t oldest_run_ = 0;
  bool is_full_ = false;

  Reserve reserve_;
  std::deque<Reserve::Copy> told_;  ///< Copies that were told and stay, the newest last: the reserve is made of them.
  std::uint32_t reserve_tier_ = kTiersMax;
  std::uint64_t reserve_share_ = 0;  ///< 0: nothing had to go yet.
  std::uint64_t ahead_bytes_ = 0;    ///< Of the reserve's copies, and of those being made.
  std::uint64_t largest_told_ = 0;
};

/// Removes their files, which are on no book any more.
void remove_evicted(const Config& config, Board& board, const std::vector<HeldCopy>& evicted);

}  // namespace freshet::tier
