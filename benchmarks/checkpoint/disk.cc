// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/base/format.h"

namespace freshet::benchmarks {

Result<MadeFolder> MadeFolder::in(const std::string& parent) {
  std::string path = parent + "/freshet-checkpoint-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail_errno(errno, path);
  return MadeFolder(std::move(path));
}

MadeFolder::~MadeFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Status write_and_sync(const std::string& path, const std::vector<Bytes>& parts) {
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return fail_errno(errno, path);
  Status status;
  for (Bytes rest : parts) {
    while (!rest.empty() && status) {
      const ssize_t written = ::write(file, rest.data(), std::min<std::size_t>(rest.size(), std::size_t{8} << 20));
      if (written < 0) status = fail_errno(errno, path);
      if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  if (status && ::fsync(file) != 0) status = fail_errno(errno, path);
  ::close(file);
  return status;
}

Status read_file(const std::string& path, const std::vector<MutableBytes>& parts) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail_errno(errno, path);
  Status status;
  for (MutableBytes rest : parts) {
    while (!rest.empty() && status) {
      const ssize_t got = ::read(file, rest.data(), std::min<std::size_t>(rest.size(), std::size_t{1} << 20));
      if (got <= 0) status = fail_errno(got == 0 ? EIO : errno, path);
      if (got > 0) rest = rest.subspan(static_cast<std::size_t>(got));
    }
  }
  ::close(file);
  return status;
}

Status forget(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    ::fsync(file);
    [[maybe_unused]] const int done = ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
  return {};
}

std::uint64_t bytes_on_disk(const std::string& folder, const std::vector<std::string>& endings) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string ending = entry.path().extension();
    const bool counts = endings.empty() || std::find(endings.begin(), endings.end(), ending) != endings.end();
    struct stat status {};
    if (counts && ::stat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      // Neither holes nor what is reserved behind a file's end.
      bytes += static_cast<std::uint64_t>(std::min<std::int64_t>(status.st_blocks * 512, status.st_size));
    }
  }
  return bytes;
}

}  // namespace freshet::benchmarks
