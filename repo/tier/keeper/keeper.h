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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/tier/board.h"
#include "repo/tier/config.h"
#include "repo/tier/keeper/copies.h"
#include "repo/tier/keeper/lookahead.h"
#include "repo/tier/keeper/requests.h"
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
  /// Its earlier paths count no more.
  void tell_anew(Lookahead::Stream stream);
  /// The program that told the order went away; with `stays`, the order is kept.
  void end_order(Lookahead::Stream stream, bool stays);
  /// Whether nothing waits and nothing is being copied. Paths that wait for a program's next open do not count.
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
  Keeper(const Config& config, Board& board, std::function<void()> on_idle);

  /// Counts the copies of all tiers that work. Nothing is copied before: what there is room for is not known.
  void take_stock();
  /// From now on the books have the tier's content.
  Status take_stock_of(std::uint32_t tier);
  void turn_off(std::uint32_t tier, const std::string& reason) FRESHET_REQUIRES(mutex_);
  void publish_books() FRESHET_REQUIRES(mutex_);

  // The threads.
  void work();
  void walk();
  void list_ahead(const std::string& root);
  /// Reads each copy again once a day, slowly, while nothing is to be copied: a disk may give other bytes than it took.
  void scrub();
  /// False when the keeper ends before that.
  bool wait_until(Time time);
  void check_held(std::uint64_t key);
  /// Frees what is behind readers while a copy waits for that.
  void follow();

  struct Job {
    Requests::Request request;
    std::optional<Lookahead::Told> told;  ///< Instead of the request.
  };
  /// With a slot, when it says true.
  bool next(Job& job);
  bool take_next(Job& job, Time now) FRESHET_REQUIRES(mutex_);
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
  /// The next step for a file that was opened: copy it, or nothing.
  void handle(const std::string& path, Slot& slot);
  void copy(const OpenSource& source, Slot& slot);
  /// Copies a file that was told.
  void fetch(Lookahead::Told told, Slot& slot);
  void copy_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t opens, std::uint32_t tier,
                  Copies::Place place, Slot& slot);
  /// A file at the source, open; nothing when it is not to be copied. `fd` keeps it open.
  std::optional<OpenSource> open_source(const std::string& path, FileDescriptor& fd);
  CopyEnd copy_into(const OpenSource& source, std::uint32_t tier, Slot& slot);
  void settle_copy(const OpenSource& source, std::uint32_t tier, const CopyEnd& end);
  /// Takes an older copy of the file off the books, and removes it.
  void remove_older(std::uint64_t key);
  /// Removes copies whose sources are gone, or are others by now.
  void look_for_sources();
  void push_ahead(std::string path);

  const Config config_;
  Board& board_;
  const std::function<void()> on_idle_;
  std::vector<FileDescriptor> locks_;  ///< By tier.

  mutable Mutex mutex_;
  CondVar changed_;
  CondVar slot_free_;
  CondVar ends_;
  unsigned slots_taken_ FRESHET_GUARDED_BY(mutex_) = 0;
  Requests requests_ FRESHET_GUARDED_BY(mutex_);
  Lookahead lookahead_ FRESHET_GUARDED_BY(mutex_);
  Copies copies_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t turns_ FRESHET_GUARDED_BY(mutex_) = 0;
  /// Whether copies' sources are to be looked for, and when they may be again.
  bool should_look_ FRESHET_GUARDED_BY(mutex_) = false;
  Time look_again_ FRESHET_GUARDED_BY(mutex_){};
  std::size_t active_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool walking_ FRESHET_GUARDED_BY(mutex_) = false;
  bool has_stock_ FRESHET_GUARDED_BY(mutex_) = false;

  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> aside_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace freshet::tier
