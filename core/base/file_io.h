// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Reading and writing of whole files and whole ranges, past interruptions and short counts. Files that must be
/// durable, or fail on request, are written through Env (core/base/env.h).

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/bytes.h"
#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

struct OpenedFile {
  FileDescriptor descriptor;
  struct stat status {};
};
/// Opens a regular file for reading; opening a pipe does not wait for its writer. invalid_argument for all that is no
/// regular file. `flags` are more of open()'s.
Result<OpenedFile> open_regular(const std::string& path, int flags = 0);
/// unavailable, with `name`: somebody changed the file since it was opened, as far as its size and time tell.
Status check_unchanged(const OpenedFile& file, std::string_view name);

struct FileText {
  std::string text;
  struct stat status {};  ///< Of the very file, taken before the text was read.
};
/// All of a regular file. The code `too_long` when it has more than `bytes_max`; unavailable when it became shorter
/// meanwhile.
Result<FileText> read_file(const std::string& path, std::uint64_t bytes_max, Code too_long = Code::invalid_argument);

/// The bytes at `offset`; how many, which is fewer than asked for where the file ends. Errors name `name`.
Result<std::size_t> read_up_to(int file, MutableBytes out, std::uint64_t offset, std::string_view name);
/// All of them; `cut_short` where the file ends before.
Status read_at(int file, MutableBytes out, std::uint64_t offset, std::string_view name, Code cut_short = Code::corrupt);

/// What one call writes at most. Linux keeps what one call writes in as large pieces of memory as it finds, and free
/// memory in pieces of megabytes is often memory that a virtual machine gave back to its host: there, files written by
/// calls of 8 MB took three times as long (benchmarks/large_file/README.md).
inline constexpr std::size_t kWriteBytesMax = std::size_t{256} << 10;
/// All of them, where the file stands.
Status write_all(int file, Bytes bytes, std::string_view name);

/// "/a" of "/a/b", "/" of "/a", and "." of "a".
std::string folder_of(const std::string& path);

}  // namespace freshet
