// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The keeper: copies what programs opened, and what was asked for ahead, into the tiers. One process has it for all
/// programs of the host that use these tiers, so its threads, its memory and its errors are none of theirs.
///
/// Each file has one copier at a time. A request comes from whoever can write to the socket, so it is a path and
/// nothing else: the keeper opens it, looks what it is, and copies a regular file below a source.
///
/// Any thread. Queues are limited: what programs ask for is dropped when its queue is full, and counted (they ask again
/// at their next open); what is fetched ahead waits for room.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/tier/board.h"
#include "repo/tier/config.h"
#include "repo/tier/lookahead.h"
#include "repo/tier/reserve.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {

/// How long until a change of the file would be seen; 0 when it would be now.
std::int64_t young_for_ns(const Identity& identity);

class Keeper {
 public:
  /// Locks the tiers, and removes what earlier keepers left unfinished. A thread takes stock: a million copies take a
  /// while, and until then requests wait. failed_precondition when another keeper has them. A tier that does not work
  /// is off, and says why on the board. `on_idle` is called by a thread of the keeper's when nothing is left to do.
  static Result<std::unique_ptr<Keeper>> open(const Config& config, Board& board, std::function<void()> on_idle);
  ~Keeper();

  /// A program opened that file at the source.
  void ask(std::string path);
  /// Copies files and folders in order. out_of_space when too many wait already.
  Status prefetch(std::string path);
  /// A program opened that file at the source, and wants no copy.
  void note_miss(const std::string& path);
  /// A program tells what it will open, in order: it is copied ahead of the program, and where there is no room to
  /// stay, for as long as the program needs it. out_of_space when too many tell, or too much was told.
  Result<Lookahead::Stream> begin_order();
  Status tell(Lookahead::Stream stream, std::string path);
  /// What it told before counts no more.
  void tell_anew(Lookahead::Stream stream);
  /// Who told it went away; with `stays`, the order is kept.
  void end_order(Lookahead::Stream stream, bool stays);
  /// Whether nothing waits and nothing is being copied. What waits for a program's next open does not count.
  bool is_idle() const;
  bool has_orders() const;
  /// Frees what is behind readers, where something told waits for that; false when that gave nothing.
  bool unblock();
  /// A copy was removed by somebody else.
  void forget(const Identity& identity);
  /// Tries tiers that are off.
  void try_again();
  /// A run may have begun or ended: other copies are unused then. And programs may want room.
  void look_at_board();

 private:
  struct Held {
    Identity identity;
    std::uint32_t tier = 0;
  };

  using HeldFiles = std::pmr::unordered_map<std::uint64_t, Held>;

  Keeper(const Config& config, Board& board, std::function<void()> on_idle);

  /// Makes, locks and sweeps a tier.
  Status take(std::uint32_t tier);
  /// Counts the copies of all tiers that were taken. Nothing is copied before: what there is room for is not known.
  void take_stock();
  Status take_stock_of(std::uint32_t tier);
  void turn_off(std::uint32_t tier, const std::string& reason) FRESHET_REQUIRES(mutex_);
  void publish_books() FRESHET_REQUIRES(mutex_);
  void tell_change();

