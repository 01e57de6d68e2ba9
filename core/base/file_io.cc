// SPDX-License-Identifier: Apache-2.0
#include "core/base/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "core/base/format.h"

namespace freshet {

Result<OpenedFile> open_regular(const std::string& path, int flags) {
  OpenedFile file{.descriptor = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags))};
  if (!file.descriptor || ::fstat(file.descriptor.get(), &file.status) != 0) return fail_errno(errno, path);
  if (!S_ISREG(file.status.st_mode)) return refuse(format("{}: not a regular file", path));
  return file;
}

Status check_unchanged(const OpenedFile& file, std::string_view name) {
  struct stat now {};
  if (::fstat(file.descriptor.get(), &now) != 0) return fail_errno(errno, format("look at {} again", name));
  const struct stat& then = file.status;
  if (then.st_size == now.st_size && then.st_mtim.tv_sec == now.st_mtim.tv_sec &&
      then.st_mtim.tv_nsec == now.st_mtim.tv_nsec) {
    return {};
  }
  return fail(Code::unavailable, format("{}: the file changed while it was read", name));
}

Result<FileText> read_file(const std::string& path, std::uint64_t bytes_max, Code too_long) {
  FRESHET_ASSIGN(const OpenedFile file, open_regular(path));
  const auto bytes = static_cast<std::uint64_t>(file.status.st_size);
  if (bytes > bytes_max) return fail(too_long, format("{}: {} bytes are over the limit of {}", path, bytes, bytes_max));
  FileText read{.text = std::string(bytes, '\0'), .status = file.status};
  FRESHET_TRY(read_at(file.descriptor.get(), std::as_writable_bytes(std::span(read.text)), 0, path, Code::unavailable));
  return read;
}

Result<std::size_t> read_up_to(int file, MutableBytes out, std::uint64_t offset, std::string_view name) {
  std::size_t have = 0;
  while (have < out.size()) {
    const ssize_t got = ::pread(file, out.data() + have, out.size() - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(errno, format("read {}", name));
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  return have;
}

Status read_at(int file, MutableBytes out, std::uint64_t offset, std::string_view name, Code cut_short) {
  FRESHET_ASSIGN(const std::size_t got, read_up_to(file, out, offset, name));
  if (got == out.size()) return {};
  return fail(cut_short, format("{} is cut short: {} bytes from {} on, not {}", name, got, offset, out.size()));
}

Status write_all(int file, Bytes bytes, std::string_view name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), std::min(bytes.size(), kWriteBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_errno(errno, format("write {}", name));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace freshet
