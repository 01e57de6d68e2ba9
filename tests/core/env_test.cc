// SPDX-License-Identifier: Apache-2.0
#include "core/base/env.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "tests/fault/fault_env.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class WriteFileAtomically : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "freshet-env-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ / "file";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string contents() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }

  static constexpr std::string_view kOld = "what was there";
  static constexpr std::string_view kNew = "first piece, second piece";
  Status write(Env& env, std::string_view text) {
    const Bytes bytes = bytes_of(text.data(), text.size());
    const std::array<Bytes, 2> pieces = {bytes.first(12), bytes.subspan(12)};
    return write_file_atomically(env, path_, pieces, true);
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(WriteFileAtomically, ReplacesTheWholeFile) {
  ASSERT_TRUE(write(system_env(), kOld));
  ASSERT_TRUE(write(system_env(), kNew));
  EXPECT_EQ(contents(), kNew);
  EXPECT_EQ(files(), 1u);
}

TEST_F(WriteFileAtomically, LeavesTheOldFileAndNothingElseAtWhateverCallItFails) {
  test::FaultEnv env(system_env());
  ASSERT_TRUE(write(env, kOld));
  const std::uint64_t calls = env.calls();
  ASSERT_GE(calls, 6u);
  for (const bool from_then_on : {false, true}) {
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      env.fail_call(0, 0, false);
      ASSERT_TRUE(write(env, kOld));
      env.fail_call(nth, ENOSPC, from_then_on);
      EXPECT_TRUE(is_refused(write(env, kNew), Code::out_of_space, folder_.string())) << "call " << nth;
      // Only the last call, the folder's sync, comes after the rename.
      EXPECT_EQ(contents(), nth == calls ? kNew : kOld) << "call " << nth;
      EXPECT_EQ(files(), 1u) << "call " << nth;
    }
  }
}

TEST_F(WriteFileAtomically, ALinkStaysAndItsFileIsReplaced) {
  ASSERT_TRUE(write(system_env(), kOld));
  const std::filesystem::path file = std::exchange(path_, folder_ / "link");
  std::filesystem::create_symlink("file", path_);
  ASSERT_TRUE(write(system_env(), kNew));
  EXPECT_EQ(contents(), kNew);
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(file)));
  std::filesystem::remove(file);
  EXPECT_EQ(write(system_env(), kNew).error().code(), Code::invalid_argument) << "it leads nowhere";
}

TEST_F(WriteFileAtomically, WhatIsNoFileBecomesNone) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_TRUE(is_refused(write(system_env(), kNew), Code::invalid_argument, path_.string() + " is not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
  EXPECT_EQ(files(), 1u);
}

TEST_F(WriteFileAtomically, NamesAFolderThatIsNotThere) {
  path_ = folder_ / "absent" / "file";
  EXPECT_TRUE(is_refused(write(system_env(), kNew), Code::not_found, "absent"));
}

}  // namespace
}  // namespace freshet
