// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/streaming.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Streaming, ASubscriberWritesWhatThePublisherRead) {
  ModelBytes first = model_of_all_types(1);
  ModelBytes second = first;
  second.tensors[3].bytes[0] = static_cast<char>(second.tensors[3].bytes[0] ^ 1);
  second.metadata = {{"epoch", "2"}};
  Running publisher = start({"publish", "net", file_of(first, "1.safetensors"), file_of(second, "2.safetensors")});
  const Json published = publisher.next_json();
  EXPECT_THAT(keys_of(published),
              ElementsAre("model", "version", "tensors", "changed_tensors", "bytes", "blocked_ms", "file"));
  EXPECT_EQ(published["file"], folder_ / "1.safetensors");
  EXPECT_EQ(published["version"], 1);
  EXPECT_EQ(published["changed_tensors"], first.tensors.size());
  const Json changed = publisher.next_json();
  EXPECT_EQ(changed["version"], 2);
  EXPECT_EQ(changed["changed_tensors"], 1);
  EXPECT_EQ(changed["bytes"], second.tensors[3].bytes.size());

  const Ended subscriber = run_to_end({"subscribe", "net", "--out", folder_ / "out", "--count", "1"});
  EXPECT_EQ(subscriber.exit_code, 0) << subscriber.err;
  const Json line = subscriber.json();
  EXPECT_THAT(keys_of(line),
              ElementsAre("model", "version", "file", "tensors_fetched", "bytes_fetched", "channel", "latency_ms"));
  EXPECT_EQ(line["version"], 2);
  EXPECT_EQ(line["channel"], "shm");
  EXPECT_EQ(line["file"], folder_ / "out/net@2.safetensors");
  EXPECT_EQ(model_in(folder_ / "out/net@2.safetensors"), second);
  EXPECT_EQ(std::filesystem::read_symlink(folder_ / "out/latest"), "net@2.safetensors");

  publisher.signal(SIGINT);
  EXPECT_EQ(publisher.wait().exit_code, 130);
}

TEST_F(Streaming, EveryVersionComesInOrderAndLatestPointsToTheLast) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  Running subscriber =
      start({"subscribe", "net", "--every", "--out", folder_ / "out", "--count", "5", "--exec", "cp {} {}.seen"});
  for (char version = 1; version <= 5; ++version) {
    drop(folder_ / "in", "step" + std::to_string(version) + ".safetensors", encoded(chain(1, 2, version)));
    EXPECT_EQ(publisher.next_json()["version"], version);
    // The first one is received before the next is made: a newcomer is owed the newest alone.
    EXPECT_EQ(subscriber.next_json()["version"], version);
  }
  EXPECT_EQ(subscriber.wait().exit_code, 0);
  for (char version = 1; version <= 5; ++version) {
    const std::string file = folder_ / "out/net@" + std::to_string(version) + ".safetensors";
    EXPECT_EQ(model_in(file), chain(1, 2, version));
    EXPECT_EQ(model_in(file + ".seen"), chain(1, 2, version));
  }
  EXPECT_EQ(model_in(folder_ / "out/latest"), chain(1, 2, 5));
}

TEST_F(Streaming, WhoWantsEveryVersionHearsOfThoseThatDidNotCome) {
  constexpr int kVersions = 100;  // More than the publisher keeps in a queue.
  std::filesystem::create_directory(folder_ / "in");
  const std::string gate = folder_ / "gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const std::string wait_once = "test -e " + gate + ".passed || { : > " + gate + ".passed; cat " + gate + "; } # {}";
  Running subscriber =
      start({"subscribe", "net", "--every", "--out", folder_ / "out", "--count", "40", "--exec", wait_once});
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  const auto publish = [&](int version) {
    drop(folder_ / "in", std::to_string(version) + ".safetensors", encoded(chain(1, 2, static_cast<char>(version))));
    ASSERT_EQ(publisher.next_json()["version"], version);
  };
  publish(1);
  const Json first = subscriber.next_json();
  EXPECT_EQ(first["gap_before"], 0);
  for (int version = 2; version <= kVersions; ++version) publish(version);
  write_file(gate, "go\n");
  int before = first["version"];
  int missed = 0;
  while (missed == 0 && before < kVersions) {
    const Json line = subscriber.next_json();
    ASSERT_TRUE(line.is_object());
    missed = line["gap_before"];
    EXPECT_EQ(line["version"], before + missed + 1);
    before = line["version"];
  }
  EXPECT_GT(missed, 0);
  const Ended ended = subscriber.wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err,
              HasSubstr(std::to_string(missed) + " versions before net@" + std::to_string(before) + " did not come"));
}

