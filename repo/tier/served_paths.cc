// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/served_paths.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "core/base/file_descriptor.h"
#include "repo/tier/board_file.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {
namespace {

void tell_keeper(const BoardFile& board, const std::string& request) {
  const std::size_t bytes = request.size() + 1;
  if (bytes > kRequestBytesMax) return;
  // For both directions: a pipe that nobody reads is a signal to who writes.
  const FileDescriptor pipe(::open((board.path() + ".ask").c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat seen {};
  if (!pipe || ::fstat(pipe.get(), &seen) != 0 || !S_ISFIFO(seen.st_mode)) return;
  if (::write(pipe.get(), request.c_str(), bytes) != static_cast<ssize_t>(bytes))
    add(board.board().counters.lost_requests, 1);
}

/// Counts an open, and wakes a keeper that waits for one.
void count(Board& board, std::uint64_t key, std::uint64_t bytes, bool hit) {
  std::uint32_t nth = 0;
  if (count_open(board, key, bytes, hit, nth))
    (void)::syscall(SYS_futex, &board.awaits_open, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool is_finished(const std::string& tier, const std::string& copy, const Identity& identity) {
  struct stat seen {};
  return check_own_tier(tier) && ::lstat(copy.c_str(), &seen) == 0 && is_finished_copy(seen, identity, ::geteuid());
}

}  // namespace

ServedPaths::ServedPaths(BoardFile board) : board_(std::make_unique<BoardFile>(std::move(board))) {}
ServedPaths::ServedPaths(ServedPaths&& other) noexcept = default;
ServedPaths& ServedPaths::operator=(ServedPaths&& other) noexcept = default;
ServedPaths::~ServedPaths() = default;

Result<ServedPaths> ServedPaths::open(const Config& config) {
  FRESHET_ASSIGN(BoardFile board, BoardFile::open(config));
  return ServedPaths(std::move(board));
}

std::string ServedPaths::place_of(const std::string& path) const {
  Board& board = board_->board();
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return path;
  const std::uint32_t source = source_on(board, device_of(file));
  if (source == kSourcesMax) return path;
  const Identity identity = identity_of(source, file);
  const std::uint64_t key = file_key(source, identity.inode);
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    std::string copy = copy_path(board.tiers[i].path, identity);
    if (!is_finished(board.tiers[i].path, copy, identity)) continue;
    count(board, key, identity.size, /*hit=*/true);
    return copy;
  }
  // Links and `..` may lead out of the sources. No copy is of what lies there.
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  if (error || !is_below_source(board, real.data(), real.size())) return path;
  count(board, key, identity.size, /*hit=*/false);
  if (identity.size <= load(board.room_bytes)) {
    tell_keeper(*board_, real);
  } else {
    store(board.wants_room, std::uint32_t{1});
    if (load(board.follows) != 0) tell_keeper(*board_, kMissMark + real);
  }
  return path;
}

}  // namespace freshet::tier
