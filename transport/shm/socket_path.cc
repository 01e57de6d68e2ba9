// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/socket_path.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "core/base/format.h"

namespace freshet {

Result<SocketPath> SocketPath::of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (path.empty() || path.front() != '/' || slash + 1 == path.size() || path.find('\0') != std::string::npos) {
    return fail(Code::invalid_argument, format("socket path \"{}\" is not the absolute path of a file", path));
  }
  if (path.size() <= kSocketPathBytesMax) return SocketPath(path, FileDescriptor());
  FileDescriptor folder(::open(path.substr(0, slash + 1).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno(errno, "open the folder of socket " + path);
  std::string text = format("/proc/self/fd/{}/{}", folder.get(), path.substr(slash + 1));
  if (text.size() > kSocketPathBytesMax) {
    return fail(Code::invalid_argument, format("socket path {}: its file name is too long", path));
  }
  return SocketPath(std::move(text), std::move(folder));
}

sockaddr_un SocketPath::address() const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, text_.c_str(), text_.size() + 1);
  return address;
}

}  // namespace freshet
