// SPDX-License-Identifier: Apache-2.0
#include "transport/file/folder_feed.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/digest.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

// Writers that do not rename what they wrote into place: a version's files appear one after another, and grow.

namespace freshet::file {
namespace {

namespace fs = std::filesystem;
constexpr int kNobodyStops = -1;

class FolderFeedTest : public testing::Test {
 protected:
  std::string path_of(VersionNumber number, const std::string& file = "") {
    const std::string folder = folder_ / folder_name_of(number);
    fs::create_directories(folder);
    return file.empty() ? folder : folder + "/" + file;
  }
  void write_file(VersionNumber number, const std::string& file, const std::string& tensor, const std::string& bytes,
                  const SafetensorsMetadata& metadata = {}) {
    const TensorView view{.spec = {.name = tensor, .dtype = DType::u8, .shape = {bytes.size()}},
                          .data = std::as_bytes(std::span(bytes))};
    ASSERT_TRUE(write_safetensors(path_of(number, file), std::span(&view, 1), metadata, false));
  }
  void write_index(VersionNumber number, const std::string& json) {
    std::ofstream(path_of(number, std::string(kIndexName))) << json;
  }
  void write_whole(VersionNumber number) { write_file(number, "model.safetensors", "a", std::to_string(number)); }
  void cut(VersionNumber number, const std::string& file, std::uintmax_t bytes_less) {
    fs::resize_file(path_of(number, file), fs::file_size(path_of(number, file)) - bytes_less);
  }

  /// One look: the number of the version that came, 0 when none did; or the error.
  Result<VersionNumber> look() {
    const auto weights = feed_->next(system_clock().now(), kNobodyStops);
    if (!weights) return fail(weights.error());
    return *weights == nullptr ? VersionNumber{0} : (*weights)->number();
  }
  std::size_t tensors() {
    auto weights = feed_->next(system_clock().now(), kNobodyStops);
    return weights && *weights != nullptr ? (*weights)->tensors().size() : 0;
  }
  void open(bool every, Duration writing_max = std::chrono::hours(1)) {
    feed_.emplace(folder_.path(), FolderFeed::Options{.every = every, .writing_max = writing_max});
  }

  TemporaryFolder folder_;
  std::optional<FolderFeed> feed_;
};

TEST_F(FolderFeedTest, AFileThatAnothersNamePromisesIsWaitedFor) {
  open(false);
  write_file(1, "model-00001-of-00002.safetensors", "a", "aaaa");
  EXPECT_EQ(look().value(), 0u);
  write_file(1, "model-00002-of-00002.safetensors", "b", "bbbb");
  EXPECT_EQ(tensors(), 2u);
}

TEST_F(FolderFeedTest, AFileThatTheIndexNamesIsWaitedFor) {
  open(false);
  write_file(1, "first.safetensors", "a", "aaaa");
  write_index(1, R"({"weight_map":{"a":"first.safetensors","b":"second.safetensors"}})");
  EXPECT_EQ(look().value(), 0u);
  write_file(1, "second.safetensors", "b", "bbbb");
  EXPECT_EQ(tensors(), 2u);
}

TEST_F(FolderFeedTest, AFileThatIsShorterThanItsHeaderSaysIsWaitedFor) {
  open(false);
  for (const std::uintmax_t less : {1, 4, 30, 60}) {
    write_file(1, "model.safetensors", "a", "aaaa");
    cut(1, "model.safetensors", less);
    EXPECT_EQ(look().value(), 0u) << less;
  }
  std::ofstream(path_of(1, "model.safetensors"), std::ios::trunc).flush();
  EXPECT_EQ(look().value(), 0u) << "empty";
  write_index(1, R"({"weight_map":{"a":)");
  write_file(1, "model.safetensors", "a", "aaaa");
  EXPECT_EQ(look().value(), 0u) << "half an index";
  write_index(1, R"({"weight_map":{"a":"model.safetensors"}})");
  EXPECT_EQ(look().value(), 1u);
}

TEST_F(FolderFeedTest, ADeltaIsNoWholeVersionBeforeItsIndexIsThere) {
  open(false);
  const std::string bytes = "frame";
  write_file(2, "model-00001-of-00001.safetensors", "a", bytes,
             {{"a", to_hex(digest_of(std::as_bytes(std::span(bytes))))}});
  EXPECT_EQ(look().value(), 0u);
}

TEST_F(FolderFeedTest, WhatWasToldOfIsLookedAtAgain) {
  open(false, Duration::zero());
  write_file(1, "model-00001-of-00002.safetensors", "a", "aaaa");
  EXPECT_TRUE(is_refused(look(), Code::unavailable, "1 of 2 files"));
  EXPECT_EQ(look().value(), 0u) << "told once";
  write_file(1, "model-00002-of-00002.safetensors", "b", "bbbb");
  EXPECT_EQ(tensors(), 2u);
}

TEST_F(FolderFeedTest, WhatIsWrongIsLookedAtAgainWhenItChanged) {
  open(false, Duration::zero());
  std::ofstream(path_of(1, "model.safetensors")) << "no file of this kind at all";
  EXPECT_EQ(look().error().code(), Code::corrupt);
  EXPECT_EQ(look().value(), 0u);
  write_whole(1);
  EXPECT_EQ(look().value(), 1u);
}

TEST_F(FolderFeedTest, InOrderAnUnfinishedVersionHoldsUpTheNext) {
  open(true);
  write_file(1, "model-00001-of-00002.safetensors", "a", "aaaa");
  write_whole(2);
  EXPECT_EQ(look().value(), 0u);
  write_file(1, "model-00002-of-00002.safetensors", "b", "bbbb");
  EXPECT_EQ(look().value(), 1u);
  EXPECT_EQ(look().value(), 2u);
}

TEST_F(FolderFeedTest, InOrderAVersionThatNobodyFinishesIsPassedOver) {
  open(true, Duration::zero());
  write_file(1, "model-00001-of-00002.safetensors", "a", "aaaa");
  write_whole(2);
  EXPECT_EQ(look().error().code(), Code::unavailable);
  EXPECT_EQ(look().value(), 2u);
  write_file(1, "model-00002-of-00002.safetensors", "b", "bbbb");
  EXPECT_EQ(look().value(), 0u) << "not behind a later one";
}

TEST_F(FolderFeedTest, TheNewestThatIsWholeComesWhileANewerOneIsWritten) {
  open(false);
  write_whole(1);
  write_whole(2);
  write_file(3, "model-00001-of-00002.safetensors", "a", "aaaa");
  EXPECT_EQ(look().value(), 2u);
  EXPECT_EQ(look().value(), 0u);
  write_file(3, "model-00002-of-00002.safetensors", "b", "bbbb");
  EXPECT_EQ(look().value(), 3u);
}

TEST_F(FolderFeedTest, WhatWasReadStaysWhenItsFilesAreCutShort) {
  open(false);
  write_file(1, "model.safetensors", "a", std::string(1 << 20, 'a'));
  const auto weights = feed_->next(system_clock().now(), kNobodyStops);
  ASSERT_TRUE(weights && *weights != nullptr);
  fs::resize_file(path_of(1, "model.safetensors"), 0);
  EXPECT_EQ((*weights)->tensors()[0].data.back(), std::byte{'a'});
}

}  // namespace
}  // namespace freshet::file
