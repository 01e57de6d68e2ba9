// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper/keeper.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/format.h"
#include "repo/tier/board_file.h"
#include "repo/tier/path_links.h"

namespace freshet::tier {
namespace {

/// One turn of so many is for what programs opened, while others tell what they will.
constexpr std::uint64_t kTurnsOfTold = 8;
/// Copies that are written and not yet synced, at most, beside those that are being written.
constexpr unsigned kSyncing = 28;
/// A change within one tick of the source's clock leaves no mark. Where times are whole seconds, the tick is one.
constexpr std::int64_t kTickNs = 100'000'000;
constexpr std::int64_t kWholeTickNs = 2'100'000'000;
/// A server's clock that is further ahead than that is wrong; its files would wait for ever.
constexpr std::int64_t kAheadSecondsMax = 60;
constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

std::int64_t young_for_ns(const Identity& identity) {
  const std::int64_t tick = identity.mtime_ns == 0 && identity.ctime_ns == 0 ? kWholeTickNs : kTickNs;
  const std::int64_t now = system_clock().unix_ns();
  const std::int64_t seconds = now / kSecondNs - identity.ctime;
  if (seconds > kAheadSecondsMax || seconds < -kAheadSecondsMax) return 0;
  const std::int64_t age = seconds * kSecondNs + now % kSecondNs - identity.ctime_ns;
  return age >= tick ? 0 : tick - age;
}

namespace {

std::string real_path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t got = ::readlink(format("/proc/self/fd/{}", fd).c_str(), path, sizeof path);
  return got > 0 && got < static_cast<ssize_t>(sizeof path) ? std::string(path, static_cast<std::size_t>(got))
                                                            : std::string();
}

/// `held` is this keeper's lock of the tier, if it has one; a folder that was made anew is locked anew.
Status lock_tier(const std::string& tier, FileDescriptor& held) {
  const std::string path = tier + "/.freshet-lock";
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return fail_errno(errno, format("lock {}", tier));
  struct stat ours {};
  struct stat there {};
  if (held && ::fstat(held.get(), &ours) == 0 && ::fstat(fd.get(), &there) == 0 && ours.st_ino == there.st_ino &&
      ours.st_dev == there.st_dev) {
    return {};
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno(errno, format("lock {}", tier));
    return fail(Code::already_exists, format("another keeper has the tier {}", tier));
  }
  held = std::move(fd);
  return {};
}

/// Makes, locks and sweeps a tier.
Status take_tier(const Config& config, Board& board, std::uint32_t tier, FileDescriptor& lock) {
  const std::string& path = config.tiers[tier].path;
  FRESHET_TRY(prepare_tier(path));
  FRESHET_TRY(lock_tier(path, lock));
  FRESHET_TRY(sweep_tier(path));
  if (tier == 0) {
    FRESHET_TRY(make_made(path));
    store(board.made, made_of(path));
  }
  store(board.tiers[tier].device, device_at(path));
  store(board.tiers[tier].off, std::uint32_t{0});
  return {};
}

void lower_own_priority() {
  constexpr int kBestEffortLowest = 2 << 13 | 7;
  (void)::syscall(SYS_ioprio_set, 1, 0, kBestEffortLowest);
}

}  // namespace

Keeper::Keeper(const Config& config, Board& board, std::function<void()> on_idle)
    : config_(config),
      board_(board),
      on_idle_(std::move(on_idle)),
      locks_(config.tiers.size()),
      copies_(config_, board_, lookahead_) {}

Result<std::unique_ptr<Keeper>> Keeper::open(const Config& config, Board& board, std::function<void()> on_idle) {
  std::unique_ptr<Keeper> keeper(new Keeper(config, board, std::move(on_idle)));
  for (std::uint32_t i = 0; i < config.tiers.size(); ++i) {
    if (Status taken = take_tier(config, board, i, keeper->locks_[i]); !taken) {
      if (taken.error().code() == Code::already_exists) return fail(Code::failed_precondition, taken.error().message());
      const MutexLock lock(keeper->mutex_);
      keeper->turn_off(i, taken.error().message());
    }
  }
  // One at a time is just that, and the copies are made in the order in which they were asked for.
  const unsigned workers = config.threads == 1 ? 1 : config.threads + kSyncing;
  for (unsigned i = 0; i < workers; ++i) keeper->threads_.emplace_back([&self = *keeper] { self.work(); });
  keeper->threads_.emplace_back([&self = *keeper] { self.walk(); });
  keeper->threads_.emplace_back([&self = *keeper] { self.scrub(); });
  keeper->threads_.emplace_back([&self = *keeper] { self.follow(); });
  return keeper;
}

Keeper::~Keeper() {
  {
    const MutexLock lock(mutex_);
    stop_.store(true);
  }
  changed_.notify_all();
  slot_free_.notify_all();
  ends_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Keeper::turn_off(std::uint32_t tier, const std::string& reason) {
  copies_.turn_off(tier);
  char* to = board_.tiers[tier].reason;
  const std::size_t bytes = std::min(reason.size(), sizeof board_.tiers[tier].reason - 1);
  std::memcpy(to, reason.data(), bytes);
  to[bytes] = '\0';
  store(board_.tiers[tier].off, std::uint32_t{1});
  publish_books();
}

void Keeper::publish_books() {
  for (std::uint32_t i = 0; i < config_.tiers.size(); ++i) {
    store(board_.tiers[i].used_bytes, copies_.used_bytes(i));
    store(board_.tiers[i].files, copies_.files(i));
  }
  store(board_.room_bytes, copies_.room_bytes());
  store(board_.queued_files, requests_.files() + active_ + (lookahead_.blocked() ? 0 : lookahead_.waiting()));
  store(board_.follows, lookahead_.is_empty() ? std::uint32_t{0} : std::uint32_t{1});
}

void Keeper::ask(std::string path) {
  {
    const MutexLock lock(mutex_);
    if (lookahead_.missed(path)) lookahead_.unblock();
    const Requests::Asked asked = requests_.ask(std::move(path));
    if (asked == Requests::Asked::known) return;
    if (asked == Requests::Asked::lost) return add(board_.counters.lost_requests, 1);
    publish_books();
  }
  changed_.notify_all();
}

Status Keeper::prefetch(std::string path) {
  {
    const MutexLock lock(mutex_);
    FRESHET_TRY(requests_.add_root(std::move(path)));
    copies_.look_for_room();
  }
  changed_.notify_all();
  return {};
}

bool Keeper::is_idle_now() const {
  return has_stock_ && requests_.is_empty() && active_ == 0 && !walking_ && !should_look_ &&
         (lookahead_.blocked() || !lookahead_.has_next());
}

bool Keeper::is_idle() const {
  const MutexLock lock(mutex_);
  return is_idle_now();
}

void Keeper::forget(const Identity& identity) {
  {
    const MutexLock lock(mutex_);
    if (!copies_.strike(file_key(identity.source, identity.inode), &identity)) return;
    publish_books();
  }
  changed_.notify_all();
}

void Keeper::try_again() {
  for (std::uint32_t i = 0; i < config_.tiers.size(); ++i) {
    {
      const MutexLock lock(mutex_);
      if (!copies_.is_off(i) || copies_.is_any_being_made() || !has_stock_) continue;
    }
    const std::string probe = format("{}/{}copy-probe", config_.tiers[i].path, kOwnPrefix);
    if (!prepare_tier(config_.tiers[i].path)) continue;
    const FileDescriptor fd(::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const std::string bytes(std::size_t{1} << 16, 'x');
    const bool works = fd && ::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
                       ::fsync(fd.get()) == 0;
    if (fd) (void)::unlink(probe.c_str());
    if (!works) continue;
    if (!lock_tier(config_.tiers[i].path, locks_[i])) continue;
    if (!take_stock_of(i)) continue;
    const MutexLock lock(mutex_);
    copies_.turn_on(i);
    store(board_.tiers[i].device, device_at(config_.tiers[i].path));
    store(board_.tiers[i].off, std::uint32_t{0});
    publish_books();
  }
}

void Keeper::Slot::give_up() {
  if (!held_) return;
  held_ = false;
  {
    const MutexLock lock(keeper_.mutex_);
    --keeper_.slots_taken_;
  }
  keeper_.slot_free_.notify_one();
}

bool Keeper::take_next(Job& job, Time now) {
  job = {};
  if (std::optional<std::string> due = requests_.next_due(now)) {
    job.request.path = *std::move(due);
    return true;
  }
  // What was told comes first: to copy what a program has just read would keep the keeper behind the program.
  if (lookahead_.may_begin(now) && (!requests_.has_next() || ++turns_ % kTurnsOfTold != 0)) {
    job.told = lookahead_.next();
    return true;
  }
  if (!requests_.has_next()) return false;
  job.request = requests_.next();
  return true;
}

bool Keeper::next(Job& job) {
  const MutexLock lock(mutex_);
  while (slots_taken_ >= config_.threads && !stop_.load()) slot_free_.wait(mutex_);
  ++slots_taken_;
  for (;;) {
    if (stop_.load()) return false;
    const Time now = system_clock().now();
    if (has_stock_ && take_next(job, now)) break;
    const std::optional<Time> due = requests_.next_due_at();
    const std::optional<Time> begins = lookahead_.begins_at(now);
    if (has_stock_ && (due || begins)) {
      (void)changed_.wait_until(mutex_, std::min(due.value_or(Time::max()), begins.value_or(Time::max())));
    } else {
      changed_.wait(mutex_);
    }
  }
  ++active_;
  return true;
}

void Keeper::work() {
  lower_own_priority();
  Job job;
  while (next(job)) {
    const Lookahead::Stream stream = job.told ? job.told->stream : 0;
    Slot slot(*this);
    if (job.told) {
      fetch(std::move(*job.told), slot);
    } else {
      handle(job.request.path, slot);
    }
    bool idle = false;
    {
      const MutexLock lock(mutex_);
      --active_;
      if (job.request.was_asked) requests_.done(job.request.path);
      if (stream != 0) {
        lookahead_.done(stream);
        copies_.see_streams();
      }
      publish_books();
      idle = is_idle_now();
    }
    changed_.notify_all();
    if (idle) on_idle_();
  }
}

std::optional<OpenSource> Keeper::open_source(const std::string& path, FileDescriptor& fd) {
  fd = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat file {};
  if (!fd || ::fstat(fd.get(), &file) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) add(board_.counters.source_faults, 1);
    refuse_unopened(board_, path);
    const MutexLock lock(mutex_);
    requests_.forget_deferral(path);
    return std::nullopt;
  }
  if (!S_ISREG(file.st_mode)) return std::nullopt;
  OpenSource source{.fd = fd.get(), .path = real_path_of(fd.get())};
  const std::uint32_t place = source_on(board_, device_of(file));
  if (place == kSourcesMax || !is_below_source(board_, source.path.data(), source.path.size())) return std::nullopt;
  // A link: who opens the file by it may be served without an open at the source too.
  if (path != source.path) hint_path(board_, path);
  source.identity = identity_of(place, file);
  source.note = {.blocks = static_cast<std::uint64_t>(file.st_blocks),
                 .mode = file.st_mode,
                 .owner = file.st_uid,
                 .group = file.st_gid,
                 .links = static_cast<std::uint32_t>(file.st_nlink)};
  if (const std::int64_t young = young_for_ns(source.identity); young > 0) {
    const MutexLock lock(mutex_);
    if (!requests_.defer(source.path, system_clock().now() + Duration(young))) {
      refuse_copy(board_, identity_key(source.identity));
    }
    return std::nullopt;
  }
  return source;
}

void Keeper::handle(const std::string& path, Slot& slot) {
  FileDescriptor fd;
  const std::optional<OpenSource> opened = open_source(path, fd);
  if (!opened) return;
  const OpenSource& source = *opened;
  const std::uint64_t key = file_key(source.identity.source, source.identity.inode);
  std::string known;
  {
    const MutexLock lock(mutex_);
    requests_.forget_deferral(source.path);
    if (!copies_.begin(key)) return;
    if (copies_.has(key, source.identity)) {
      known = copy_path(config_.tiers[copies_.find(key)->tier].path, source.identity);
    }
  }
  struct stat copy_file {};
  const Identity& identity = source.identity;
  // As the reader wants it: a copy that it does not take is made anew.
  const bool is_there =
      !known.empty() && ::lstat(known.c_str(), &copy_file) == 0 && is_finished_copy(copy_file, identity, ::geteuid());
  if (is_there) {
    hint_path(board_, source.path);
  } else {
    // Where something that is no file took its name, it stays: it is not ours, and is never served.
    remove_older(key);
    copy(source, slot);
  }
  {
    const MutexLock lock(mutex_);
    copies_.end(key);
  }
  tell_change(board_);
}

void Keeper::remove_older(std::uint64_t key) {
  std::optional<HeldCopy> old;
  {
    const MutexLock lock(mutex_);
    old = copies_.strike(key);
  }
  if (old) (void)remove_copy(config_.tiers[old->tier].path, old->identity);
}

CopyEnd Keeper::copy_into(const OpenSource& source, std::uint32_t tier, Slot& slot) {
  CopyEnd end = make_copy(source, config_.tiers[tier].path, ++aside_, stop_, [&slot] { slot.give_up(); });
  if (end.kind == CopyEnd::Kind::made && config_.never_validates)
    link_path(config_.tiers[tier].path, source.path, source.identity, ++aside_);
  return end;
}

void Keeper::copy(const OpenSource& source, Slot& slot) {
  const std::uint64_t key = identity_key(source.identity);
  std::set<std::uint32_t> tried;
  for (;;) {
    std::vector<HeldCopy> evicted;
    std::uint32_t tier = kTiersMax;
    {
      const MutexLock lock(mutex_);
      tier = copies_.reserve(source.identity.size, tried, evicted);
      if (tier == kTiersMax) store(board_.wants_room, std::uint32_t{1});
    }
    remove_evicted(config_, board_, evicted);
    if (tier == kTiersMax) return refuse_copy(board_, key);
    const CopyEnd end = copy_into(source, tier, slot);
    settle_copy(source, tier, end);
    if (end.kind == CopyEnd::Kind::tier_failed) continue;
    if (end.kind != CopyEnd::Kind::made) refuse_copy(board_, key);
    return;
  }
}

void Keeper::settle_copy(const OpenSource& source, std::uint32_t tier, const CopyEnd& end) {
  add(board_.counters.source_read_bytes, end.read_bytes);
  const Identity& identity = source.identity;
  const MutexLock lock(mutex_);
  if (end.kind == CopyEnd::Kind::made) {
    const std::uint64_t key = file_key(identity.source, identity.inode);
    std::uint32_t nth = 0;
    (void)note_file(board_, key, 0, nth);
    copies_.made(identity, tier);
    add(board_.counters.copied_files, 1);
    add(board_.counters.copied_bytes, identity.size);
    mark_made(board_, identity_key(identity));
    hint_path(board_, source.path);
    std::uint64_t& refused = board_.refusals[identity_key(identity) % kRefusals];
    if (load(refused) == identity_key(identity)) store(refused, std::uint64_t{0});
  } else {
    copies_.not_made(identity.size, tier);
    if (end.kind == CopyEnd::Kind::tier_failed) {
      turn_off(tier, end.reason);
      add(board_.counters.fallbacks, 1);
    } else if (end.kind == CopyEnd::Kind::source_failed) {
      add(board_.counters.source_faults, 1);
    }
  }
  publish_books();
}

}  // namespace freshet::tier