  void work();
  void walk();
  /// Reads each copy again once a day, slowly, while nothing is to be copied: a disk may give other bytes than it took.
  void scrub();
  /// False when the keeper ends before that.
  bool wait_until(Time time);
  void check_held(std::uint64_t key);
  /// Frees what is behind readers while a copy waits for that.
  void follow();
  struct Job {
    std::string path;
    std::optional<Lookahead::Told> told;
    bool was_asked = false;
  };
  bool next(Job& job);
  /// One of `threads` places to copy in. A worker gives its place up once its copy is written: while it waits for the
  /// disk to have the copy, and for the source to be looked at again, another one copies. So syncs come together.
  class Slot {
   public:
    explicit Slot(Keeper& keeper) : keeper_(keeper) {}
    ~Slot() { give_up(); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    void give_up();

   private:
    Keeper& keeper_;
    bool held_ = true;
  };
  bool is_idle_now() const FRESHET_REQUIRES(mutex_);
  /// What is to be done with a file that was opened: copy it, or nothing.
  void handle(const std::string& path, Slot& slot);
  void copy(const OpenSource& source, Slot& slot);
  /// A file at the source, open; nothing when it is not to be copied. `fd` keeps it open.
  std::optional<OpenSource> open_source(const std::string& path, FileDescriptor& fd);
  /// Whoever opens that path is to look for a copy first.
  void hint_path(const std::string& path);
  /// For a file that the keeper cannot open. A program that waits for its copy goes on with the source.
  void refuse_unopened(const std::string& path);
  CopyEnd copy_into(const OpenSource& source, std::uint32_t tier, Slot& slot);

