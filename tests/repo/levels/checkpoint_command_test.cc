// SPDX-License-Identifier: Apache-2.0
/// `freshet checkpoint ls, get, verify, drain` on what a job left.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/repo/levels/support/job.h"

namespace freshet::test {
namespace {

struct Command {
  int exit_code = 0;
  std::vector<Json> lines;
};

Command freshet(std::vector<std::string> words, const std::string& group = "checkpoint") {
  words.insert(words.begin(), {FRESHET_PROGRAM, group});
  words.push_back("--json");
  ChildProcess process(std::move(words));
  const RankRun run = Job::finish(process);
  return {run.exit_code(), run.lines};
}

Command repo(std::vector<std::string> words) { return freshet(std::move(words), "repo"); }

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(CheckpointCommand, ListsGetsVerifiesAndDrains) {
  Job job(mixed_state());
  for (const RankRun& run : job.run(3, 5, {.words = {"--when-behind", "wait"}})) ASSERT_EQ(run.exit_code(), 0);
  const std::vector<std::string> all = {"--local", job.local(0), job.local(1), job.local(2)};
  Command listed = freshet(with({"ls"}, all));
  ASSERT_EQ(listed.lines.size(), 2U);
  EXPECT_EQ(listed.lines[1],
            (Json{{"model", "net"},
                  {"version", 5},
                  {"step", 5},
                  {"ranks", 3},
                  {"levels", {{"local", "complete"}, {"group", "incomplete"}, {"external", "incomplete"}}},
                  {"restorable", true}}));
  listed = freshet({"ls", "net", "--local", job.local(0), job.local(1)});
  EXPECT_EQ(listed.lines[1]["restorable"], false);
  EXPECT_EQ(listed.lines[1]["levels"]["local"], "incomplete");

  const std::string out = job.folder("out.safetensors");
  EXPECT_EQ(freshet(with({"get", "net@4", "-o", out}, all)).exit_code, 0);
  EXPECT_EQ(job.difference_of_file(out, 4, 3), "");
  EXPECT_EQ(freshet(with({"get", "net@77", "-o", out}, all)).exit_code, 3);
  EXPECT_EQ(freshet({"get", "net@5", "-o", out, "--local", job.local(0)}).exit_code, 4);
  EXPECT_EQ(job.difference_of_file(out, 4, 3), "") << "a failed get left something else";

  EXPECT_EQ(freshet(with({"drain", "net", "--external", job.folder("runs")}, all)).lines.size(), 2U);
  EXPECT_EQ(freshet(with({"drain", "net", "--external", job.folder("runs")}, all)).lines.size(), 0U);
  const std::vector<std::string> elsewhere = {"--local", job.local(0), "--external", job.folder("runs")};
  EXPECT_EQ(freshet(with({"ls", "net"}, elsewhere)).lines[1]["levels"]["external"], "complete");
  EXPECT_EQ(freshet(with({"get", "net", "-o", out}, elsewhere)).exit_code, 0);
  EXPECT_EQ(job.difference_of_file(out, 5, 3), "");

  Command verified = freshet(with({"verify"}, all));
  EXPECT_EQ(verified.exit_code, 0);
  EXPECT_GT(verified.lines[0]["checked_bytes"], 1'600'000);
  std::fstream file(job.shards(1).back(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.put('!');
  file.close();
  verified = freshet(with({"verify"}, all));
  EXPECT_EQ(verified.exit_code, 4);
  ASSERT_EQ(verified.lines[0]["corrupt"].size(), 1U);
  EXPECT_EQ(verified.lines[0]["corrupt"][0]["version"], "net@5");
  EXPECT_EQ(verified.lines[0]["corrupt"][0]["rank"], 1);
  // The newest is not whole: the one before is.
  const Command older = freshet(with({"get", "net", "-o", out}, all));
  EXPECT_EQ(older.exit_code, 0);
  EXPECT_EQ(older.lines[0]["version"], 4);
  EXPECT_EQ(job.difference_of_file(out, 4, 3), "");
}

/// What is left of a group gives back what is lost, without the job.
TEST(CheckpointCommand, RebuildsFromParity) {
  Job job(mixed_state());
  const std::vector<std::string> group = {"--group", "rs:2", "--host", "h{rank}", "--when-behind", "wait"};
  for (const RankRun& run : job.run(4, 5, {.words = group})) ASSERT_EQ(run.exit_code(), 0);
  const std::vector<std::string> all = {"--local", job.local(0), job.local(1), job.local(2), job.local(3)};
  const std::vector<std::string> two = {"--local", job.local(0), job.local(2)};
  EXPECT_EQ(freshet(with({"ls"}, all)).lines[1]["levels"]["group"], "complete");
  const Command verified = freshet(with({"verify"}, all));
  EXPECT_EQ(verified.exit_code, 0);
  const Command listed = freshet(with({"ls"}, two));
  ASSERT_EQ(listed.lines.size(), 2U);
  EXPECT_EQ(listed.lines[1]["levels"],
            (Json{{"local", "incomplete"}, {"group", "rebuildable"}, {"external", "incomplete"}}));
  EXPECT_EQ(listed.lines[1]["restorable"], true);
  const std::string out = job.folder("out.safetensors");
  EXPECT_EQ(freshet(with({"get", "net@5", "-o", out}, two)).exit_code, 0);
  EXPECT_EQ(job.difference_of_file(out, 5, 4), "");
  EXPECT_EQ(freshet(with({"drain", "net", "--external", job.folder("runs")}, two)).lines.size(), 2U);
  EXPECT_EQ(freshet({"get", "net@5", "-o", out, "--local", job.local(0)}).exit_code, 4);
  // A flipped byte of parity is found by who reads everything.
  for (const auto& entry : std::filesystem::directory_iterator(job.local(0) + "/net")) {
    if (entry.path().extension() != ".parity") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-400, std::ios::end);
    file.put('!');
  }
  EXPECT_EQ(freshet(with({"verify"}, two)).exit_code, 4);
}

TEST(CheckpointCommand, ReadsCopiesToo) {
  Job job(mixed_state());
  const std::vector<std::string> group = {"--group", "partner", "--host", "h{rank}", "--when-behind", "wait"};
  for (const RankRun& run : job.run(2, 5, {.words = group})) ASSERT_EQ(run.exit_code(), 0);
  const std::vector<std::string> all = {"--local", job.local(0), job.local(1)};
  const auto flip = [](const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(path));
    for (std::streamoff at = bytes / 2; at < bytes; at += 16) {
      file.seekg(at);
      const char was = static_cast<char>(file.get());
      file.seekp(at);
      file.put(static_cast<char>(was ^ 1));
    }
  };
  // With the shard damaged, its copy does; and the other way about.
  const std::string shard = job.shards(0).back();
  std::string copy;
  for (const auto& entry : std::filesystem::directory_iterator(job.local(1) + "/net")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("5.") && name.ends_with(".copy")) copy = entry.path().string();
  }
  ASSERT_NE(copy, "");
  const std::string out = job.folder("out.safetensors");
  for (const std::string& damaged : {shard, copy}) {
    SCOPED_TRACE(damaged);
    flip(damaged);
    EXPECT_EQ(freshet(with({"verify"}, all)).exit_code, 4);
    EXPECT_EQ(freshet(with({"get", "net@5", "-o", out}, all)).exit_code, 0);
    EXPECT_EQ(job.difference_of_file(out, 5, 2), "");
    flip(damaged);
    EXPECT_EQ(freshet(with({"verify"}, all)).exit_code, 0);
  }
}

/// `freshet repo` on the folders of a job, which answers as for a repository.
TEST(CheckpointCommand, RepositoryCommandsAnswerForAJobsFolders) {
  Job job(mixed_state());
  const Job::Options options{.words = {"--when-behind", "wait", "--external", job.folder("runs"), "--keep", "local:3"}};
  for (const RankRun& run : job.run(2, 5, options)) ASSERT_EQ(run.exit_code(), 0);
  const std::vector<std::string> all = {"--local", job.local(0), job.local(1)};
  const std::vector<std::string> stored = {"--repo", job.folder("runs")};

  // The job kept three. Of the two before them newer ones need bytes: what version 1 wrote and no later step changed,
  // and what version 2 wrote and step 3 did not change.
  EXPECT_EQ(repo(with({"ls"}, all)).lines,
            (std::vector<Json>{{{"model", "net"}, {"versions", 3}, {"newest", 5}, {"quality", nullptr}}}));
  const std::vector<Json> listed = repo(with({"ls", "net"}, all)).lines;
  ASSERT_EQ(listed.size(), 5U);
  for (std::size_t at = 0; at < 5; ++at) {
    Json expected = repo(with({"ls", "net"}, stored)).lines[at];
    expected.erase("created_ms");
    if (at < 2) {
      for (const char* const key : {"step", "metrics"}) expected.erase(key);
      expected["retired"] = true;
    }
    Json line = listed[at];
    EXPECT_EQ(line.erase("created_ms"), at < 2 ? 0U : 1U);
    EXPECT_EQ(line, expected);
  }
  const Json lineage = repo(with({"lineage", "net"}, all)).lines[0];
  Json expected = repo(with({"lineage", "net"}, stored)).lines[0];
  ASSERT_EQ(expected.size(), 5U);
  EXPECT_EQ(expected[0]["ancestor"], "net@4");
  expected[3]["retired"] = expected[4]["retired"] = true;
  EXPECT_EQ(lineage, expected);
  EXPECT_EQ(repo(with({"lineage", "net@4"}, all)).lines[0][0]["version"], "net@4");
  EXPECT_EQ(repo(with({"show", "net@1"}, all)).exit_code, 3);
  // No rank stores an empty tensor, so nobody knows who wrote it.
  const auto filled = [](const Json& tensors) {
    Json some = Json::array();
    for (const Json& tensor : tensors) {
      if (tensor["bytes"] != 0) some.push_back(tensor);
    }
    return some;
  };
  const Json shown = repo(with({"show", "net"}, all)).lines[0];
  EXPECT_EQ(shown["tags"], (Json{{"checkpoint.ranks", "2"}}));
  EXPECT_EQ(filled(shown["tensors"]), filled(repo(with({"show", "net"}, stored)).lines[0]["tensors"]));
  const Json owners = repo(with({"owners", "net"}, all)).lines[0];
  EXPECT_EQ(filled(owners), filled(repo(with({"owners", "net"}, stored)).lines[0]));
  EXPECT_NE(owners.dump().find("net@1"), std::string::npos);

  // One rank's folder answers for what this rank stores; --repo knows it.
  EXPECT_EQ(repo({"ls", "net", "--repo", job.local(1)}).lines.size(), listed.size());
  Command verified = repo({"verify", "--repo", job.local(1)});
  EXPECT_EQ(verified.exit_code, 0);
  EXPECT_GT(verified.lines[0]["checked_bytes"], 0);
  EXPECT_EQ(repo(with({"verify"}, all)).lines, freshet(with({"verify"}, all)).lines);

  std::fstream file(job.shards(1).back(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.put('!');
  file.close();
  verified = repo(with({"verify"}, all));
  EXPECT_EQ(verified.exit_code, 4);
  ASSERT_EQ(verified.lines[0]["corrupt"].size(), 1U);
  const Json& corrupt = verified.lines[0]["corrupt"][0];
  EXPECT_EQ(corrupt["version"], "net@5");
  EXPECT_EQ(corrupt["rank"], 1);
  EXPECT_NE(corrupt["tensor"], "");
  EXPECT_EQ(verified.lines, freshet(with({"verify"}, all)).lines);
  EXPECT_EQ(repo(with({"verify", "net@5"}, all)).exit_code, 4);
  EXPECT_EQ(repo(with({"verify", "net@4"}, all)).exit_code, 0);
  EXPECT_EQ(repo(with({"verify", "net@9"}, all)).exit_code, 3);
  EXPECT_EQ(repo(with({"verify", "net@1"}, all)).exit_code, 3) << "the job let go of it";
  // A file that is cut short is of no version that could be named.
  std::filesystem::resize_file(job.shards(1).back(), 100);
  verified = repo({"verify", "--repo", job.local(1)});
  EXPECT_EQ(verified.exit_code, 4);
  EXPECT_EQ(verified.lines[0]["corrupt"][0]["version"], nullptr);
  EXPECT_EQ(verified.lines[0]["corrupt"][0]["record"], "net");
  EXPECT_NE(verified.lines[0]["corrupt"][0]["reason"].get<std::string>().find(job.local(1)), std::string::npos);
}

TEST(CheckpointCommand, BadInputIsAnErrorThatNamesIt) {
  Job job(mixed_state());
  EXPECT_EQ(freshet({"ls", "--local", job.folder("nowhere")}).exit_code, 3);
  EXPECT_EQ(freshet({"ls"}).exit_code, 2);
  EXPECT_EQ(freshet({"get", "net", "--local", job.folder("nowhere"), "-o", job.folder("o")}).exit_code, 3);
  EXPECT_EQ(freshet({"get", "../net", "--local", job.folder("nowhere"), "-o", job.folder("o")}).exit_code, 2);
  EXPECT_EQ(freshet({"drain", "net", "--local", job.folder("nowhere")}).exit_code, 2);
  for (const RankRun& run : job.run(1, 2)) ASSERT_EQ(run.exit_code(), 0);
  const std::string above = std::filesystem::path(job.local(0)).parent_path();
  for (const std::string& wrong : {above, job.folder("empty"), job.local(0) + "/net"}) {
    std::filesystem::create_directories(wrong);
    EXPECT_EQ(freshet({"verify", "--local", wrong}).exit_code, 3) << wrong;
    const Command listed = freshet({"ls", "--local", wrong});
    EXPECT_EQ(listed.exit_code, 0) << "a job may have none yet";
    EXPECT_EQ(listed.lines.size(), 0U);
  }
  EXPECT_EQ(freshet({"verify", "other", "--local", job.local(0)}).exit_code, 3);
  const std::string empty = job.folder("empty/net");
  std::filesystem::create_directories(empty);
  EXPECT_EQ(repo({"ls", "--local", job.folder("nowhere")}).exit_code, 3);
  for (const char* const command : {"ls", "verify"}) {
    EXPECT_EQ(repo({command, "--local", job.folder("empty")}).exit_code, 3);
    EXPECT_EQ(repo({command, "--repo", job.folder("empty")}).exit_code, 3);
  }
  EXPECT_EQ(repo({"ls", "--local", empty, "--repo", empty}).exit_code, 2);
}

/// A checkpoint is a version like others: a server can follow a job again, and gets its weights and buffers alone.
TEST(CheckpointCommand, ReplayGivesAServerTheVersionsOfAJob) {
  Job job(mixed_state());
  const Job::Options options{.words = {"--when-behind", "wait", "--external", job.folder("runs")}};
  for (const RankRun& run : job.run(2, 3, options)) ASSERT_EQ(run.exit_code(), 0);
  // Another number of ranks goes on with the same run.
  for (const RankRun& run : job.run(3, 5, options)) ASSERT_EQ(run.exit_code(), 0);
  const auto words = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"/usr/bin/env", "FRESHET_RUN_DIR=" + job.folder("run"), FRESHET_PROGRAM};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ChildProcess replay(
      words({"replay", "net", "--repo", job.folder("runs"), "--fast", "--as", "again", "--wait-for", "1", "--json"}));
  ChildProcess server(
      words({"subscribe", "again", "--every", "--out", job.folder("served"), "--count", "5", "--json"}));
  EXPECT_EQ(Job::finish(server).exit_code(), 0);
  for (std::uint64_t version = 1; version <= 5; ++version) {
    const Json line = Json::parse(replay.line().value_or(""), nullptr, false);
    ASSERT_FALSE(line.is_discarded());
    EXPECT_EQ(line["version"], version);
    EXPECT_EQ(line["replay_of"], "net@" + std::to_string(version));
    const std::string file = job.folder("served/again@" + std::to_string(version) + ".safetensors");
    EXPECT_EQ(job.difference_of_served_file(file, version), "") << file;
  }
}

}  // namespace
}  // namespace freshet::test
