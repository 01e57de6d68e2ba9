// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/board_file.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "core/base/env.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {
namespace {

constexpr std::uint64_t kTotalsMagic = 0x32306c61'746f5446;  // "FTotal02"
constexpr const char* kTotalsName = "/.freshet-totals";
constexpr const char* kMadeName = "/.freshet-made";

Result<std::string> board_folder() {
  const std::string folder = format("{}{}", kBoardFolder, ::geteuid());
  struct stat info {};
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, format("make {}", folder));
  if (::lstat(folder.c_str(), &info) != 0) return fail_errno(errno, format("look at {}", folder));
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return fail(Code::failed_precondition, format("other users have access to {}: remove it", folder));
  }
  return folder;
}

/// nullptr when it is no board of ours.
Board* map_board_file(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || info.st_size != static_cast<off_t>(sizeof(Board))) return nullptr;
  void* place = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (place == MAP_FAILED) return nullptr;
  auto* board = static_cast<Board*>(place);
  if (is_sound(*board)) return board;
  ::munmap(place, sizeof(Board));
  return nullptr;
}

void put_board_text(char* to, std::size_t room, const std::string& text) {
  const std::size_t bytes = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), bytes);
  to[bytes] = '\0';
}

void load_totals(const Config& config, Board& board) {
  for (const TierConfig& tier : config.tiers) {
    if (!check_own_tier(tier.path)) continue;
    std::ifstream in(tier.path + kTotalsName, std::ios::binary);
    std::uint64_t head[2] = {};
    if (!in.read(reinterpret_cast<char*>(head), sizeof head) || head[0] != kTotalsMagic || head[1] != sizeof(Counters))
      continue;
    auto counters = std::make_unique<Counters>();
    if (!in.read(reinterpret_cast<char*>(counters.get()), sizeof(Counters))) continue;
    std::uint64_t runs = 0;
    if (!in.read(reinterpret_cast<char*>(&runs), sizeof runs) || runs >= kNoRun) continue;
    board.counters = *counters;
    board.runs = static_cast<std::uint32_t>(runs);
    std::uint64_t slot[3];
    while (in.read(reinterpret_cast<char*>(slot), sizeof slot)) {
      if (slot[0] >= kFilesCounted) continue;
      board.file_opens[slot[0]] = slot[1];
      board.file_runs[slot[0]] = static_cast<std::uint32_t>(std::min(slot[2], runs));
    }
    return;
  }
}

void describe_config(const Config& config, Board& board) {
  board.magic = kBoardMagic;
  board.source_count = static_cast<std::uint32_t>(config.sources.size());
  board.tier_count = static_cast<std::uint32_t>(config.tiers.size());
  board.waits = config.first_open_waits ? 1 : 0;
  board.never_validates = config.never_validates ? 1 : 0;
  board.threads = config.threads;
  board.wait_ns = static_cast<std::uint64_t>(config.wait.count());
  board.made = made_of(config.tiers[0].path);
  board.room_bytes = ~std::uint64_t{0};
  put_board_text(board.config_path, kPathRoom, config.file);
  for (std::size_t i = 0; i < config.sources.size(); ++i)
    put_board_text(board.sources[i].path, kPathRoom, config.sources[i]);
  for (std::size_t i = 0; i < config.tiers.size(); ++i) {
    put_board_text(board.tiers[i].path, kPathRoom, config.tiers[i].path);
    board.tiers[i].quota_bytes = config.tiers[i].quota_bytes;
  }
}

