// SPDX-License-Identifier: Apache-2.0
#include "core/host/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

class MappedFiles : public testing::Test {
 protected:
  /// A file of `pages`, each full of its number, from 1 on.
  std::unique_ptr<MappedFile> map(std::size_t pages) {
    std::ofstream out(path(), std::ios::binary);
    for (std::size_t i = 1; i <= pages; ++i) out << std::string(page_, static_cast<char>(i));
    out.close();
    auto opened = open_regular(path());
    EXPECT_TRUE(opened);
    auto file = MappedFile::map(*std::move(opened), path());
    EXPECT_TRUE(file);
    return *std::move(file);
  }
  std::string path() const { return folder_ / "f"; }
  static bool is_full_of(Bytes bytes, char value) {
    return std::ranges::all_of(bytes, [value](std::byte byte) { return byte == std::byte(value); });
  }

  const std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  TemporaryFolder folder_;
};

TEST_F(MappedFiles, BytesAreTheFiles) {
  const auto file = map(3);
  ASSERT_EQ(file->bytes().size(), 3 * page_);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_full_of(file->bytes().subspan(i * page_, page_), char(i + 1)));
  EXPECT_TRUE(file->check_unchanged());
  EXPECT_TRUE(map(0)->bytes().empty());
}

TEST_F(MappedFiles, WhatIsCutOffReadsAsZerosAndIsTold) {
  const auto other = map(2);
  const auto file = map(1000);
  std::filesystem::resize_file(path(), page_);
  const auto read = [&] { EXPECT_TRUE(is_full_of(file->bytes().subspan(page_), 0)); };
  {
    const std::jthread beside(read);
    read();
  }
  EXPECT_TRUE(is_full_of(file->bytes().first(page_), 1));
  std::filesystem::resize_file(path(), 1000 * page_);
  EXPECT_TRUE(is_refused(file->check_unchanged(), Code::unavailable, path(), "cut short"));
}

TEST_F(MappedFiles, AWriteIsTold) {
  const auto file = map(2);
  // Its time, where two writes may have the same one.
  std::filesystem::last_write_time(path(), std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(is_refused(file->check_unchanged(), Code::unavailable, "changed while it was read"));
}

TEST_F(MappedFiles, AGuardIsUsedAgain) {
  for (int i = 0; i < 3000; ++i) ASSERT_NE(map(1), nullptr) << i;
}

using MappedFilesDeathTest = MappedFiles;

TEST_F(MappedFilesDeathTest, OtherBusErrorsEndTheProcess) {
  EXPECT_DEATH(
      {
        const auto file = map(1);
        ::raise(SIGBUS);
      },
      "");
  EXPECT_DEATH(
      {
        const auto file = map(1);
        const auto opened = open_regular(path());
        void* const other = ::mmap(nullptr, page_, PROT_READ, MAP_PRIVATE, opened->descriptor.get(), 0);
        std::filesystem::resize_file(path(), 0);
        static_cast<void>(*static_cast<const volatile char*>(other));
      },
      "");
}

}  // namespace
}  // namespace freshet
