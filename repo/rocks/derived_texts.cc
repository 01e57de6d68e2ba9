// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/derived_texts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "core/base/file_io.h"

namespace freshet {
namespace {

/// As the files of the database: the umask of the process says who may read them.
constexpr mode_t kRights = 0666;

std::string derived_path(const RocksStore& store, std::string_view name) {
  return store.folder + "/derived-" + std::string(name);
}

}  // namespace

std::optional<std::string> read_derived(const RocksStore& store, std::string_view name, std::uint64_t bytes_max) {
  Result<FileText> file = read_file(derived_path(store, name), bytes_max);
  if (!file) return std::nullopt;
  return std::move(file->text);
}

// A put is not to fail for a text that is not needed, so the room of puts is left alone.
void write_derived(RocksStore& store, std::string_view name, std::string_view text, Backend::Derived where) {
  if (store.read_only || !store.check_room(text.size())) return;
  // A folder whose repository was removed meanwhile stays as it was left.
  if (::access((store.folder + "/CURRENT").c_str(), F_OK) != 0) return;
  const std::string path = derived_path(store, name);
  const Bytes bytes = bytes_of(text.data(), text.size());
  if (where == Backend::Derived::behind) {
    // Of a pipe, neither opening nor writing is to wait for a reader.
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const FileDescriptor file(::open(path.c_str(), kFlags, kRights));
    struct stat status {};
    const bool is_regular = file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
    if (is_regular) static_cast<void>(write_all(file.get(), bytes, path));
    return;
  }
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  bool is_written = false;
  {
    const FileDescriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kRights));
    is_written = file && write_all(file.get(), bytes, fresh);
  }
  if (!is_written || ::rename(fresh.c_str(), path.c_str()) != 0) ::unlink(fresh.c_str());
}

}  // namespace freshet