/// Written under another name and then given its own, so that nobody sees half of it. Whoever comes second uses the
/// first's.
Status make_board_file(const Config& config, const std::string& path) {
  const std::string aside = format("{}.{}", path, ::getpid());
  (void)::unlink(aside.c_str());
  const FileDescriptor fd(::open(aside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return fail_errno(errno, format("make {}", aside));
  // A page that is missing when it is written to would be the end of the program.
  int error = ::posix_fallocate(fd.get(), 0, sizeof(Board));
  void* place =
      error == 0 ? ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) : MAP_FAILED;
  if (error == 0 && place == MAP_FAILED) error = errno;
  if (error == 0) {
    auto& board = *static_cast<Board*>(place);
    load_totals(config, board);
    describe_config(config, board);
    ::munmap(place, sizeof(Board));
    if (::link(aside.c_str(), path.c_str()) != 0 && errno != EEXIST) error = errno;
  }
  (void)::unlink(aside.c_str());
  if (error != 0) return fail_errno(error, format("make {} in shared memory", path));
  return {};
}

/// Whether the config that the board was made for still stands there as it was.
bool has_its_config(const Board& board, const std::string& name) {
  std::ifstream in(board.config_path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return in && name == format("{:016x}", hashed(kHashSeed, bytes.data(), bytes.size()));
}

struct flock exclusive_lock_of(std::uint32_t byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

/// Whether a keeper has that board, of whatever version of Freshet it is.
bool has_keeper(const std::string& path) {
  const FileDescriptor lock(::open((path + ".lock").c_str(), O_RDWR | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

/// Boards take memory until the host ends: those of configs that are gone, or were changed, are removed, and those that
/// another version of Freshet left. Programs that still have one mapped keep it.
void sweep_boards(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != 16) continue;
    const std::string path = entry.path().string();
    Board* board = map_board_file(path);
    const bool is_used = (board != nullptr && has_its_config(*board, name)) || has_keeper(path);
    if (board != nullptr) ::munmap(board, sizeof(Board));
    if (is_used) continue;
    for (const char* kind : {"", ".ask", ".ctl", ".lock"}) (void)::unlink((path + kind).c_str());
  }
}

}  // namespace

std::uint64_t made_of(const std::string& tier) {
  if (!check_own_tier(tier)) return 0;
  std::ifstream in(tier + kMadeName, std::ios::binary);
  std::uint64_t number = 0;
  return in.read(reinterpret_cast<char*>(&number), sizeof number) ? number : 0;
}

Status make_made(const std::string& tier) {
  if (made_of(tier) != 0) return {};
  const std::uint64_t number = random_u64(system_env()) | 1;
  const Bytes pieces[] = {std::as_bytes(std::span(&number, 1))};
  return write_file_atomically(system_env(), tier + kMadeName, pieces, /*sync=*/true);
}

FileDescriptor open_lock_file(const std::string& board_path) {
  return FileDescriptor(::open((board_path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
}

bool lock_byte(int lock_file, std::uint32_t byte) {
  struct flock lock = exclusive_lock_of(byte);
  return ::fcntl(lock_file, F_OFD_SETLK, &lock) == 0;
}

bool is_byte_locked(int lock_file, std::uint32_t byte) {
  struct flock lock = exclusive_lock_of(byte);
  return ::fcntl(lock_file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

FileDescriptor begin_run(const BoardFile& file) {
  Board& board = file.board();
  const std::uint32_t number = __atomic_add_fetch(&board.runs, 1, __ATOMIC_ACQ_REL);
  const std::uint64_t live = std::uint64_t{static_cast<std::uint32_t>(::getpid())} << 32 | number;
  FileDescriptor lock = open_lock_file(file.path());
  for (std::uint32_t place = 0; lock && place < kLiveRuns; ++place) {
    if (!lock_byte(lock.get(), kRunByte + place)) continue;
    store(board.live_runs[place], live);
    break;
  }
  return lock;
}

void tell_change(Board& board) {
  __atomic_fetch_add(&board.changes, 1, __ATOMIC_RELEASE);
  (void)::syscall(SYS_futex, &board.changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void hint_path(Board& board, const std::string& path) { hint_at(board, hashed(kHashSeed, path.data(), path.size())); }

void refuse_unopened(Board& board, const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return;
  const std::uint32_t place = source_on(board, device_of(file));
  if (place == kSourcesMax) return;
  refuse_copy(board, identity_key(identity_of(place, file)));
  tell_change(board);
}

std::uint64_t device_at(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return device_of(info);
}

std::uint64_t device_of(const struct stat& file) {
  return std::uint64_t{major(file.st_dev)} << 32 | minor(file.st_dev);
}

std::string board_path(const Config& config) { return format("{}{}/{:016x}", kBoardFolder, ::geteuid(), config.hash); }

Result<BoardFile> BoardFile::open(const Config& config) {
  FRESHET_ASSIGN(const std::string folder, board_folder());
  const std::string path = board_path(config);
  Board* board = map_board_file(path);
  // Counters are of the tiers that were there: other ones in their place begin anew.
  // (0: it is just being made by a keeper.)
  const bool is_of_others =
      board != nullptr && load(board->made) != 0 && load(board->made) != made_of(config.tiers[0].path);
  if (is_of_others && !has_keeper(path)) {
    ::munmap(board, sizeof(Board));
    board = nullptr;
  }
  if (board == nullptr) {
    (void)::unlink(path.c_str());
    sweep_boards(folder);
    FRESHET_TRY(make_board_file(config, path));
    board = map_board_file(path);
  }
  if (board == nullptr) return fail(Code::unavailable, format("{}: another process is changing it", path));
  for (std::size_t i = 0; i < config.sources.size(); ++i) store(board->sources[i].device, device_at(config.sources[i]));
  for (std::size_t i = 0; i < config.tiers.size(); ++i) store(board->tiers[i].device, device_at(config.tiers[i].path));
  return BoardFile(path, board);
}

BoardFile::BoardFile(BoardFile&& other) noexcept
    : path_(std::move(other.path_)), board_(std::exchange(other.board_, nullptr)) {}
BoardFile& BoardFile::operator=(BoardFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(board_, other.board_);
  return *this;
}
BoardFile::~BoardFile() {
  if (board_ != nullptr) ::munmap(board_, sizeof(Board));
}

Status save_totals(const Board& board) {
  const std::uint64_t head[2] = {kTotalsMagic, sizeof(Counters)};
  std::vector<std::uint64_t> slots;
  for (std::uint64_t i = 0; i < kFilesCounted; ++i) {
    if (const std::uint64_t slot = load(board.file_opens[i]); slot != 0)
      slots.insert(slots.end(), {i, slot, load(board.file_runs[i])});
  }
  const std::uint64_t runs = load(board.runs);
  const auto counters = std::make_unique<Counters>();
  copy_counters(board.counters, *counters);
  const Bytes pieces[] = {std::as_bytes(std::span(head)), std::as_bytes(std::span(counters.get(), 1)),
                          std::as_bytes(std::span(&runs, 1)), std::as_bytes(std::span<const std::uint64_t>(slots))};
  Status last = fail(Code::unavailable, "every tier is off");
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    if (load(board.tiers[i].off) != 0) continue;
    last = write_file_atomically(system_env(), std::string(board.tiers[i].path) + kTotalsName, pieces, /*sync=*/false);
    if (last) return last;
  }
  return last;
}

}  // namespace freshet::tier
