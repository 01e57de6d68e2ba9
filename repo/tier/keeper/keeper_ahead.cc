// SPDX-License-Identifier: Apache-2.0
// The keeper ahead of its readers: what programs told is copied in their order (copies.h says where it goes).

#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "repo/tier/board_file.h"
#include "repo/tier/keeper/keeper.h"

namespace freshet::tier {
namespace {

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
  lookahead_.unblock();
}

void Keeper::end_order(Lookahead::Stream stream, bool stays) {
  {
    const MutexLock lock(mutex_);
    if (stays) {
      lookahead_.leave(stream);
    } else {
      lookahead_.end(stream);
      lookahead_.unblock();
    }
    copies_.see_streams();
    publish_books();
  }
  changed_.notify_all();
}

void Keeper::note_miss(const std::string& path) {
  {
    const MutexLock lock(mutex_);
    if (!lookahead_.missed(path)) return;
    lookahead_.unblock();
    copies_.see_streams();
  }
  changed_.notify_all();
}

bool Keeper::has_orders() const {
  const MutexLock lock(mutex_);
  return !lookahead_.is_empty();
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
    lookahead_.wait_until(system_clock().now() + Duration(young));
    return lookahead_.put_back(std::move(told));
  }
  std::uint32_t tier = kTiersMax;
  std::uint32_t opens = 0;
  Copies::Place place = Copies::Place::nowhere;
  std::vector<HeldCopy> evicted;
  {
    const MutexLock lock(mutex_);
    opens = copies_.opens_of(key);
    place = copies_.place_ahead(identity, told, tier, evicted);
    if (place == Copies::Place::stays || place == Copies::Place::ahead) (void)copies_.begin(key);
    if (place == Copies::Place::waits) {
      lookahead_.block({.bytes = identity.size, .stream = told.stream});
      lookahead_.put_back(told);
    }
  }
  remove_evicted(config_, board_, evicted);
  if (place == Copies::Place::waits) changed_.notify_all();
  if (place != Copies::Place::stays && place != Copies::Place::ahead) return;
  copy_ahead(identity, told, opens, tier, place, slot);
  {
    const MutexLock lock(mutex_);
    copies_.end(key);
  }
  tell_change(board_);
}

void Keeper::copy_ahead(const Identity& identity, const Lookahead::Told& told, std::uint32_t opens, std::uint32_t tier,
                        Copies::Place place, Slot& slot) {
  remove_older(file_key(identity.source, identity.inode));
  FileDescriptor fd;
  const std::optional<OpenSource> source = open_source(told.path, fd);
  const bool is_same = source && source->identity == identity;
  CopyEnd end{.kind = CopyEnd::Kind::changed, .reason = "", .read_bytes = 0};
  if (is_same) {
    end = copy_into(*source, tier, slot);
    settle_copy(*source, tier, end);
  }
  const MutexLock lock(mutex_);
  if (!is_same) copies_.not_made(identity.size, tier);
  copies_.end_ahead(identity, told, opens, tier, place, end.kind == CopyEnd::Kind::made);
}

bool Keeper::unblock() {
  std::vector<HeldCopy> evicted;
  {
    const MutexLock lock(mutex_);
    const std::optional<Lookahead::Blocked> blocked = lookahead_.blocked();
    evicted = copies_.free_for_blocked();
    if (evicted.empty()) return false;
    // Their room is nobody's until they are removed; and there is something to do.
    copies_.hold_room(evicted);
    lookahead_.block(*blocked);
    ++active_;
  }
  remove_evicted(config_, board_, evicted);
  {
    const MutexLock lock(mutex_);
    copies_.give_room(evicted);
    lookahead_.unblock();
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
      while (!lookahead_.blocked() && !stop_.load()) changed_.wait(mutex_);
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
