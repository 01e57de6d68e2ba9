// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/derived_texts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "core/base/file_io.h"

namespace freshet {
namespace {

/// More than this is not read: a file of that size holds something else.
constexpr std::uint64_t kDerivedBytesMax = std::uint64_t{4} << 30;

std::string derived_path(const RocksStore& store, std::string_view name) {
  return store.folder + "/derived-" + std::string(name);
}

}  // namespace

std::optional<std::string> read_derived(const RocksStore& store, std::string_view name) {
  Result<FileText> file = read_file(derived_path(store, name), kDerivedBytesMax);
  if (!file) return std::nullopt;
  return std::move(file->text);
}

// A put is not to fail for a text that is not needed, so the room of puts is left alone.
void write_derived(RocksStore& store, std::string_view name, std::string_view text, Backend::Derived where) {
  if (store.read_only || !store.check_room(text.size())) return;
  const std::string path = derived_path(store, name);
  const Bytes bytes = bytes_of(text.data(), text.size());
  if (where == Backend::Derived::behind) {
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file) static_cast<void>(write_all(file.get(), bytes, path));
    return;
  }
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  bool is_written = false;
  {
    const FileDescriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    is_written = file && write_all(file.get(), bytes, fresh);
  }
  if (!is_written || ::rename(fresh.c_str(), path.c_str()) != 0) ::unlink(fresh.c_str());
}

}  // namespace freshet