  /// Copies a file that was told.
  void fetch(Lookahead::Told told, Slot& slot);
  enum class Place { known, stays, ahead, waits, nowhere };
  /// Where a file that was told goes; `tier` is then reserved for it.
  Place place_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t& tier,
                    std::vector<Held>& evicted) FRESHET_REQUIRES(mutex_);
  void copy_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t opens, std::uint32_t tier,
                  Place place, Slot& slot);
  /// Makes copies that were told, and lie before their readers, copies that go after them, until the reserve has its
  /// share.
  void fill_reserve() FRESHET_REQUIRES(mutex_);
  void free_behind(std::uint64_t wanted, Lookahead::Stream stream, std::vector<Held>& evicted) FRESHET_REQUIRES(mutex_);
  void end_copying(std::uint64_t key) FRESHET_REQUIRES(mutex_);
  std::uint32_t opens_of(std::uint64_t key) const;
  /// What of the tier's quota is kept free for the reserve.
  std::uint64_t kept_free(std::uint32_t tier) const FRESHET_REQUIRES(mutex_);
  std::uint32_t reserve_now(std::uint64_t bytes, std::set<std::uint32_t>& tried, std::vector<Held>& evicted)
      FRESHET_REQUIRES(mutex_);
  void see_streams() FRESHET_REQUIRES(mutex_);
  /// A tier with room for it, now reserved; kTiersMax when there is none. Unused copies make room where that is
  /// configured.
  std::uint32_t reserve(const Identity& identity, std::set<std::uint32_t>& tried);
  /// Of all tiers that are on; false when none is.
  bool is_little_left() const FRESHET_REQUIRES(mutex_);
  void list_unused() FRESHET_REQUIRES(mutex_);
  bool is_unused(std::uint64_t key) const FRESHET_REQUIRES(mutex_);
  /// Strikes unused copies off the books until the tier has room; none when that is not enough.
  bool evict_for(std::uint64_t bytes, std::uint32_t tier, std::vector<Held>& evicted) FRESHET_REQUIRES(mutex_);
  /// Takes a copy off the books.
  Held strike(HeldFiles::iterator held) FRESHET_REQUIRES(mutex_);
  void remove_evicted(const std::vector<Held>& evicted);
  bool is_mounted_at(const std::string& path) const;
  bool is_source_gone(const Held& held) const;
  /// Removes copies whose sources are gone, or are others by now.
  void look_for_sources();
  void settle_copy(const OpenSource& source, std::uint32_t tier, const CopyEnd& end);
  /// Strikes an older copy of the file off the books, and says which it was.
  std::optional<Held> release_held(std::uint64_t key);
  void push_ahead(std::string path);
  /// Looks at the file again after that time. A file that stays young is given up; its next open asks again.
  void defer(const OpenSource& source, Duration by) FRESHET_EXCLUDES(mutex_);

  const Config config_;
  Board& board_;
  const std::function<void()> on_idle_;
  std::vector<FileDescriptor> locks_;  ///< By tier.

  mutable Mutex mutex_;
  CondVar changed_;
  CondVar slot_free_;
  CondVar ends_;
  unsigned slots_taken_ FRESHET_GUARDED_BY(mutex_) = 0;
  /// Into wanted_, whose texts stay where they are.
  std::deque<const std::string*> asked_ FRESHET_GUARDED_BY(mutex_);
  std::size_t asked_bytes_ FRESHET_GUARDED_BY(mutex_) = 0;
  /// What stands in asked_ or is being handled: who waits for a copy asks again and again, and is not to be handled as
  /// often.
  std::unordered_set<std::string> wanted_ FRESHET_GUARDED_BY(mutex_);
  std::deque<std::string> ahead_ FRESHET_GUARDED_BY(mutex_);
  std::deque<std::string> roots_ FRESHET_GUARDED_BY(mutex_);
  std::multimap<Time, std::string> later_ FRESHET_GUARDED_BY(mutex_);
  struct Deferred {
    int times = 0;
    bool waits = false;  ///< It stands in later_.
  };
  /// Files that were too young for a copy, by path.
  std::unordered_map<std::string, Deferred> deferred_ FRESHET_GUARDED_BY(mutex_);
  /// Memory of held_ alone: strewn among what a copy needs for a moment, an entry would keep several times its size.
  std::pmr::unsynchronized_pool_resource held_memory_{
      {.max_blocks_per_chunk = 1024, .largest_required_pool_block = 256}};
  HeldFiles held_ FRESHET_GUARDED_BY(mutex_){&held_memory_};
  std::unordered_set<std::uint64_t> copying_ FRESHET_GUARDED_BY(mutex_);
  Lookahead lookahead_ FRESHET_GUARDED_BY(mutex_);
  Reserve reserve_ FRESHET_GUARDED_BY(mutex_);
  /// Copies that were told and stay, the newest last: the reserve is made of them.
  std::deque<Reserve::Copy> told_ FRESHET_GUARDED_BY(mutex_);
  std::uint32_t reserve_tier_ FRESHET_GUARDED_BY(mutex_) = kTiersMax;
  std::uint64_t reserve_share_ FRESHET_GUARDED_BY(mutex_) = 0;  ///< 0: nothing had to go yet.
  std::uint64_t ahead_bytes_ FRESHET_GUARDED_BY(mutex_) = 0;    ///< Of the reserve's copies, and of those being made.
  std::uint64_t largest_told_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool is_blocked_ FRESHET_GUARDED_BY(mutex_) = false;  ///< The next that was told has no room yet.
  Time told_from_ FRESHET_GUARDED_BY(mutex_){};         ///< The next that was told is too young until then.
  std::uint64_t blocked_bytes_ FRESHET_GUARDED_BY(mutex_) = 0;
  Lookahead::Stream blocked_stream_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::uint64_t turns_ FRESHET_GUARDED_BY(mutex_) = 0;
  /// The run from which unused copies are counted.
  std::uint32_t oldest_run_ FRESHET_GUARDED_BY(mutex_) = 0;
  /// By tier: copies that were unused when they were listed, the longest unused last, and their bytes.
  std::vector<std::vector<std::uint64_t>> unused_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> unused_bytes_ FRESHET_GUARDED_BY(mutex_);
  /// Whether copies' sources are to be looked for, and when they may be again.
  bool should_look_ FRESHET_GUARDED_BY(mutex_) = false;
  Time look_again_ FRESHET_GUARDED_BY(mutex_){};
  std::vector<std::uint64_t> used_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> files_ FRESHET_GUARDED_BY(mutex_);
  std::vector<bool> off_ FRESHET_GUARDED_BY(mutex_);
  std::size_t active_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool walking_ FRESHET_GUARDED_BY(mutex_) = false;
  bool has_stock_ FRESHET_GUARDED_BY(mutex_) = false;
  bool is_full_ FRESHET_GUARDED_BY(mutex_) = false;  ///< The tiers are nearly full: nothing is copied ahead.

  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> aside_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace freshet::tier
