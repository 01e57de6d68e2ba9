// SPDX-License-Identifier: Apache-2.0
// What stands on the disk when a command has said so, and what stays there.

#include <gmock/gmock.h>

#include "tests/bindings/cli/support/durable.h"
#include "tests/bindings/cli/support/streaming.h"
#include "tests/support/small_disk.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class KeptFiles : public Streaming {
 protected:
  void SetUp() override { fs::create_directory(folder_ / "in"); }

  Environment noted() const {
    Environment both = environment();
    both.merge(journal_.environment());
    return both;
  }

  /// Publishes the next version of `net`, as a file in the watched folder.
  void publish_next(Running& publisher, std::size_t tensor_bytes = 16) {
    ModelBytes model = chain(1, 2, static_cast<char>(++published_));
    model.tensors[2].shape = {tensor_bytes / 4};
    model.tensors[2].bytes.assign(tensor_bytes, static_cast<char>(published_));
    drop(folder_ / "in", std::to_string(published_) + ".safetensors", encoded(model));
    ASSERT_EQ(publisher.next_json()["version"], published_);
  }

  /// The names in a folder, without those that begin with a dot, sorted.
  static std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with('.')) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  SyncJournal journal_{folder_ / "journal"};
  int published_ = 0;
};

TEST_F(KeptFiles, WhatASubscriberWroteOutlivesTheHost) {
  Running publisher = start({"publish", "net", file_of(chain(1, 2, 3), "a.safetensors")});
  ASSERT_EQ(publisher.next_json()["version"], 1);
  const std::string out = folder_ / "new/out";
  const Ended files = run({"subscribe", "net", "--out", out, "--count", "1"}, noted());
  ASSERT_EQ(files.exit_code, 0) << files.err;
  for (const std::string& path : {out + "/net@1.safetensors", out + "/latest", out, folder_ / "new"}) {
    EXPECT_EQ(journal_.lost(path), "");
  }
  const std::string weights = folder_ / "weights";
  const Ended folders = run({"subscribe", "net", "--out", weights, "--layout", "weight_v", "--count", "1"}, noted());
  ASSERT_EQ(folders.exit_code, 0) << folders.err;
  const std::string version = weights + "/weight_v000001";
  for (const std::string& path : {version, version + "/model.safetensors.index.json",
                                  version + "/model-00001-of-00001.safetensors", weights + "/latest", weights}) {
    EXPECT_EQ(journal_.lost(path), "");
  }
}

TEST_F(KeptFiles, WhatTheRepositoryWroteOutOutlivesTheHost) {
  const std::string file = file_of(chain(1, 2, 3), "a.safetensors");
  Environment environment = noted();
  environment["FRESHET_REPO"] = folder_ / "repository";
  const std::string graph = folder_ / "g.json";
  write_file(graph, R"({"freshet_graph":1,"name":"g","layers":[{"name":"a","class":"Dense",)"
                    R"("tensors":{"w":{"dtype":"f32","shape":[4]}}}],"outputs":["a"]})");
  ModelBytes one;
  one.tensors = {chain(8, 0, 0).tensors[0]};
  ASSERT_EQ(
      run({"repo", "put", "net", "--graph", graph, "--weights", file_of(one, "b.safetensors")}, environment).exit_code,
      0);
  const std::string out = folder_ / "out";
  ASSERT_EQ(run({"repo", "export", "net", "-o", out}, environment).exit_code, 0);
  ASSERT_EQ(run({"repo", "get", "net", "-o", folder_ / "got.safetensors"}, environment).exit_code, 0);
  ASSERT_EQ(run({"repo", "lineage", "net", "--svg", folder_ / "net.svg"}, environment).exit_code, 0);
  for (const std::string& path : {out + "/net@1.safetensors", out + "/net@1.graph.json", out + "/net@1.version.json",
                                  out, folder_ / "got.safetensors", folder_ / "net.svg"}) {
    EXPECT_EQ(journal_.lost(path), "");
  }
}

