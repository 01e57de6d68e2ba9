// SPDX-License-Identifier: Apache-2.0
// The keeper's threads that go through everything: one counts the copies that it finds, lists folders which are to be
// copied ahead, and looks whether the sources of copies are still there; one reads the copies again.

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "repo/tier/board_file.h"
#include "repo/tier/keeper/keeper.h"
#include "repo/tier/path_links.h"

namespace freshet::tier {
namespace {

/// Copies are read again when nothing was to be copied for that long, once each that long, and so slowly: 16 MiB/s.
constexpr Duration kScrubAfter = std::chrono::seconds(3);
constexpr Duration kScrubEach = std::chrono::hours(24);
constexpr std::uint64_t kScrubNsPerKibibyte = 1'000'000'000 / (16 * 1024);
/// Sources are asked for one by one, which takes a slow one long: not more often than that.
constexpr Duration kBetweenLooks = std::chrono::minutes(10);

bool is_older(const Identity& a, const Identity& b) {
  return std::pair(a.ctime, a.ctime_ns) < std::pair(b.ctime, b.ctime_ns);
}

/// A network's file system that is not mounted leaves an empty folder, or another one: nothing of it is gone.
bool is_mounted(const std::string& source, std::uint64_t device) {
  std::error_code error;
  return device != 0 && device_at(source) == device && !std::filesystem::is_empty(source, error) && !error;
}

bool is_mounted_at(const Config& config, const Board& board, const std::string& path) {
  bool below = false;
  for (std::size_t i = 0; i < config.sources.size(); ++i) {
    if (!path.starts_with(config.sources[i] + "/")) continue;
    below = true;
    if (!is_mounted(config.sources[i], load(board.sources[i].device))) return false;
  }
  return below;
}

bool is_source_gone(const Config& config, const Board& board, const HeldCopy& held) {
  const std::uint32_t place = held.identity.source;
  if (place >= config.sources.size()) return true;
  const std::string path = source_of_copy(config.tiers[held.tier].path, held.identity);
  if (path.empty() || !is_mounted_at(config, board, path)) return false;
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) {
    return (errno == ENOENT || errno == ENOTDIR) && is_mounted_at(config, board, path);
  }
  return device_of(now) == load(board.sources[place].device) && !(identity_of(place, now) == held.identity);
}

}  // namespace

/// Waits for room in the queue; does nothing once no tier has any, or the keeper ends.
void Keeper::push_ahead(std::string path) {
  {
    const MutexLock lock(mutex_);
    while (!requests_.has_room_ahead() && !stop_.load() && !copies_.is_full()) changed_.wait(mutex_);
    if (stop_.load() || copies_.is_full()) return;
    requests_.add_ahead(std::move(path));
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
      if (copies_.is_off(i)) continue;
    }
    const Status counted = take_stock_of(i);
    const MutexLock lock(mutex_);
    if (!counted) turn_off(i, counted.error().message());
  }
  look_at_board();
  const MutexLock lock(mutex_);
  has_stock_ = true;
  if (config_.evicts_unused) copies_.list_unused();
  publish_books();
}

Status Keeper::take_stock_of(std::uint32_t tier) {
  const std::string& path = config_.tiers[tier].path;
  std::unordered_map<std::uint64_t, Identity> found;
  std::uint64_t used = 0;
  FRESHET_TRY(each_copy(path, [&](const Identity& identity, std::uint64_t bytes, bool sound) {
    if (!sound) {
      if (::unlink(copy_path(path, identity).c_str()) != 0) used += bytes;
      return;
    }
    used += bytes;
    const auto [known, is_new] = found.try_emplace(file_key(identity.source, identity.inode), identity);
    if (is_new) return;
    // Of two copies of one file at most one is of today; the next open of it tells which.
    Identity older = identity;
    if (is_older(known->second, identity)) std::swap(known->second, older);
    (void)remove_copy(path, older);
    used -= older.size;
  }));
  if (config_.never_validates) (void)mend_path_links(path);
  std::vector<Identity> identities;
  identities.reserve(found.size());
  for (const auto& [key, identity] : found) identities.push_back(identity);
  const MutexLock lock(mutex_);
  copies_.set_tier(tier, identities, used);
  // What nobody has noted is as if it were new.
  for (const auto& [key, identity] : found) {
    std::uint32_t nth = 0;
    if (config_.evicts_unused && place_of_file(board_, key) == kFilesCounted) (void)note_file(board_, key, 0, nth);
  }
  return {};
}