TEST_F(Streaming, ACommandThatFailsIsToldAndTheRestGoesOn) {
  Running publisher = start({"publish", "net", file_of(chain(1, 2, 3), "a.safetensors")});
  const Ended subscriber = run_to_end({"subscribe", "net", "--out", folder_ / "it's here", "--count", "1", "--exec",
                                       "echo on stdout; cat {} > /dev/null && exit 7"});
  EXPECT_EQ(subscriber.exit_code, 1);
  EXPECT_EQ(subscriber.json()["version"], 1);
  EXPECT_THAT(subscriber.err, HasSubstr("exit code 7"));
  EXPECT_THAT(subscriber.err, HasSubstr("on stdout"));
}

TEST_F(Streaming, FilesThatAreThereAtTheStartCountOldestFirst) {
  std::filesystem::create_directory(folder_ / "in");
  write_file(folder_ / "in/b.safetensors", encoded(chain(1, 1, 1)));
  write_file(folder_ / "in/a.safetensors", encoded(chain(1, 1, 2)));
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(folder_ / "in/b.safetensors", now - std::chrono::hours(2));
  std::filesystem::last_write_time(folder_ / "in/a.safetensors", now - std::chrono::hours(1));
  write_file(folder_ / "in/.hidden.safetensors", "x");
  write_file(folder_ / "in/other.txt", "x");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in", "--linger", "2"});
  EXPECT_EQ(publisher.next_json()["changed_tensors"], 3);
  const Json second = publisher.next_json();
  EXPECT_EQ(second["version"], 2);
  EXPECT_EQ(second["changed_tensors"], 1);
  const Ended ended = publisher.wait();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.out, "");
}

TEST_F(Streaming, AFileThatMayStillGrowIsNotTakenAndARenamedOneIs) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in", "--settle", "3600"});
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  const ModelBytes slow = model_of_all_types(3);
  write_file(folder_ / "in/slow.safetensors", encoded(slow).substr(0, 500));
  // Another file arrives later and is published: the watch did look, and passed over the half one.
  drop(folder_ / "in", "quick.safetensors", encoded(model_of_all_types(4)));
  EXPECT_EQ(publisher.next_json()["version"], 1);
  write_file(folder_ / "in/slow.safetensors", encoded(slow));
  std::filesystem::rename(folder_ / "in/slow.safetensors", folder_ / "in/done.safetensors");
  EXPECT_EQ(publisher.next_json()["version"], 2);
  publisher.signal(SIGINT);
  EXPECT_EQ(publisher.wait().err, "");
}

TEST_F(Streaming, AFileWrittenInPiecesIsTakenOnceWhole) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in", "--settle", "0.2"});
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  const ModelBytes slow = model_of_all_types(3);
  const std::string bytes = encoded(slow);
  std::ofstream file(folder_ / "in/slow.safetensors", std::ios::binary);
  for (std::size_t at = 0; at < bytes.size(); at += 64) file << bytes.substr(at, 64) << std::flush;
  file.close();
  EXPECT_EQ(publisher.next_json()["tensors"], slow.tensors.size());
  const Ended subscriber = run_to_end({"subscribe", "net", "--out", folder_ / "out", "--count", "1"});
  EXPECT_EQ(model_in(folder_ / "out/net@1.safetensors"), slow) << subscriber.err;
}

TEST_F(Streaming, AHostileFileIsLoggedAndTheWatchGoesOn) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  drop(folder_ / "in", "bad.safetensors", std::string(8, '\x7f') + "{}");
  EXPECT_THAT(publisher.next_error_line().value_or(""), HasSubstr("bad.safetensors"));
  drop(folder_ / "in", "good.safetensors", encoded(chain(1, 2, 3)));
  EXPECT_EQ(publisher.next_json()["version"], 1);
}