TEST_F(KeptFiles, TheNewestNStayAndWhatLatestNames) {
  Running publisher = start({"publish", "net", "--watch", folder_ / "in", "--keep", "8"});
  const std::string out = folder_ / "out";
  fs::create_directory(out);
  write_file(out + "/other@1.safetensors", "another model's");
  write_file(out + "/net@01.safetensors", "not written by the command");
  write_file(out + "/notes.txt", "mine");
  publish_next(publisher);
  Running subscriber = start({"subscribe", "net", "--out", out, "--keep", "2", "--exec", "test -f {}"});
  ASSERT_EQ(subscriber.next_json()["version"], 1);
  for (int version = 2; version <= 5; ++version) {
    publish_next(publisher);
    ASSERT_EQ(subscriber.next_json()["version"], version);
  }
  EXPECT_THAT(names_in(out), ElementsAre("latest", "net@01.safetensors", "net@4.safetensors", "net@5.safetensors",
                                         "notes.txt", "other@1.safetensors"));
  // An older version is made current: it is the one that must stay.
  ASSERT_EQ(run({"rollback", "net@2"}, environment()).exit_code, 0);
  ASSERT_EQ(subscriber.next_json()["version"], 2);
  EXPECT_THAT(names_in(out), ElementsAre("latest", "net@01.safetensors", "net@2.safetensors", "net@4.safetensors",
                                         "net@5.safetensors", "notes.txt", "other@1.safetensors"));
  EXPECT_EQ(fs::read_symlink(out + "/latest"), "net@2.safetensors");
  subscriber.signal(SIGINT);
  EXPECT_EQ(subscriber.wait().err, "");
}

