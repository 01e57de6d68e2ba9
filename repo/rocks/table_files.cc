// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/table_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "repo/rocks/handover.h"

namespace freshet {
namespace {

/// Below this, what the kernel reads ahead is worth more.
constexpr std::size_t kDirectBytesMin = std::size_t{128} << 10;
/// Disks, file systems and memory pages all go by this much or less.
constexpr std::size_t kBlockBytes = 4096;
/// A huge page: the disk then delivers into one piece of memory instead of hundreds.
constexpr std::size_t kReadPieceBytes = std::size_t{2} << 20;
constexpr std::size_t kDirectBytesMax = kReadPieceBytes - 2 * kBlockBytes;
constexpr std::size_t kReadPiecesKept = 8;

/// Memory for the disk to write into. As many pieces as were ever in use at once are kept, up to kReadPiecesKept.
class Pieces {
 public:
  struct Free {
    void operator()(std::byte* piece) const { std::free(piece); }
  };
  using Piece = std::unique_ptr<std::byte, Free>;

  /// None when there is no memory.
  Piece take() {
    {
      const MutexLock lock(mutex_);
      if (!kept_.empty()) {
        Piece piece = std::move(kept_.back());
        kept_.pop_back();
        return piece;
      }
    }
    Piece piece(static_cast<std::byte*>(std::aligned_alloc(kReadPieceBytes, kReadPieceBytes)));
    if (piece != nullptr) ::madvise(piece.get(), kReadPieceBytes, MADV_HUGEPAGE);
    return piece;
  }

  void give_back(Piece piece) {
    const MutexLock lock(mutex_);
    if (kept_.size() < kReadPiecesKept) kept_.push_back(std::move(piece));
  }

 private:
  Mutex mutex_;
  std::vector<Piece> kept_ FRESHET_GUARDED_BY(mutex_);
};

/// What was lately read past the page cache. It forgets, and may err once in a while: then a read takes the other way.
class ReadOnce {
 public:
  /// Whether it is the second time; then the next one is a first time again.
  bool was_read(std::size_t file, std::uint64_t offset) {
    const std::uint64_t key = (file ^ (offset + 1)) * 0x9e3779b97f4a7c15;
    std::atomic<std::uint64_t>& place = places_[key >> (64 - kPlacesLog2)];
    if (place.exchange(key) != key) return false;
    place = 0;
    return true;
  }

 private:
  static constexpr int kPlacesLog2 = 13;
  std::array<std::atomic<std::uint64_t>, std::size_t{1} << kPlacesLog2> places_{};
};

struct Shared {
  Pieces pieces;
  ReadOnce read_once;
};

/// Which file a path led to. While somebody has it open, no other one can be taken for it.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = -1;  ///< Less than 0: of no file.

  explicit operator bool() const { return bytes >= 0; }
  bool operator==(const Identity&) const = default;
};

Identity identity_of(const struct stat& stat) {
  return {.device = stat.st_dev, .inode = stat.st_ino, .bytes = stat.st_size};
}
Identity identity_at(const std::string& path) {
  struct stat stat {};
  return ::stat(path.c_str(), &stat) == 0 ? identity_of(stat) : Identity{};
}
Identity identity_of(int file) {
  struct stat stat {};
  return ::fstat(file, &stat) == 0 ? identity_of(stat) : Identity{};
}

/// A file's pages, to ask which of them the kernel has in memory; nothing is read by it. Without any when the path
/// leads to another file by now.
class Pages {
 public:
  Pages(const std::string& path, const Identity& expected) {
    if (!expected || expected.bytes < static_cast<off_t>(kDirectBytesMin)) return;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (identity_of(file) == expected) {
      const auto bytes = static_cast<std::size_t>(expected.bytes);
      void* begin = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
      if (begin != MAP_FAILED) {
        begin_ = static_cast<std::byte*>(begin);
        bytes_ = bytes;
      }
    }
    ::close(file);
  }
  ~Pages() {
    if (bytes_ > 0) ::munmap(begin_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  /// Whether the file has these bytes, and one of them at least would have to be read from the disk.
  bool some_are_on_the_disk(std::uint64_t offset, std::size_t bytes) const {
    if (offset > bytes_ || bytes > bytes_ - offset || bytes > kDirectBytesMax) return false;
    const std::uint64_t first = offset / kBlockBytes * kBlockBytes;
    const auto length = static_cast<std::size_t>(offset + bytes - first);
    std::array<unsigned char, kReadPieceBytes / kBlockBytes> present;
    if (::mincore(begin_ + first, length, present.data()) != 0) return false;
    const auto end = present.begin() + static_cast<std::ptrdiff_t>((length + kBlockBytes - 1) / kBlockBytes);
    return std::any_of(present.begin(), end, [](unsigned char page) { return (page & 1) == 0; });
  }

 private:
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
};

class TableFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  /// `identity`: of the file that `file` reads.
  TableFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, std::string path, const Identity& identity,
            std::shared_ptr<Shared> shared)
      : FSRandomAccessFileOwnerWrapper(std::move(file)),
        path_(std::move(path)),
        identity_(identity),
        hash_(std::hash<std::string>()(path_)),
        pages_(path_, identity_),
        shared_(std::move(shared)) {}

  rocksdb::IOStatus Read(std::uint64_t offset, std::size_t bytes, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch, rocksdb::IODebugContext* debug) const override {
    if (bytes >= kDirectBytesMin && pages_.some_are_on_the_disk(offset, bytes) &&
        !shared_->read_once.was_read(hash_, offset) && read_from_disk(offset, bytes, scratch)) {
      *result = rocksdb::Slice(scratch, bytes);
      return rocksdb::IOStatus::OK();
    }
    return FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, debug);
  }

 private:
  // False when it cannot be read so, for whatever reason; who then reads as usual is told it. A descriptor of each
  // table would be twice as many as RocksDB has, so the path is opened again, and may lead to another file by now.
  bool read_from_disk(std::uint64_t offset, std::size_t bytes, char* out) const {
    const int file = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file < 0) return false;
    Pieces::Piece piece = shared_->pieces.take();
    bool whole = false;
    if (piece != nullptr && identity_of(file) == identity_) {
      const std::uint64_t first = offset / kBlockBytes * kBlockBytes;
      const auto before = static_cast<std::size_t>(offset - first);
      const std::size_t length = (before + bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
      const ssize_t got = ::pread(file, piece.get(), length, static_cast<off_t>(first));
      whole = got >= 0 && static_cast<std::size_t>(got) >= before + bytes;
      if (whole) {
        came_from_rocksdb();
        std::memcpy(out, piece.get() + before, bytes);
        goes_to_rocksdb();
      }
    }
    if (piece != nullptr) shared_->pieces.give_back(std::move(piece));
    ::close(file);
    return whole;
  }

  const std::string path_;
  const Identity identity_;
  const std::size_t hash_;
  const Pages pages_;
  const std::shared_ptr<Shared> shared_;
};

class TableFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;

  const char* Name() const override { return "freshet.TableFileSystem"; }

  rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override {
    // RocksDB keeps its descriptor to itself: the path leads to that file when it did so before and does so afterwards.
    const Identity before = identity_at(path);
    rocksdb::IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, result, debug);
    if (status.ok() && path.ends_with(".sst") && before && identity_at(path) == before) {
      *result = std::make_unique<TableFile>(std::move(*result), path, before, shared_);
    }
    return status;
  }

 private:
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> make_table_file_system() {
  return std::make_shared<TableFileSystem>(rocksdb::FileSystem::Default());
}

}  // namespace freshet
