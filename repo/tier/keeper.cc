// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "core/base/format.h"
#include "repo/tier/board_file.h"
#include "repo/tier/path_links.h"

namespace freshet::tier {
namespace {

constexpr std::size_t kRootsMax = 100'000;
constexpr std::size_t kLaterMax = 100'000;
/// One turn of so many is for what programs opened, while others tell what they will.
constexpr std::uint64_t kTurnsOfTold = 8;
/// Copies that are written and not yet synced, at most, beside those that are being written.
constexpr unsigned kSyncing = 28;
constexpr int kDeferralsMax = 3;  ///< Of a file that changes each time it is looked at.
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
      unused_(config.tiers.size()),
      unused_bytes_(config.tiers.size()),
      used_(config.tiers.size()),
      files_(config.tiers.size()),
      off_(config.tiers.size()) {}

Result<std::unique_ptr<Keeper>> Keeper::open(const Config& config, Board& board, std::function<void()> on_idle) {
  std::unique_ptr<Keeper> keeper(new Keeper(config, board, std::move(on_idle)));
  for (std::uint32_t i = 0; i < config.tiers.size(); ++i) {
    if (Status taken = keeper->take(i); !taken) {
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

Status Keeper::take(std::uint32_t tier) {
  const std::string& path = config_.tiers[tier].path;
  FRESHET_TRY(prepare_tier(path));
  FRESHET_TRY(lock_tier(path, locks_[tier]));
  FRESHET_TRY(sweep_tier(path));
  if (tier == 0) {
    FRESHET_TRY(make_made(path));
    store(board_.made, made_of(path));
  }
  store(board_.tiers[tier].device, device_at(path));
  store(board_.tiers[tier].off, std::uint32_t{0});
  return {};
}

void Keeper::turn_off(std::uint32_t tier, const std::string& reason) {
  off_[tier] = true;
  char* to = board_.tiers[tier].reason;
  const std::size_t bytes = std::min(reason.size(), sizeof board_.tiers[tier].reason - 1);
  std::memcpy(to, reason.data(), bytes);
  to[bytes] = '\0';
  store(board_.tiers[tier].off, std::uint32_t{1});
  publish_books();
}

void Keeper::tell_change() {
  __atomic_fetch_add(&board_.changes, 1, __ATOMIC_RELEASE);
  (void)::syscall(SYS_futex, &board_.changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Keeper::ask(std::string path) {
  {
    const MutexLock lock(mutex_);
    if (lookahead_.missed(path)) is_blocked_ = false;
    if (wanted_.contains(path)) return;
    // As much as may be told ahead: an epoch of a million files may begin faster than it is copied.
    if (asked_.size() >= Lookahead::kToldMax || asked_bytes_ + path.size() > Lookahead::kToldBytesMax) {
      add(board_.counters.lost_requests, 1);
      return;
    }
    asked_bytes_ += path.size();
    asked_.push_back(&*wanted_.insert(std::move(path)).first);
    publish_books();
  }
  changed_.notify_all();
}

Status Keeper::prefetch(std::string path) {
  {
    const MutexLock lock(mutex_);
    if (roots_.size() >= kRootsMax) return fail(Code::out_of_space, "too many paths wait to be copied: settle first");
    roots_.push_back(std::move(path));
    is_full_ = false;
  }
  changed_.notify_all();
  return {};
}

bool Keeper::is_idle_now() const {
  return has_stock_ && asked_.empty() && ahead_.empty() && roots_.empty() && later_.empty() && active_ == 0 &&
         !walking_ && !should_look_ && (is_blocked_ || !lookahead_.has_next());
}

bool Keeper::is_idle() const {
  const MutexLock lock(mutex_);
  return is_idle_now();
}

void Keeper::forget(const Identity& identity) {
  {
    const MutexLock lock(mutex_);
    const auto found = held_.find(file_key(identity.source, identity.inode));
    if (found == held_.end() || !(found->second.identity == identity)) return;
    (void)strike(found);
    publish_books();
  }
  changed_.notify_all();
}

void Keeper::try_again() {
  for (std::uint32_t i = 0; i < config_.tiers.size(); ++i) {
    {
      const MutexLock lock(mutex_);
      if (!off_[i] || !copying_.empty() || !has_stock_) continue;
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
    std::uint64_t used = 0;
    std::uint64_t files = 0;
    std::vector<Identity> found;
    if (!each_copy(config_.tiers[i].path, [&](const Identity& identity, std::uint64_t size, bool sound) {
          used += size;
          files += sound ? 1 : 0;
          if (sound) found.push_back(identity);
        })) {
      continue;
    }
    const MutexLock lock(mutex_);
    std::erase_if(held_, [&](const auto& entry) { return entry.second.tier == i; });
    if (i == reserve_tier_) {
      reserve_.clear();
      told_.clear();
      ahead_bytes_ = 0;
    }
    for (const Identity& identity : found)
      held_[file_key(identity.source, identity.inode)] = {.identity = identity, .tier = i};
    used_[i] = used;
    files_[i] = files;
    off_[i] = false;
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

/// With a slot, when it says true.
bool Keeper::next(Job& job) {
  const MutexLock lock(mutex_);
  while (slots_taken_ >= config_.threads && !stop_.load()) slot_free_.wait(mutex_);
  ++slots_taken_;
  for (;;) {
    if (stop_.load()) return false;
    job = {};
    if (!has_stock_) {
      changed_.wait(mutex_);
      continue;
    }
    const Time now = system_clock().now();
    const bool queued = !asked_.empty() || !ahead_.empty();
    // What was told comes first: to copy what a program has just read would keep the keeper behind the program.
    const bool tells =
        lookahead_.has_next() && !is_blocked_ && now >= told_from_ && (!queued || ++turns_ % kTurnsOfTold != 0);
    if (!later_.empty() && later_.begin()->first <= now) {
      job.path = std::move(later_.begin()->second);
      later_.erase(later_.begin());
      deferred_[job.path].waits = false;
    } else if (tells) {
      job.told = lookahead_.next();
    } else if (!asked_.empty()) {
      job.path = *asked_.front();
      job.was_asked = true;
      asked_bytes_ -= job.path.size();
      asked_.pop_front();
    } else if (!ahead_.empty()) {
      job.path = std::move(ahead_.front());
      ahead_.pop_front();
    } else if (!later_.empty() || (lookahead_.has_next() && now < told_from_)) {
      const Time by = later_.empty() ? told_from_ : later_.begin()->first;
      (void)changed_.wait_until(mutex_, lookahead_.has_next() && told_from_ > now ? std::min(by, told_from_) : by);
      continue;
    } else {
      changed_.wait(mutex_);
      continue;
    }
    ++active_;
    return true;
  }
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
      handle(job.path, slot);
    }
    bool idle = false;
    {
      const MutexLock lock(mutex_);
      --active_;
      if (job.was_asked) wanted_.erase(job.path);
      if (stream != 0) {
        lookahead_.done(stream);
        see_streams();
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
    refuse_unopened(path);
    const MutexLock lock(mutex_);
    deferred_.erase(path);
    return std::nullopt;
  }
  if (!S_ISREG(file.st_mode)) return std::nullopt;
  OpenSource source{.fd = fd.get(), .path = real_path_of(fd.get())};
  const std::uint32_t place = source_on(board_, device_of(file));
  if (place == kSourcesMax || !is_below_source(board_, source.path.data(), source.path.size())) return std::nullopt;
  // A link: who opens the file by it may be served without an open at the source too.
  if (path != source.path) hint_path(path);
  source.identity = identity_of(place, file);
  source.note = {.blocks = static_cast<std::uint64_t>(file.st_blocks),
                 .mode = file.st_mode,
                 .owner = file.st_uid,
                 .group = file.st_gid,
                 .links = static_cast<std::uint32_t>(file.st_nlink)};
  if (const std::int64_t young = young_for_ns(source.identity); young > 0) {
    defer(source, Duration(young));
    return std::nullopt;
  }
  return source;
}

void Keeper::hint_path(const std::string& path) { hint_at(board_, hashed(kHashSeed, path.data(), path.size())); }

void Keeper::refuse_unopened(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return;
  const std::uint32_t place = source_on(board_, device_of(file));
  if (place == kSourcesMax) return;
  refuse_copy(board_, identity_key(identity_of(place, file)));
  tell_change();
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
    deferred_.erase(source.path);
    if (!copying_.insert(key).second) return;
    if (const auto held = held_.find(key); held != held_.end() && held->second.identity == source.identity) {
      known = copy_path(config_.tiers[held->second.tier].path, source.identity);
    }
  }
  struct stat copy_file {};
  const Identity& identity = source.identity;
  // As the reader wants it: a copy that it does not take is made anew.
  const bool is_there =
      !known.empty() && ::lstat(known.c_str(), &copy_file) == 0 && is_finished_copy(copy_file, identity, ::geteuid());
  if (is_there) {
    hint_path(source.path);
  } else {
    // Where something that is no file took its name, it stays: it is not ours, and is never served.
    if (const auto old = release_held(key); old) (void)remove_copy(config_.tiers[old->tier].path, old->identity);
    copy(source, slot);
  }
  {
    const MutexLock lock(mutex_);
    end_copying(key);
  }
  tell_change();
}

void Keeper::defer(const OpenSource& source, Duration by) {
  const MutexLock lock(mutex_);
  const auto known = deferred_.find(source.path);
  if (known != deferred_.end() && known->second.waits) return;
  const int times = known == deferred_.end() ? 0 : known->second.times;
  if (times == kDeferralsMax || (known == deferred_.end() && deferred_.size() >= kLaterMax)) {
    deferred_.erase(source.path);
    return refuse_copy(board_, identity_key(source.identity));
  }
  deferred_[source.path] = {.times = times + 1, .waits = true};
  later_.emplace(system_clock().now() + by, source.path);
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
    const std::uint32_t tier = reserve(source.identity, tried);
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
    held_[key] = {.identity = identity, .tier = tier};
    ++files_[tier];
    add(board_.counters.copied_files, 1);
    add(board_.counters.copied_bytes, identity.size);
    mark_made(board_, identity_key(identity));
    hint_path(source.path);
    std::uint64_t& refused = board_.refusals[identity_key(identity) % kRefusals];
    if (load(refused) == identity_key(identity)) store(refused, std::uint64_t{0});
  } else {
    used_[tier] -= std::min(used_[tier], identity.size);
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
