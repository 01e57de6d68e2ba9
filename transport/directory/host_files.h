// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The files of a host directory: how they are opened, read, replaced and locked, and the two small records in them.
/// Nothing in the folder is believed: whoever could write there may have left anything.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/model/ids.h"
#include "transport/directory/directory.h"

namespace freshet::host_files {

inline constexpr std::string_view kEntrySuffix = ".entry";
inline constexpr std::string_view kCurrentSuffix = ".current";
inline constexpr std::string_view kServerSuffix = ".server";
inline constexpr std::string_view kSwapSuffix = ".swap";
inline constexpr std::string_view kAsideSuffix = ".new";  ///< Of what replaces a file.
inline constexpr std::size_t kTextBytesMax = 32 * 1024;

/// The last number given and the last incarnation begun.
struct NumberRecord {
  std::uint64_t number = 0;
  std::uint64_t incarnation = 0;
};

/// A file of the folder: regular, ours, closed to others. Links are not followed. Errors name it by `shown`, if given.
Result<FileDescriptor> open_file(int folder, const std::string& name, int flags, const std::string& shown = {});
/// The whole file, or corrupt when it is longer than `bytes_max`.
Result<std::string> read_file(int file, std::size_t bytes_max, const std::string& name);
/// The same by name. not_found when there is none.
Result<std::string> read_named(int folder, const std::string& name, std::size_t bytes_max);
Status write_whole(int file, const void* data, std::size_t bytes, const std::string& name);
/// Readers see the old text or the new one. Of several processes that replace one file, the last one's text stays.
Status replace(int folder, const std::string& name, const std::string& text);
/// What replace() writes before it takes a file's place.
bool is_aside(std::string_view name);
/// Removes a file aside that is older than a minute: its process died before it removed the file.
void drop_left_aside(int folder, const char* name);

/// Takes the whole file for this description; false when somebody else has it.
Result<bool> try_lock(int file, const std::string& name);
/// Whether somebody has it.
Result<bool> is_locked(int file, const std::string& name);

Result<NumberRecord> read_numbers(int file, const std::string& name);
Status write_numbers(int file, const NumberRecord& record, const std::string& name);

/// The second file of the record, beyond the folder of `path`, where a restart of the host leaves it. No file when the
/// user has no such place; the log says why when there should be one.
struct KeptNumbers {
  std::string path;
  FileDescriptor file;
};
KeptNumbers open_kept_numbers(const std::string& path, const std::string& model);
void tell_unkept(const std::string& model, const Error& error);

Result<CurrentVersion> read_current(int folder, const std::string& model);
/// As Directory says. Others who swap at the same time are waited for, but not for long: one of them may be stopped.
Result<CurrentVersion> swap_current(int folder, const std::string& model, const CurrentVersion& expected,
                                    const CurrentVersion& desired);

/// A server and when its time runs out, on this host's monotonic clock.
struct ServerRecord {
  Directory::Server server;
  Time until{};
};
std::string server_file(const std::string& model, const std::string& address);
/// Whether a file of that name may be a server's of this model.
bool is_server_file(std::string_view name, const std::string& model);
std::string server_text(const std::string& model, const ServerRecord& record);
Result<ServerRecord> parse_server(const std::string& text, const std::string& model);

}  // namespace freshet::host_files
