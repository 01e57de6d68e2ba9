// SPDX-License-Identifier: Apache-2.0
#include "transport/security/small_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet {

Result<SmallFile> read_small_file(const std::string& path, std::size_t bytes_max) {
  // Non-blocking: opening a pipe must not wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return fail_errno(errno, format("read {}", path));
  SmallFile read;
  if (::fstat(file.get(), &read.status) != 0) return fail_errno(errno, format("read {}", path));
  if (!S_ISREG(read.status.st_mode)) return fail(Code::invalid_argument, format("{} is not a file", path));
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_errno(errno, format("read {}", path));
    if (count == 0) return read;
    read.text.append(buffer.data(), static_cast<std::size_t>(count));
    if (read.text.size() > bytes_max) {
      return fail(Code::invalid_argument, format("{} is longer than {} bytes", path, bytes_max));
    }
  }
}

}  // namespace freshet
