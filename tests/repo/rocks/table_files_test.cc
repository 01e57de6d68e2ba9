// SPDX-License-Identifier: Apache-2.0
/// Reads past the page cache: the same bytes as ever, whatever the kernel has in memory.

#include "repo/rocks/table_files.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr std::size_t kFileBytes = (std::size_t{3} << 20) + 777;
constexpr std::size_t kMegabyte = std::size_t{1} << 20;

class TableFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(5);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    file_ = ::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    ASSERT_GE(file_, 0);
    ASSERT_EQ(::write(file_, bytes_.data(), bytes_.size()), static_cast<ssize_t>(bytes_.size()));
    ASSERT_EQ(::fsync(file_), 0);
    pages_ = ::mmap(nullptr, bytes_.size(), PROT_NONE, MAP_SHARED, file_, 0);
    ASSERT_NE(pages_, MAP_FAILED);
    const auto status = system_->NewRandomAccessFile(path_, {}, &table_, nullptr);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void TearDown() override {
    if (pages_ != MAP_FAILED) ::munmap(pages_, bytes_.size());
    if (file_ >= 0) ::close(file_);
  }

  void forget() const { ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED); }

  std::size_t pages_in_memory() const {
    std::vector<unsigned char> present((bytes_.size() + 4095) / 4096);
    EXPECT_EQ(::mincore(pages_, bytes_.size(), present.data()), 0);
    std::size_t count = 0;
    for (const unsigned char page : present) count += page & 1;
    return count;
  }

  // What stands there, or as much of it as the file has.
  void expect_read(std::uint64_t offset, std::size_t bytes) const {
    std::vector<char> room(bytes);
    rocksdb::Slice result;
    const auto status = table_->Read(offset, bytes, {}, &result, room.data(), nullptr);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::size_t there = std::min<std::size_t>(bytes, bytes_.size() - offset);
    ASSERT_EQ(result.size(), there) << offset << " " << bytes;
    EXPECT_EQ(std::memcmp(result.data(), bytes_.data() + offset, there), 0) << offset << " " << bytes;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "000007.sst";
  const std::shared_ptr<rocksdb::FileSystem> system_ = make_table_file_system();
  std::vector<char> bytes_ = std::vector<char>(kFileBytes);
  int file_ = -1;
  void* pages_ = MAP_FAILED;
  std::unique_ptr<rocksdb::FSRandomAccessFile> table_;
};

TEST_F(TableFiles, ReadTheSameFromMemoryAndFromTheDisk) {
  for (const bool on_the_disk : {true, false}) {
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4096},
                                       std::uint64_t{kMegabyte + 123}, std::uint64_t{kFileBytes - 200'000}}) {
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{131'072}, kMegabyte + 40,
                                      2 * kMegabyte - 8192, 2 * kMegabyte, kFileBytes}) {
        if (on_the_disk) forget();
        expect_read(offset, bytes);
        expect_read(offset, bytes);
      }
    }
  }
}

TEST_F(TableFiles, StayInMemoryOnlyWhenTheyAreReadAgain) {
  // Some file systems are memory, and some keep what was read past it all the same.
  const int direct = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  forget();
  alignas(4096) static std::array<char, 4096> block;
  const bool is_read = direct >= 0 && ::pread(direct, block.data(), block.size(), 0) > 0;
  if (direct >= 0) ::close(direct);
  if (!is_read || pages_in_memory() != 0) GTEST_SKIP() << "the temporary folder's file system keeps all in memory";
  expect_read(kMegabyte + 5, kMegabyte);
  EXPECT_EQ(pages_in_memory(), 0u);
  // The kernel may take pages back at any time, but not each time.
  bool kept = false;
  for (int attempt = 0; attempt < 100 && !kept; ++attempt) {
    expect_read(kMegabyte + 5, kMegabyte);
    kept = pages_in_memory() >= kMegabyte / 4096;
  }
  EXPECT_TRUE(kept);
}

TEST_F(TableFiles, AreReadOnWhenTheirNameIsGone) {
  forget();
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  expect_read(17, kMegabyte);
  expect_read(17, kMegabyte);
}

// Another file of the same size takes the name: what was opened is read on.
TEST_F(TableFiles, AreReadOnWhenTheirNameIsAnothers) {
  const std::string other = folder_ / "other";
  const std::vector<char> others(bytes_.size(), 'x');
  const int file = ::open(other.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::write(file, others.data(), others.size()), static_cast<ssize_t>(others.size()));
  EXPECT_EQ(::fsync(file), 0);
  ::close(file);
  ASSERT_EQ(::rename(other.c_str(), path_.c_str()), 0);
  for (const std::uint64_t offset : {std::uint64_t{17}, std::uint64_t{kMegabyte}}) {
    forget();
    expect_read(offset, kMegabyte);
    expect_read(offset, kMegabyte);
  }
}

TEST_F(TableFiles, AreReadByManyAtOnce) {
  std::vector<std::jthread> readers;
  for (std::uint64_t reader = 0; reader < 8; ++reader) {
    readers.emplace_back([this, reader] {
      for (std::uint64_t round = 0; round < 8; ++round) {
        forget();
        expect_read((reader * 8 + round) * 20'011, kMegabyte + reader);
      }
    });
  }
}

}  // namespace
}  // namespace freshet