bool Keeper::wait_until(Time time) {
  const MutexLock lock(mutex_);
  while (!stop_.load() && system_clock().now() < time) (void)ends_.wait_until(mutex_, time);
  return !stop_.load();
}

void Keeper::check_held(std::uint64_t key) {
  HeldCopy known;
  {
    const MutexLock lock(mutex_);
    const HeldCopy* const held = copies_.find(key);
    if (held == nullptr || copies_.is_being_made(key)) return;
    known = *held;
  }
  const std::string& tier = config_.tiers[known.tier].path;
  const CopyCheck check = check_copy(tier, known.identity, [this](std::uint64_t bytes) {
    return wait_until(system_clock().now() + Duration(bytes * kScrubNsPerKibibyte / 1024));
  });
  // What could not be read to its end, for want of a descriptor too, is looked at again tomorrow.
  if (!check.was_read || check.good) return;
  {
    const MutexLock lock(mutex_);
    if (copies_.is_being_made(key) || !copies_.strike(key, &known.identity)) return;
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
      keys = copies_.keys();
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

void Keeper::list_ahead(const std::string& root) {
  namespace files = std::filesystem;
  const auto is_over = [this] {
    const MutexLock lock(mutex_);
    return stop_.load() || copies_.is_full();
  };
  std::error_code error;
  if (!files::is_directory(root, error)) return push_ahead(root);
  files::recursive_directory_iterator at(root, files::directory_options::skip_permission_denied, error);
  for (; !error && at != files::recursive_directory_iterator() && !is_over(); at.increment(error)) {
    std::error_code gone;
    if (at->is_regular_file(gone)) push_ahead(at->path().string());
  }
}

void Keeper::walk() {
  take_stock();
  changed_.notify_all();
  if (is_idle()) on_idle_();
  for (;;) {
    std::optional<std::string> root;
    {
      const MutexLock lock(mutex_);
      while (!requests_.has_roots() && !should_look_ && !stop_.load()) changed_.wait(mutex_);
      if (stop_.load()) return;
      walking_ = true;
      if (!std::exchange(should_look_, false)) root = requests_.next_root();
    }
    if (root) {
      list_ahead(*root);
    } else {
      look_for_sources();
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

void Keeper::look_at_board() {
  if (!config_.evicts_unused) return;
  const FileDescriptor locks = open_lock_file(board_path(config_));
  const std::uint32_t oldest =
      oldest_run(board_, [&](std::uint32_t place) { return is_byte_locked(locks.get(), kRunByte + place); });
  const bool wants_room = load(board_.wants_room) != 0;
  const MutexLock lock(mutex_);
  if (copies_.set_oldest_run(oldest)) {
    copies_.list_unused();
    publish_books();
  }
  if (const Time now = system_clock().now(); wants_room && now >= look_again_) {
    store(board_.wants_room, std::uint32_t{0});
    look_again_ = now + kBetweenLooks;
    should_look_ = true;
    changed_.notify_all();
  }
}

void Keeper::look_for_sources() {
  std::vector<std::uint64_t> keys;
  {
    const MutexLock lock(mutex_);
    keys = copies_.keys();
  }
  for (const std::uint64_t key : keys) {
    std::optional<HeldCopy> known;
    {
      const MutexLock lock(mutex_);
      if (stop_.load()) return;
      if (const HeldCopy* const held = copies_.find(key); held != nullptr && !copies_.is_being_made(key)) known = *held;
    }
    if (!known || !is_source_gone(config_, board_, *known)) continue;
    std::vector<HeldCopy> evicted;
    {
      const MutexLock lock(mutex_);
      if (!copies_.is_being_made(key)) {
        if (const auto gone = copies_.strike(key, &known->identity)) evicted.push_back(*gone);
      }
      copies_.look_for_room();
      publish_books();
    }
    remove_evicted(config_, board_, evicted);
  }
}

}  // namespace freshet::tier
