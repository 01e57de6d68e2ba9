// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/served_paths.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/base/file_descriptor.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {
namespace {

void ask_keeper(const std::string& board, const std::string& path) {
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::string at = board + ".ask";
  std::memcpy(to.sun_path, at.data(), std::min(at.size(), sizeof to.sun_path - 1));
  if (!socket) return;
  (void)::sendto(socket.get(), path.data(), path.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

bool is_finished(const std::string& copy, const struct stat& source) {
  struct stat seen {};
  return ::lstat(copy.c_str(), &seen) == 0 && seen.st_mode == (S_IFREG | kCopyMode) && seen.st_size == source.st_size &&
         seen.st_mtim.tv_sec == source.st_mtim.tv_sec && seen.st_mtim.tv_nsec == source.st_mtim.tv_nsec;
}

}  // namespace

Result<ServedPaths> ServedPaths::open(const Config& config) {
  FRESHET_ASSIGN(BoardFile board, BoardFile::open(config));
  return ServedPaths(std::move(board));
}

std::string ServedPaths::place_of(const std::string& path) const {
  Board& board = board_.board();
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return path;
  const std::uint32_t source = source_on(board, device_of(file));
  if (source == kSourcesMax) return path;
  const Identity identity = identity_of(source, file);
  const std::uint64_t key = file_key(source, identity.inode);
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    std::string copy = copy_path(board.tiers[i].path, identity);
    if (!is_finished(copy, file)) continue;
    count_open(board, key, identity.size, /*hit=*/true);
    return copy;
  }
  // Links and `..` may lead out of the sources. No copy is of what lies there.
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  if (error || !is_below_source(board, real.data(), real.size())) return path;
  count_open(board, key, identity.size, /*hit=*/false);
  if (identity.size <= load(board.room_bytes)) ask_keeper(board_.path(), real);
  return path;
}

}  // namespace freshet::tier
