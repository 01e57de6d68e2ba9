// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/folder_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "transport/shm/socket_path.h"

namespace freshet {
namespace {

constexpr mode_t kMine = 0700;

Result<std::string> absolute(const std::string& folder) {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::absolute(folder, failure);
  if (failure) return fail_errno(failure.value(), folder);
  return (path / "serve").lexically_normal().string();
}

/// Nobody else can enter it.
Status check_mine(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return fail_errno(errno, path);
  if (S_ISDIR(found.st_mode) && (found.st_uid == ::geteuid() || ::geteuid() == 0) &&
      (found.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
    return {};
  }
  return fail(Code::failed_precondition, path + " is not a folder of this user alone");
}

}  // namespace

Result<std::string> folder_socket(const std::string& folder) {
  FRESHET_ASSIGN(const std::string path, absolute(folder));
  return "ipc://" + path + "/socket";
}

Status prepare_folder_socket(const std::string& folder) {
  FRESHET_ASSIGN(const std::string path, absolute(folder));
  if (::mkdir(path.c_str(), kMine) != 0 && errno != EEXIST) return fail_errno(errno, path);
  return check_mine(path);
}

bool is_folder_offered(const std::string& folder) {
  const Result<std::string> path = absolute(folder);
  if (!path || !check_mine(*path)) return false;
  const Result<SocketPath> socket_path = SocketPath::of(*path + "/socket");
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_path || !socket) return false;
  const sockaddr_un address = socket_path->address();
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN;
}

}  // namespace freshet
