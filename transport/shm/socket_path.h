// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The path of a Unix socket as the kernel takes it: at most 107 bytes. A longer one is reached through the descriptor
/// of its folder (/proc/self/fd/N/NAME), so a deep run directory works like a shallow one.

#include <sys/un.h>

#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

inline constexpr std::size_t kSocketPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

/// Keep it as long as the socket may bind, connect or reconnect. Movable.
class SocketPath {
 public:
  /// invalid_argument unless `path` is absolute, without NUL, and its last component is not empty or too long itself.
  static Result<SocketPath> of(const std::string& path);

  const std::string& text() const { return text_; }
  sockaddr_un address() const;

 private:
  SocketPath(std::string text, FileDescriptor folder) : text_(std::move(text)), folder_(std::move(folder)) {}
  std::string text_;
  FileDescriptor folder_;  ///< Open when text_ goes through it.
};

}  // namespace freshet