TEST_F(KeptFiles, NumbersThatWereLostTakeNoFileOfAnotherRun) {
  const std::string out = folder_ / "out";
  const std::string weights = folder_ / "weights";
  const auto publish = [&](char seed) {
    const Ended ended = run_to_end({"publish", "net", file_of(chain(1, 2, seed), "net.safetensors"), "--linger", "0"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json()["version"];
  };
  const auto forget = [&](const std::string& folder) { fs::remove_all(folder_ / folder); };
  ASSERT_EQ(publish(3), 1);
  forget("run");
  // The restart of a host empties the run folder. Numbers go on.
  Running second = start({"publish", "net", file_of(chain(1, 2, 4), "net.safetensors")});
  ASSERT_EQ(second.next_json()["version"], 2);
  ASSERT_EQ(run_to_end({"subscribe", "net", "--out", out, "--count", "1"}).exit_code, 0);
  ASSERT_EQ(run_to_end({"subscribe", "net", "--out", out, "--count", "1"}).exit_code,
            0);  // The same bytes are no harm.
  ASSERT_EQ(run_to_end({"subscribe", "net", "--out", weights, "--layout", "weight_v", "--count", "1"}).exit_code, 0);
  second.signal(SIGTERM);
  second.wait();
  // Where nobody remembers, what is there stays.
  forget("run");
  forget("state");
  ASSERT_EQ(publish(5), 1);
  Running third = start({"publish", "net", file_of(chain(1, 2, 6), "net.safetensors")});
  ASSERT_EQ(third.next_json()["version"], 2);
  for (const char* layout : {"files", "weight_v"}) {
    const std::string& folder = std::string_view(layout) == "files" ? out : weights;
    const Ended refused = run_to_end({"subscribe", "net", "--out", folder, "--layout", layout, "--count", "1"});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, HasSubstr("exists with other weights, perhaps of another run"));
    EXPECT_THAT(refused.err, HasSubstr(std::string_view(layout) == "files" ? "net@2.safetensors" : "weight_v000002"));
  }
  EXPECT_EQ(model_in(out + "/net@2.safetensors"), chain(1, 2, 4));
}

TEST_F(KeptFiles, OldVersionsGoNotThoseWithSmallNumbers) {
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  const std::string out = folder_ / "out";
  const std::string weights = folder_ / "weights";
  // Of a run before, whose numbers were lost.
  for (const std::string number : {"7", "8"}) {
    fs::create_directories(out);
    const std::string version = weights + "/weight_v00000" + number;
    fs::create_directories(version);
    write_file(out + "/net@" + number + ".safetensors", encoded(chain(1, 2, number[0])));
    write_file(version + "/model.safetensors", encoded(chain(1, 2, number[0])));
    write_file(version + "/model.safetensors.index.json",
               R"({"metadata":{"version":"00000)" + number + R"("},"weight_map":{"a.w":"model.safetensors",)" +
                   R"("b.w":"model.safetensors","c.w":"model.safetensors"}})");
    const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
    fs::last_write_time(out + "/net@" + number + ".safetensors", long_ago);
    fs::last_write_time(version + "/model.safetensors.index.json", long_ago);
  }
  Running files = start({"subscribe", "net", "--every", "--out", out, "--keep", "2"});
  Running folders = start({"subscribe", "net", "--every", "--out", weights, "--layout", "weight_v", "--keep", "2"});
  const auto next = [&](int version) {
    publish_next(publisher);
    ASSERT_EQ(files.next_json()["version"], version);
    ASSERT_EQ(folders.next_json()["version"], version);
  };
  for (int version = 1; version <= 3; ++version) next(version);
  for (Running* each : {&files, &folders}) {
    each->signal(SIGINT);
    EXPECT_EQ(each->wait().err, "");
  }
  EXPECT_THAT(names_in(out), ElementsAre("latest", "net@2.safetensors", "net@3.safetensors"));
  EXPECT_THAT(names_in(weights), ElementsAre("latest", "weight_v000001", "weight_v000002", "weight_v000003"));
}

TEST_F(KeptFiles, WhatAKeptDeltaLeadsFromStays) {
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  publish_next(publisher);
  const std::string out = folder_ / "out";
  Running subscriber =
      start({"subscribe", "net", "--every", "--out", out, "--layout", "weight_v", "--full-every", "3", "--keep", "2"});
  ASSERT_EQ(subscriber.next_json()["version"], 1);
  for (int version = 2; version <= 5; ++version) {
    publish_next(publisher);
    ASSERT_EQ(subscriber.next_json()["version"], version);
  }
  // 1 and 4 are whole; 5 needs 4.
  EXPECT_THAT(names_in(out), ElementsAre("latest", "weight_v000004", "weight_v000005"));
  publish_next(publisher);
  ASSERT_EQ(subscriber.next_json()["version"], 6);
  publish_next(publisher);
  ASSERT_EQ(subscriber.next_json()["version"], 7);
  EXPECT_THAT(names_in(out),
              ElementsAre("latest", "weight_v000004", "weight_v000005", "weight_v000006", "weight_v000007"));
}

TEST_F(KeptFiles, OnAFullDiskOldFilesGoFirstAndTheNextVersionIsTried) {
  SmallDisk disk(std::uint64_t{200} << 10);
  if (!disk) GTEST_SKIP() << disk.reason();
  constexpr std::size_t kVersionBytes = std::size_t{60} << 10;  // Three fit.
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  publish_next(publisher, kVersionBytes);
  const std::string out = disk / "out";
  Running subscriber = start({"subscribe", "net", "--every", "--out", out, "--keep", "3"});
  ASSERT_EQ(subscriber.next_json()["version"], 1);
  for (int version = 2; version <= 5; ++version) {
    publish_next(publisher, kVersionBytes);
    ASSERT_EQ(subscriber.next_json()["version"], version);
    EXPECT_EQ(fs::read_symlink(out + "/latest"), "net@" + std::to_string(version) + ".safetensors");
  }
  // Somebody else takes the room.
  write_file(disk / "somebody", std::string(std::size_t{15} << 10, 'x'));
  fs::remove(out + "/net@3.safetensors");
  fs::remove(out + "/net@4.safetensors");
  write_file(disk / "else", std::string(std::size_t{100} << 10, 'x'));
  publish_next(publisher, kVersionBytes);
  EXPECT_THAT(subscriber.next_error_line().value_or(""), HasSubstr("net@6 is not written"));
  EXPECT_EQ(fs::read_symlink(out + "/latest"), "net@5.safetensors");
  fs::remove(disk / "else");
  publish_next(publisher, kVersionBytes);
  ASSERT_EQ(subscriber.next_json()["version"], 7);
  EXPECT_EQ(fs::read_symlink(out + "/latest"), "net@7.safetensors");
  subscriber.signal(SIGINT);
  EXPECT_EQ(subscriber.wait().exit_code, 130);
}

}  // namespace
}  // namespace freshet::cli_test
