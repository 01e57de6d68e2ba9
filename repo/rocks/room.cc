// SPDX-License-Identifier: Apache-2.0
/// Room on the disk: how much a write needs, and what is laid by for the day when there is none.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

/// What erasing takes besides the batch itself: a block of the log, and of the list of files.
constexpr std::uint64_t kErasingBytes = std::uint64_t{512} << 10;

/// Nothing when the system does not say: the write itself will tell.
std::optional<std::uint64_t> free_bytes(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return std::nullopt;
  return std::uint64_t{disk.f_bavail} * disk.f_frsize;
}

std::string reserve_path(const std::string& folder) { return folder + "/" + kReserveName; }

// A host that lost power may have left a shorter one.
bool is_laid_by(const std::string& folder) {
  struct stat stat {};
  return ::stat(reserve_path(folder).c_str(), &stat) == 0 && stat.st_size == static_cast<off_t>(kReserveBytes);
}

}  // namespace

bool is_no_space(const rocksdb::Status& status) {
  return status.IsNoSpace() || status.subcode() == rocksdb::Status::kSpaceLimit;
}

Status no_room(const std::string& folder, std::uint64_t needed) {
  const std::uint64_t room = free_bytes(folder).value_or(0);
  return fail(Code::out_of_space, format("the disk of {} is full: {} bytes are needed, {} are free (No space left on "
                                         "device)",
                                         folder, needed, room));
}

Status RocksStore::check_room(std::uint64_t bytes) const {
  // A put is not to live on what was laid by for erasing.
  const std::uint64_t needed = bytes + bytes_in_memory() + kSpareBytes + (is_laid_by(folder) ? 0 : kReserveBytes);
  const auto room = free_bytes(folder);
  if (!room || *room >= needed) return {};
  return no_room(folder, needed);
}

bool RocksStore::make_room(std::uint64_t bytes) {
  const auto is_enough = [&] {
    const auto room = free_bytes(folder);
    return !room || *room >= bytes + kErasingBytes;
  };
  return is_enough() || (::unlink(reserve_path(folder).c_str()) == 0 && is_enough());
}

std::uint64_t RocksStore::bytes_in_memory() const {
  std::uint64_t bytes = 0;
  db->GetAggregatedIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &bytes);
  return bytes;
}

void RocksStore::lay_by_reserve() {
  const auto room = free_bytes(folder);
  if (!room || *room < kReserveBytes + kSpareBytes || is_laid_by(folder)) return;
  const std::string path = reserve_path(folder);
  ::unlink(path.c_str());
  const FileDescriptor file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) return;
  if (::posix_fallocate(file.get(), 0, static_cast<off_t>(kReserveBytes)) != 0) ::unlink(path.c_str());
}

}  // namespace freshet
