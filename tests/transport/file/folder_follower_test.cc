// SPDX-License-Identifier: Apache-2.0
#include "transport/file/folder_follower.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "transport/file/weight_folder.h"
#include "transport/subscriber.h"

namespace freshet::file {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);

class FolderFollowerTest : public testing::Test {
 protected:
  void write(VersionNumber number, const std::string& bytes) {
    const WeightFolderWriter::Version version{
        .number = number,
        .tensors = {{.spec = {.name = "a", .dtype = DType::u8, .shape = {bytes.size()}},
                     .data = std::as_bytes(std::span(bytes))}}};
    const auto written = writer_->write(version, nullptr);
    ASSERT_TRUE(written) << written.error().message();
  }
  static std::string bytes_of(const Snapshot& snapshot) {
    const Bytes bytes = snapshot.bytes(0);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  TemporaryFolder folder_;
  Result<WeightFolderWriter> writer_ = WeightFolderWriter::open(folder_ / "versions", {});
};

TEST_F(FolderFollowerTest, ASubscriberServesWhatAppearsUnderItsNumber) {
  auto follower = FolderFollower::open({.folder = folder_ / "versions", .model = "demo"});
  ASSERT_TRUE(follower) << follower.error().message();
  auto subscriber = Subscriber::open({.model = "demo", .at = {(*follower)->address()}});
  ASSERT_TRUE(subscriber) << subscriber.error().message();
  write(7, "first");
  ASSERT_TRUE((*subscriber)->wait_for(7, kPatience)) << (*follower)->last_error();
  EXPECT_EQ(bytes_of((*subscriber)->snapshot()), "first");
  write(9, "other");
  ASSERT_TRUE((*subscriber)->wait_for(9, kPatience)) << (*follower)->last_error();
  EXPECT_EQ(bytes_of((*subscriber)->snapshot()), "other");
  write(12, "of another form");
  ASSERT_TRUE((*subscriber)->wait_for(12, kPatience)) << (*follower)->last_error();
  EXPECT_EQ(bytes_of((*subscriber)->snapshot()), "of another form");
}

TEST_F(FolderFollowerTest, EveryVersionComesInOrder) {
  for (VersionNumber number : {3, 5, 8}) write(number, "v" + std::to_string(number));
  auto follower = FolderFollower::open({.folder = folder_ / "versions", .model = "demo", .every = true, .after = 2});
  ASSERT_TRUE(follower);
  // Published before it was asked for, perhaps; what a newcomer is owed is the newest.
  auto subscriber = Subscriber::open({.model = "demo", .at = {(*follower)->address()}});
  ASSERT_TRUE((*subscriber)->wait_for(8, kPatience));
  EXPECT_EQ(bytes_of((*subscriber)->snapshot()), "v8");
}

TEST_F(FolderFollowerTest, AFolderThatComesLaterIsFound) {
  auto follower = FolderFollower::open({.folder = folder_ / "later", .model = "demo"});
  ASSERT_TRUE(follower);
  auto subscriber = Subscriber::open({.model = "demo", .at = {(*follower)->address()}});
  write(1, "there");
  std::filesystem::rename(folder_ / "versions", folder_ / "later");
  EXPECT_TRUE((*subscriber)->wait_for(1, kPatience));
}

TEST_F(FolderFollowerTest, ASubscriberCanBeGivenTheFolderItself) {
  auto subscriber = Subscriber::open({.model = "demo", .at = {"file://" + (folder_ / "versions")}, .every = true});
  ASSERT_TRUE(subscriber) << subscriber.error().message();
  for (VersionNumber number : {3, 4, 9}) {
    write(number, "v" + std::to_string(number));
    const auto delivery = (*subscriber)->next(kPatience);
    ASSERT_TRUE(delivery) << delivery.error().message() << (*subscriber)->status().last_error;
    EXPECT_EQ(delivery->update.version, number);
    EXPECT_EQ(delivery->update.channel, "file");
    EXPECT_EQ(bytes_of(delivery->snapshot), "v" + std::to_string(number));
  }
  EXPECT_EQ(Subscriber::open({.model = "demo", .at = {"file://" + (folder_ / "versions")}, .channel = ChannelKind::ucx})
                .error()
                .code(),
            Code::invalid_argument);
}

TEST(FolderAddress, IsAnAbsolutePath) {
  EXPECT_EQ(folder_of_address("file:///mnt/share").value(), "/mnt/share");
  EXPECT_FALSE(folder_of_address("file://mnt/share"));
  EXPECT_FALSE(folder_of_address("/mnt/share"));
  EXPECT_TRUE(is_folder_address("file://mnt"));
  EXPECT_FALSE(is_folder_address("tcp://127.0.0.1:1"));
}

}  // namespace
}  // namespace freshet::file