TEST_F(Streaming, AStrayFileInTheFolderIsNoVersion) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  const auto refused = [&](const std::string& name, const ModelBytes& model) {
    drop(folder_ / "in", name, encoded(model));
    return publisher.next_error_line().value_or("");
  };
  ModelBytes none;
  none.metadata = {{"epoch", "1"}};
  EXPECT_THAT(refused("none.safetensors", none), HasSubstr("none.safetensors: not published: the file has no tensors"));
  EXPECT_THAT(refused("net-00001-of-00002.safetensors", chain(1, 2, 3)), HasSubstr("part of a checkpoint"));
  drop(folder_ / "in", "1.safetensors", encoded(chain(1, 2, 3)));
  ASSERT_EQ(publisher.next_json()["version"], 1);

  ModelBytes other = chain(1, 2, 3);
  other.tensors[0].name = "head.w";
  other.tensors[1].dtype = "I32";
  const std::string line = refused("optimizer.safetensors", other);
  EXPECT_THAT(line, HasSubstr("optimizer.safetensors: not published: another architecture"));
  EXPECT_THAT(line, HasSubstr("1 missing (first: a.w), 1 new (first: head.w), "
                              "1 of another form (first: b.w is i32[4], was f32[4])"));
  EXPECT_THAT(refused("none2.safetensors", none), HasSubstr("the file has no tensors"));
  // The same tensors in another order are no other architecture.
  ModelBytes reordered = chain(1, 2, 4);
  std::swap(reordered.tensors[0], reordered.tensors[2]);
  drop(folder_ / "in", "2.safetensors", encoded(reordered));
  const Json next = publisher.next_json();
  EXPECT_EQ(next["version"], 2);
  EXPECT_EQ(next["changed_tensors"], 1);
}

TEST_F(Streaming, AModelInPartsIsOneVersionOnceAllOfItIsThere) {
  std::filesystem::create_directory(folder_ / "in");
  const ModelBytes whole = chain(1, 2, 3);
  ModelBytes left = whole;
  left.tensors.pop_back();
  ModelBytes right;
  right.tensors = {whole.tensors.back()};
  Json map;
  for (const FileTensor& tensor : left.tensors) map[tensor.name] = "left.safetensors";
  map[right.tensors[0].name] = "right.safetensors";
  Running publisher = start({"publish", "net", "--watch", folder_ / "in", "--settle", "0.05"});
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  drop(folder_ / "in", "m.safetensors.index.json", Json({{"weight_map", map}}).dump());
  EXPECT_THAT(publisher.next_error_line().value_or(""), HasSubstr("left.safetensors"));
  drop(folder_ / "in", "left.safetensors", encoded(left));
  EXPECT_THAT(publisher.next_error_line().value_or(""), HasSubstr("m.safetensors"));
  drop(folder_ / "in", "right.safetensors", encoded(right));
  const Json line = publisher.next_json();
  EXPECT_EQ(line["version"], 1);
  EXPECT_EQ(line["tensors"], 3);
  const Ended part = run_to_end({"publish", "part", folder_ / "in/left.safetensors", "--linger", "0"});
  EXPECT_EQ(part.exit_code, 1);
  EXPECT_THAT(part.err, HasSubstr("m.safetensors.index.json names all its parts"));
  const Ended named = run_to_end({"publish", "named", folder_ / "in/m.safetensors.index.json", "--linger", "0"});
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(named.json()["tensors"], 3);
}

TEST_F(Streaming, AnotherArchitectureIsAVersionOnRequestAndTheLogSaysWhatDiffers) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start(
      {"publish", "net", file_of(chain(1, 2, 3), "a.safetensors"), "--watch", folder_ / "in", "--any-architecture"});
  ASSERT_EQ(publisher.next_json()["version"], 1);
  ASSERT_THAT(publisher.next_error_line().value_or(""), HasSubstr("served at"));
  ModelBytes wider = chain(1, 2, 3);
  wider.tensors.push_back({.name = "d.w", .dtype = "F32", .shape = {4}, .bytes = std::string(16, 'd')});
  drop(folder_ / "in", "wider.safetensors", encoded(wider));
  EXPECT_THAT(publisher.next_error_line().value_or(""),
              HasSubstr("wider.safetensors: another architecture than the version before: 1 new (first: d.w)"));
  EXPECT_EQ(publisher.next_json()["tensors"], 4);
}

