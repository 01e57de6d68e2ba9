// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/folder_watch.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace freshet::cli {
namespace {

using testing::ElementsAre;
namespace fs = std::filesystem;

class FolderWatching : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_ / "in"); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  /// The next files that are whole.
  std::vector<std::string> next(FolderWatch& watch) {
    auto paths = watch.wait(system_clock().now() + std::chrono::minutes(1), -1);
    EXPECT_TRUE(paths) << paths.error().message();
    return paths.value_or(std::vector<std::string>());
  }
  FolderWatch open() {
    auto watch = FolderWatch::open(folder_ / "in", std::chrono::milliseconds(1), std::chrono::milliseconds(1));
    EXPECT_TRUE(watch) << watch.error().message();
    return std::move(*watch);
  }

  TemporaryFolder folder_;
};

TEST_F(FolderWatching, WhatIsNoFolderIsAnError) {
  fs::create_symlink("loop", folder_ / "loop");
  for (const std::string name : {"loop", "nothing"}) {
    const auto watch = FolderWatch::open(folder_ / name, std::chrono::milliseconds(1), std::chrono::milliseconds(1));
    ASSERT_FALSE(watch) << name;
    EXPECT_NE(watch.error().message().find(name), std::string::npos) << watch.error().message();
  }
}

TEST_F(FolderWatching, WhatComesWithoutAnEventIsSeenToo) {
  const std::string link = folder_ / "in/net.safetensors";
  write("one", "1");
  fs::create_symlink(folder_ / "one", link);
  FolderWatch watch = open();
  EXPECT_THAT(next(watch), ElementsAre(link));
  // The kernel tells of what happens in the folder, and the link's target is in another.
  write("one", "22");
  EXPECT_THAT(next(watch), ElementsAre(link));
  fs::remove(folder_ / "one");
  EXPECT_TRUE(watch.wait(system_clock().now(), -1)->empty());
  write("one", "333");
  EXPECT_THAT(next(watch), ElementsAre(link));
}

TEST_F(FolderWatching, WhatIsPassedOverComesWhenItChanges) {
  for (const std::string name : {"b", "a"}) {
    write("in/" + name + ".safetensors", name);
    fs::last_write_time(folder_ / ("in/" + name + ".safetensors"),
                        fs::file_time_type::clock::now() - std::chrono::hours(name == "b" ? 2 : 1));
  }
  FolderWatch watch = open();
  const std::vector<FolderWatch::File> waiting = watch.waiting();
  ASSERT_EQ(waiting.size(), 2U);
  EXPECT_EQ(waiting[0].name, "b.safetensors");
  EXPECT_LT(waiting[0].modified_ns, waiting[1].modified_ns);
  watch.pass_over("b.safetensors");
  EXPECT_THAT(next(watch), ElementsAre(folder_ / "in/a.safetensors"));
  EXPECT_EQ(watch.handed_out(folder_ / "in/a.safetensors").modified_ns, waiting[1].modified_ns);
  write("in/b.safetensors", "another");
  EXPECT_THAT(next(watch), ElementsAre(folder_ / "in/b.safetensors"));
}

TEST_F(FolderWatching, ACheckpointIsWholeWhenItWasRenamedOrStandsStill) {
  auto opened = FolderWatch::open(folder_ / "in", std::chrono::hours(1), std::chrono::milliseconds(1));
  ASSERT_TRUE(opened) << opened.error().message();
  fs::create_directory(folder_ / "in/checkpoint-1");
  write("in/checkpoint-1/model.safetensors", "1");
  fs::create_directory(folder_ / "in/checkpoint-x");
  write("in/checkpoint-4", "a file");
  EXPECT_TRUE(opened->wait(system_clock().now(), -1)->empty()) << "it may still be written";
  fs::create_directory(folder_ / "in/tmp-checkpoint-2");
  write("in/tmp-checkpoint-2/model.safetensors", "2");
  fs::rename(folder_ / "in/tmp-checkpoint-2", folder_ / "in/checkpoint-2");
  EXPECT_THAT(next(*opened), ElementsAre(folder_ / "in/checkpoint-2"));
  ASSERT_EQ(opened->waiting().size(), 1U);
  EXPECT_EQ(opened->waiting()[0].name, "checkpoint-1");

  FolderWatch patient = open();
  EXPECT_THAT(next(patient), ElementsAre(folder_ / "in/checkpoint-1", folder_ / "in/checkpoint-2"));
  write("in/checkpoint-1/trainer_state.json", "{}");
  EXPECT_TRUE(patient.wait(system_clock().now(), -1)->empty()) << "the weights are the same";
  write("in/checkpoint-1/model.safetensors", "another");
  EXPECT_THAT(next(patient), ElementsAre(folder_ / "in/checkpoint-1"));
}

}  // namespace
}  // namespace freshet::cli
