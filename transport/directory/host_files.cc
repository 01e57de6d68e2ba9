// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <limits>

#include "core/base/digest.h"
#include "core/base/env.h"
#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/directory/state_folder.h"

namespace freshet::host_files {
namespace {

constexpr std::size_t kNumberBytes = 16;
/// No honest publisher comes near; a number beyond leaves no room to count on.
constexpr std::uint64_t kNumberTextMax = std::uint64_t{1} << 62;
/// A file aside stands for no longer than a call; an older one was left by a process that died.
constexpr std::chrono::minutes kAsideLeft{1};

void put_le64(std::byte* to, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint64_t get_le64(const std::byte* from) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

Result<FileDescriptor> open_file(int folder, const std::string& name, int flags, const std::string& shown) {
  const std::string& told = shown.empty() ? name : shown;
  FileDescriptor file(::openat(folder, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file) return fail_errno(errno, "open " + told);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return fail_errno(errno, "stat " + told);
  if (!S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid() || (facts.st_mode & 022) != 0) {
    return fail(Code::failed_precondition, told + " is not a regular file that belongs to this user alone");
  }
  return file;
}

Result<std::string> read_file(int file, std::size_t bytes_max, const std::string& name) {
  std::string text(bytes_max + 1, '\0');
  FRESHET_ASSIGN(const std::size_t have, read_up_to(file, std::as_writable_bytes(std::span(text)), 0, name));
  if (have > bytes_max) return fail(Code::corrupt, format("{} is longer than {} bytes", name, bytes_max));
  text.resize(have);
  return text;
}

Result<std::string> read_named(int folder, const std::string& name, std::size_t bytes_max) {
  FRESHET_ASSIGN(const FileDescriptor file, open_file(folder, name, O_RDONLY));
  return read_file(file.get(), bytes_max, name);
}

Status write_whole(int file, const void* data, std::size_t bytes, const std::string& name) {
  const ssize_t wrote = ::pwrite(file, data, bytes, 0);
  if (wrote < 0) return fail_errno(errno, "write " + name);
  if (static_cast<std::size_t>(wrote) != bytes) return fail(Code::out_of_space, "write " + name + ": cut short");
  return {};
}

Status replace(int folder, const std::string& name, const std::string& text) {
  // Two processes may serve one address, and replace one file at the same time.
  const std::string aside = format("{}.{:016x}{}", name, random_u64(system_env()), kAsideSuffix);
  FRESHET_ASSIGN(const FileDescriptor file, open_file(folder, aside, O_WRONLY | O_CREAT | O_EXCL));
  Status replaced = write_whole(file.get(), text.data(), text.size(), aside);
  // To rename over a file makes ext4 write the new one to its disk at once, while a subscriber waits for the
  // publisher's loop. To exchange the two names writes nothing. No promise outlives the host's end: a record that it
  // left empty is none.
  if (replaced && ::renameat2(folder, aside.c_str(), folder, name.c_str(), RENAME_EXCHANGE) != 0 &&
      ::renameat(folder, aside.c_str(), folder, name.c_str()) != 0) {
    replaced = fail_errno(errno, "rename " + aside);
  }
  ::unlinkat(folder, aside.c_str(), 0);  // The text before, or what failed.
  return replaced;
}

bool is_aside(std::string_view name) {
  constexpr std::size_t kDigits = 16;
  if (!name.ends_with(kAsideSuffix)) return false;
  name.remove_suffix(kAsideSuffix.size());
  const auto is_digit = [](char c) { return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f'); };
  if (name.size() < kDigits + 1 || !std::ranges::all_of(name.substr(name.size() - kDigits), is_digit)) return false;
  name.remove_suffix(kDigits);
  if (!name.ends_with('.')) return false;
  name.remove_suffix(1);
  return name.ends_with(kEntrySuffix) || name.ends_with(kCurrentSuffix) || name.ends_with(kServerSuffix);
}

void drop_left_aside(int folder, const char* name) {
  struct stat facts {};
  const bool is_left = ::fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
                       facts.st_mtime < ::time(nullptr) - std::chrono::seconds(kAsideLeft).count();
  if (is_left) ::unlinkat(folder, name, 0);
}

Result<bool> try_lock(int file, const std::string& name) {
  struct flock wanted = whole_file(F_WRLCK);
  if (::fcntl(file, F_OFD_SETLK, &wanted) == 0) return true;
  if (errno != EAGAIN && errno != EACCES) return fail_errno(errno, "lock " + name);
  return false;
}

Result<bool> is_locked(int file, const std::string& name) {
  struct flock held = whole_file(F_RDLCK);
  if (::fcntl(file, F_OFD_GETLK, &held) != 0) return fail_errno(errno, "ask about " + name);
  return held.l_type != F_UNLCK;
}

Result<NumberRecord> read_numbers(int file, const std::string& name) {
  FRESHET_ASSIGN(const std::string text, read_file(file, kNumberBytes, name));
  if (text.empty()) return NumberRecord{};
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  const bool whole = text.size() == kNumberBytes;
  const NumberRecord record =
      whole ? NumberRecord{.number = get_le64(bytes), .incarnation = get_le64(bytes + 8)} : NumberRecord{};
  if (!whole || record.number > kNumberTextMax || record.incarnation >= std::numeric_limits<std::uint64_t>::max() / 2) {
    return fail(Code::corrupt, name + " does not hold a version number; remove it to count from 1 again");
  }
  return record;
}

Status write_numbers(int file, const NumberRecord& record, const std::string& name) {
  std::array<std::byte, kNumberBytes> bytes;
  put_le64(bytes.data(), record.number);
  put_le64(bytes.data() + 8, record.incarnation);
  return write_whole(file, bytes.data(), bytes.size(), name);
}

KeptNumbers open_kept_numbers(const std::string& path, const std::string& model) {
  Result<std::string> state = make_state_folder();
  if (!state) {
    if (state.error().code() != Code::not_found) tell_unkept(model, state.error());
    return {};
  }
  const std::string normal = std::filesystem::path(path + "/").lexically_normal().string();
  const Digest digest = digest_of(bytes_of(normal.data(), normal.size()));
  std::string kept = format("{}/{}.{:016x}.number", *state, model, digest.low);
  auto file = open_file(AT_FDCWD, kept, O_RDWR | O_CREAT);
  if (file) return {.path = std::move(kept), .file = std::move(*file)};
  tell_unkept(model, file.error());
  return {};
}

void tell_unkept(const std::string& model, const Error& error) {
  log_line(LogLevel::warning, format("the last number of {} is in the run folder alone, and a restart of this host "
                                     "forgets it: {}",
                                     model, error.message()));
}

}  // namespace freshet::host_files