TEST_F(Streaming, AFileWithoutTensorsEndsTheCommand) {
  const Ended ended = run_to_end({"publish", "net", file_of(ModelBytes{}, "none.safetensors"), "--linger", "0"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("none.safetensors: not published: the file has no tensors"));
}

TEST_F(Streaming, ANewArchitectureIsAVersionToo) {
  Running publisher = start(
      {"publish", "net", file_of(chain(1, 2, 3), "a.safetensors"), file_of(model_of_all_types(5), "b.safetensors")});
  EXPECT_EQ(publisher.next_json()["tensors"], 3);
  EXPECT_EQ(publisher.next_json()["tensors"], model_of_all_types(5).tensors.size());
  EXPECT_EQ(run_to_end({"subscribe", "net", "--out", folder_ / "out", "--count", "1"}).exit_code, 0);
  EXPECT_EQ(model_in(folder_ / "out/latest"), model_of_all_types(5));
}

TEST_F(Streaming, HostileFilesAreOneLineThatNamesThem) {
  const auto with_header = [](const std::string& json, std::size_t data) {
    const std::uint64_t length = json.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + json + std::string(data, 'x');
  };
  const std::vector<std::string> files = {
      "",
      "short",
      std::string("\0\0\0\0\0\0\0\x80{}", 10),
      std::string(8, '\xff'),
      with_header("not json", 0),
      with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
      with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
      with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8),
      with_header(R"({"a":{"dtype":"U8","shape":[4611686018427387904,8],"data_offsets":[0,0]}})", 0),
      with_header(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2),
      with_header(std::string(100'000, '['), 0),
  };
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string path = folder_ / "hostile.safetensors";
    write_file(path, files[i]);
    const Ended ended = run_to_end({"publish", "net", path});
    EXPECT_EQ(ended.exit_code, 4) << i << ": " << ended.err;
    EXPECT_EQ(ended.out, "");
    EXPECT_THAT(ended.err, HasSubstr("hostile.safetensors")) << i;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  // A later reader may know the dtype, so the file is not damaged.
  write_file(folder_ / "later.safetensors",
             with_header(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4));
  const Ended later = run_to_end({"publish", "net", folder_ / "later.safetensors"});
  EXPECT_EQ(later.exit_code, 1);
  EXPECT_THAT(later.err, HasSubstr("later.safetensors: tensor a: unknown dtype F33"));
  EXPECT_EQ(run_to_end({"publish", "net", folder_ / "nowhere.safetensors"}).exit_code, 3);
  EXPECT_EQ(run_to_end({"publish", "net", folder_.path()}).exit_code, 1);
}

TEST_F(Streaming, ASecondPublisherOfANameHearsWhoHasIt) {
  Running first = start({"publish", "net", file_of(chain(1, 2, 3), "a.safetensors")});
  ASSERT_EQ(first.next_json()["version"], 1);
  const Ended second = run_to_end({"publish", "net", folder_ / "a.safetensors"});
  EXPECT_EQ(second.exit_code, 5);
  EXPECT_THAT(second.err, HasSubstr(std::to_string(first.pid())));
  EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
}

TEST_F(Streaming, LingerEndsAndNumbersGoOnInTheNextLife) {
  const std::string file = file_of(chain(1, 2, 3), "a.safetensors");
  const Ended first = run_to_end({"publish", "net", file, "--linger", "0"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.json()["version"], 1);
  EXPECT_EQ(run_to_end({"publish", "net", file, "--linger", "0"}).json()["version"], 2);
}

TEST_F(Streaming, InterruptedIs130OnBothSides) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Running publisher = start({"publish", "net", file_of(chain(1, 2, 3), "a.safetensors")});
    ASSERT_TRUE(publisher.next_json().is_object());
    Running subscriber = start({"subscribe", "net"});
    const Json line = subscriber.next_json();
    ASSERT_TRUE(line.is_object());
    EXPECT_EQ(line["file"], nullptr);
    subscriber.signal(signal);
    const Ended ended = subscriber.wait();
    EXPECT_EQ(ended.exit_code, 130);
    EXPECT_EQ(ended.err, "");
    publisher.signal(signal);
    EXPECT_EQ(publisher.wait().exit_code, 130);
  }
}

TEST_F(Streaming, WhatDoesNotComeInTimeIsTimedOut) {
  const Ended nobody = run_to_end({"subscribe", "net", "--for", "0.3"});
  EXPECT_EQ(nobody.exit_code, 5);
  EXPECT_EQ(std::count(nobody.err.begin(), nobody.err.end(), '\n'), 1) << nobody.err;
  EXPECT_THAT(nobody.err, HasSubstr("no publisher of net answers in " + folder_ / "run"));

  Running publisher = start({"publish", "net", file_of(chain(1, 2, 3), "a.safetensors")});
  ASSERT_TRUE(publisher.next_json().is_object());
  Running counting = start({"subscribe", "net", "--for", "4", "--count", "2"});
  Running waiting = start({"subscribe", "net", "--for", "4"});
  const Ended too_few = counting.wait();
  EXPECT_EQ(too_few.exit_code, 5) << too_few.err;
  EXPECT_EQ(too_few.json()["version"], 1);
  EXPECT_EQ(waiting.wait().exit_code, 0);
  const Ended channel = run_to_end({"subscribe", "net", "--for", "1", "--channel", "zmq"});
  EXPECT_EQ(channel.exit_code, 5);
  EXPECT_THAT(channel.err, HasSubstr("channel zmq was asked for, and cannot be used: shm offered"));
}

TEST_F(Streaming, OnlyTheChannelsOfAnOfferAreThere) {
  const std::string file = file_of(chain(1, 2, 3), "a.safetensors");
  Running publisher = start({"publish", "net", file, "--listen", "tcp://127.0.0.1:*", "--offer", "zmq"});
  ASSERT_TRUE(publisher.next_json().is_object());
  const Ended fetching = run_to_end({"subscribe", "net", "--count", "1", "--channel", "zmq"});
  EXPECT_EQ(fetching.exit_code, 0) << fetching.err;
  EXPECT_EQ(fetching.json()["channel"], "zmq");
  Running other = start({"subscribe", "net", "--channel", "ucx"});
  EXPECT_THAT(other.next_error_line().value_or(""),
              HasSubstr("channel ucx was asked for, and cannot be used: zmq, shm offered"));
}

TEST_F(Streaming, TopShowsThePublisherAndItsSubscribers) {
  Running publisher = start({"publish", "net", file_of(chain(1, 2, 3), "a.safetensors")});
  ASSERT_TRUE(publisher.next_json().is_object());
  Running subscriber = start({"subscribe", "net"});
  ASSERT_TRUE(subscriber.next_json().is_object());
  Running live = start({"top", "net", "--interval", "0.05"});
  // The subscriber says what it serves with its next heartbeat.
  Json stat;
  do {
    stat = live.next_json();
    ASSERT_TRUE(stat.is_object());
  } while (stat["subscribers"].empty() || stat["subscribers"][0]["serving"] != 1);
  EXPECT_EQ(stat["model"], "net");
  EXPECT_EQ(stat["newest"], 1);
  EXPECT_EQ(stat["model_bytes"], 48);
  EXPECT_EQ(stat["subscribers"][0]["pid"], subscriber.pid());
  EXPECT_EQ(stat["subscribers"][0]["channel"], "shm");
  EXPECT_EQ(stat["subscribers"][0]["channel_why"], "shm: on the same host, nothing is copied");
  live.signal(SIGINT);
  EXPECT_EQ(live.wait().exit_code, 130);

  const Ended once = run({"top", "net", "--once"}, environment());
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_THAT(once.out, HasSubstr("net@1"));
  EXPECT_THAT(once.out, HasSubstr("    on the same host, nothing is copied"));
  EXPECT_EQ(run_to_end({"top", "other", "--once"}).exit_code, 3);
}

TEST_F(Streaming, AReaderThatLeavesEndsTheSubscriberQuietly) {
  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  drop(folder_ / "in", "1.safetensors", encoded(chain(1, 2, 3)));
  Running subscriber = start({"subscribe", "net"});
  ASSERT_TRUE(subscriber.next_json().is_object());
  subscriber.close_stdout();
  drop(folder_ / "in", "2.safetensors", encoded(chain(1, 2, 4)));
  const Ended ended = subscriber.wait();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err, "");
}

TEST_F(Streaming, AFullDiskUnderStdoutCostsLinesAndNotTheService) {
  const std::string err = folder_ / "err";
  const std::string files = file_of(chain(1, 2, 3), "1.safetensors") + " " + file_of(chain(1, 2, 4), "2.safetensors");
  EXPECT_EQ(run_in_shell("exec $FRESHET publish net " + files + " --linger 0 > /dev/full 2> " + err, environment()), 1);
  EXPECT_THAT(read_file(err).value_or(""),
              HasSubstr("write to stdout: No space left on device; lines are lost until there is room again"));

  std::filesystem::create_directory(folder_ / "in");
  Running publisher = start({"publish", "net", "--watch", folder_ / "in"});
  drop(folder_ / "in", "1.safetensors", encoded(chain(1, 2, 3)));
  ASSERT_EQ(publisher.next_json()["version"], 3);
  // The second version is made when the first one has come.
  const std::string line = "exec $FRESHET subscribe net --count 2 --out " + (folder_ / "out") + " --exec 'mv " +
                           (folder_ / "next") + " " + (folder_ / "in/2.safetensors") + " # {}' > /dev/full 2> " + err;
  write_file(folder_ / "next", encoded(chain(1, 2, 5)));
  EXPECT_EQ(run_in_shell(line, environment()), 1);
  EXPECT_EQ(model_in(folder_ / "out/latest"), chain(1, 2, 5));
}

TEST_F(Streaming, StreamsThatAreClosedAtTheStartBecomeNoOtherFile) {
  const std::string files = file_of(chain(1, 2, 3), "1.safetensors") + " " + file_of(chain(1, 2, 4), "2.safetensors");
  EXPECT_EQ(run_in_shell("exec $FRESHET publish net " + files + " --linger 0 <&- >&- 2>&-", environment()), 0);
  EXPECT_EQ(run_to_end({"publish", "net", folder_ / "1.safetensors", "--linger", "0"}).json()["version"], 3);
  const std::string repository = folder_ / "repository";
  EXPECT_EQ(run_in_shell("exec $FRESHET repo put net --weights " + (folder_ / "1.safetensors") + " --repo " +
                             repository + " <&- >&- 2>&-",
                         environment()),
            0);
  EXPECT_EQ(run_to_end({"repo", "ls", "net", "--repo", repository}).json()["version"], 1);
}

TEST_F(Streaming, KeysLetServersOfOtherHostsIn) {
  for (const char* name : {"trainer", "server", "stranger"}) {
    const Ended made = run_to_end({"keygen", folder_ / name});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(keys_of(Json::parse(made.out)), ElementsAre("key_file", "public_file", "public_key"));
  }
  EXPECT_EQ(run_to_end({"keygen", folder_ / "server"}).exit_code, 1);
  Running publisher = start({"publish", "net", file_of(model_of_all_types(1), "1.safetensors"), "--listen", "tcp://*:*",
                             "--keys", folder_ / "trainer", "--allow", folder_ / "server.pub"});
  EXPECT_EQ(publisher.next_json()["version"], 1);
  const auto follow = [&](const std::string& keys) {
    return run_to_end({"subscribe", "net", "--count", "1", "--for", keys == "server" ? "60" : "1", "--keys",
                       folder_ / keys, "--server-key", folder_ / "trainer.pub"});
  };
  const Ended admitted = follow("server");
  EXPECT_EQ(admitted.exit_code, 0) << admitted.err;
  EXPECT_EQ(Json::parse(admitted.out)["version"], 1);
  const Ended refused = follow("stranger");
  EXPECT_EQ(refused.exit_code, 5);
  EXPECT_THAT(refused.err, HasSubstr("allow-list"));
  const Ended top =
      run_to_end({"top", "net", "--once", "--keys", folder_ / "stranger", "--server-key", folder_ / "trainer.pub"});
  EXPECT_EQ(top.exit_code, 1);
  EXPECT_THAT(top.err, HasSubstr("allow-list"));
}

TEST_F(Streaming, WrongLinesAreWrongUsage) {
  for (const auto& line : std::vector<std::vector<std::string>>{{"publish"},
                                                                {"publish", "net"},
                                                                {"publish", "net", "f", "--linger", "-1"},
                                                                {"publish", "net", "f", "--linger", "nan"},
                                                                {"subscribe"},
                                                                {"subscribe", "net", "--every", "--latest"},
                                                                {"subscribe", "net", "--exec", "true {}"},
                                                                {"subscribe", "net", "--count", "0"},
                                                                {"subscribe", "../net"},
                                                                {"subscribe", "net", "--at", "nonsense"},
                                                                {"publish", "net", "f", "--at", "tcp://0.0.0.0:1"},
                                                                {"publish", "net", "f", "--listen", "tcp://a:1"},
                                                                {"publish", "net", "f", "--allow", "f"},
                                                                {"publish", "net", "f", "--offer", "zmq,pigeon"},
                                                                {"subscribe", "net", "--at", "tcp://10.0.0.1:1"},
                                                                {"subscribe", "net", "--server-key", "k"},
                                                                {"top", "net", "--at", "tcp://10.0.0.1:1"},
                                                                {"subscribe", "net", "--trusted-fabric"},
                                                                {"keygen"}}) {
    EXPECT_EQ(run_to_end(line).exit_code, 2) << testing::PrintToString(line);
  }
}

}  // namespace
}  // namespace freshet::cli_test
