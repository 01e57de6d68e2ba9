// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/page_stock.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/base/file_descriptor.h"

namespace freshet::python {

namespace {

/// Fields of an entry of /proc/PID/pagemap (the kernel's Documentation/admin-guide/mm/pagemap.rst).
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;

void end(const PageStock::Mapping& mapping) { ::munmap(mapping.memory, mapping.bytes); }

bool is_written(std::uint64_t entry) { return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0; }

/// Drops the written pages of whole pages of a private mapping. False: it may have some still.
bool drop_written_pages(std::byte* begin, const std::byte* end) {
  const FileDescriptor pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap) return false;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::array<std::uint64_t, 4096> entries{};
  while (begin != end) {
    const std::size_t pages = std::min(entries.size(), static_cast<std::size_t>(end - begin) / page);
    const auto wanted = static_cast<ssize_t>(pages * sizeof(std::uint64_t));
    const auto place = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(begin) / page * sizeof(std::uint64_t));
    if (::pread(pagemap.get(), entries.data(), pages * sizeof(std::uint64_t), place) != wanted) return false;
    for (std::size_t i = 0; i < pages;) {
      std::size_t written = 0;
      while (i + written < pages && is_written(entries[i + written])) ++written;
      if (written > 0 && ::madvise(begin + i * page, written * page, MADV_DONTNEED) != 0) return false;
      i += written + 1;
    }
    begin += pages * page;
  }
  return true;
}

}  // namespace

PageStock::~PageStock() {
  for (const Mapping& mapping : idle_) end(mapping);
}

PageStock::Mapping PageStock::take(const Snapshot::Piece& piece) {
  struct stat file {};
  struct statfs system {};
  if (::fstat(piece.descriptor, &file) != 0 || ::fstatfs(piece.descriptor, &system) != 0 ||
      system.f_type == HUGETLBFS_MAGIC) {
    return {};
  }
  const File wanted(file.st_dev, file.st_ino);
  while (const std::optional<Mapping> idle = take_idle(wanted)) {
    // All of it: mlockall() writes to pages that nobody used.
    if (idle->bytes == piece.memory.size() && drop_written_pages(idle->memory, idle->memory + idle->bytes)) return *idle;
    end(*idle);
  }
  void* const memory =
      ::mmap(nullptr, piece.memory.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, piece.descriptor, 0);
  if (memory == MAP_FAILED) return {};
  return {.file = wanted, .memory = static_cast<std::byte*>(memory), .bytes = piece.memory.size()};
}

std::optional<PageStock::Mapping> PageStock::take_idle(const File& wanted) {
  if (mark_.is_inherited()) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(idle_, wanted, &Mapping::file);
  if (found == idle_.end()) return std::nullopt;
  const Mapping taken = *found;
  idle_.erase(found);
  return taken;
}

void PageStock::give_back(const Mapping& mapping, Bytes used) {
  if (mapping.memory == nullptr) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<std::size_t>(used.data() - mapping.memory) / page * page;
  const auto last = (static_cast<std::size_t>(used.data() + used.size() - mapping.memory) + page - 1) / page * page;
  if (mark_.is_inherited() || mapping.bytes > kBytesMax || mapping.bytes % page != 0 ||
      !drop_written_pages(mapping.memory + first, mapping.memory + last)) {
    return end(mapping);
  }
  const MutexLock lock(mutex_);
  if (std::ranges::count(idle_, mapping.file, &Mapping::file) >= kIdleMaxPerMemory ||
      std::ranges::find(wanted_, mapping.file) == wanted_.end()) {
    return end(mapping);
  }
  idle_.push_back(mapping);
}

void PageStock::keep_only(const std::vector<Snapshot::Piece>& pieces) {
  if (mark_.is_inherited()) return;
  std::vector<File> wanted;
  for (const Snapshot::Piece& piece : pieces) {
    if (struct stat file {}; ::fstat(piece.descriptor, &file) == 0) wanted.emplace_back(file.st_dev, file.st_ino);
  }
  const MutexLock lock(mutex_);
  wanted_ = std::move(wanted);
  std::erase_if(idle_, [&](const Mapping& idle) FRESHET_REQUIRES(mutex_) {
    const bool is_wanted = std::ranges::find(wanted_, idle.file) != wanted_.end();
    if (!is_wanted) end(idle);
    return !is_wanted;
  });
}

}  // namespace freshet::python
