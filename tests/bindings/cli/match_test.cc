// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// x -> a -> b -> c, Dense layers of these many units; 4 bytes a unit of bias.
Json chain_graph(const std::vector<int>& units) {
  Json layers = Json::array();
  layers.push_back(
      {{"name", "x"}, {"class", "Input"}, {"config", {{"shape", {nullptr, 8}}}}, {"inputs", Json::array()}});
  std::string before = "x";
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    layers.push_back({{"name", name},
                      {"class", "Dense"},
                      {"config", {{"units", units[i]}}},
                      {"inputs", {before}},
                      {"tensors", {{"bias", {{"dtype", "f32"}, {"shape", {units[i]}}}}}}});
    before = name;
  }
  return {{"freshet_graph", 1}, {"name", "chain"}, {"layers", layers}, {"outputs", {before}}};
}

class MatchCommand : public testing::Test {
 protected:
  Ended repo(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "repo");
    arguments.push_back("--json");
    return run(arguments, {{"FRESHET_REPO", folder_ / "repository"}});
  }

  std::string graph_file(const std::vector<int>& units) {
    const std::string path = folder_ / ("graph" + std::to_string(files_++) + ".json");
    write_file(path, chain_graph(units).dump());
    return path;
  }

  /// A trained one: biases of zero.
  void put(const std::string& model, const std::vector<int>& units, std::vector<std::string> more = {}) {
    ModelBytes weights;
    for (std::size_t i = 0; i < units.size(); ++i) {
      weights.tensors.push_back({.name = std::string(1, static_cast<char>('a' + i)) + ".bias",
                                 .dtype = "F32",
                                 .shape = {static_cast<std::uint64_t>(units[i])},
                                 .bytes = std::string(4 * static_cast<std::size_t>(units[i]), '\0')});
    }
    const std::string file = folder_ / ("weights" + std::to_string(files_++) + ".safetensors");
    write_file(file, encoded(weights));
    std::vector<std::string> arguments = {"put", model, "--graph", graph_file(units), "--weights", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = repo(arguments);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  }

  Json match(const std::vector<int>& units, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"match", "--graph", graph_file(units)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = repo(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json();
  }

  TemporaryFolder folder_;
  int files_ = 0;
};

std::vector<std::string> models_of(const Json& top) {
  std::vector<std::string> names;
  for (const Json& row : top) names.push_back(row["model"].get<std::string>());
  return names;
}

TEST_F(MatchCommand, TheBestAncestorIsThatOfTheLongestPrefix) {
  put("short", {4, 5, 9});
  put("long", {4, 5, 6}, {"--quality", "0.5"});
  const Json answer = match({4, 5, 6, 7}, {"--top", "5"});
  EXPECT_EQ(answer["best"], Json({{"model", "long"},
                                  {"version", 1},
                                  {"lcp_layers", 3},
                                  {"lcp_parametric_layers", 3},
                                  {"lcp_bytes", 60},
                                  {"quality", 0.5}}));
  EXPECT_THAT(models_of(answer["top"]), ElementsAre("long", "short"));
  EXPECT_EQ(answer["top"][1]["quality"], Json());
  EXPECT_EQ(answer["as_of"], 2);
  EXPECT_EQ(match({3, 5, 6})["best"], Json());
}

TEST_F(MatchCommand, EqualsGoToQualityThenToTheLater) {
  put("a", {4, 1}, {"--quality", "0.25"});
  put("b", {4, 2}, {"--quality", "0.75"});
  put("c", {4, 3});
  put("d", {4, 8}, {"--quality", "0.75"});
  EXPECT_THAT(models_of(match({4, 9}, {"--top", "9"})["top"]), ElementsAre("d", "b", "a", "c"));
}

TEST_F(MatchCommand, FiltersAndObjectives) {
  put("tagged", {4, 5}, {"--tag", "space=small", "--quality", "0.1"});
  put("wide", {4, 100}, {"--quality", "0.9"});
  EXPECT_EQ(repo({"put", "untrained", "--graph", graph_file({4, 5, 6})}).exit_code, 0);
  EXPECT_EQ(match({4, 5, 6})["best"]["model"], "tagged");
  EXPECT_EQ(match({4, 5, 6}, {"--any"})["best"]["model"], "untrained");
  EXPECT_EQ(match({4, 100, 6}, {"--tag", "space=small"})["best"]["model"], "tagged");
  EXPECT_EQ(match({4, 5, 6}, {"--min-quality", "0.5"})["best"]["model"], "wide");
  EXPECT_EQ(match({4, 5, 6}, {"--exclude", "tagged"})["best"]["model"], "wide");
  EXPECT_EQ(match({4, 100}, {"--objective", "bytes"})["best"]["lcp_bytes"], 416);
  const std::string graph = graph_file({4});
  EXPECT_EQ(repo({"match", "--graph", graph, "--exclude", "nobody"}).exit_code, 3);
  EXPECT_EQ(repo({"match", "--graph", graph, "--objective", "beauty"}).exit_code, 2);
  EXPECT_EQ(repo({"match", "--graph", graph, "--top", "0"}).exit_code, 2);
  EXPECT_EQ(repo({"match"}).exit_code, 2);
}

TEST_F(MatchCommand, TheBestOneIsPinned) {
  put("net", {4, 5});
  EXPECT_EQ(match({4, 5}, {"--pin", "worker"})["best"]["version"], 1);
  EXPECT_THAT(repo({"show", "net"}).json()["pins"], ElementsAre("worker"));
}

TEST_F(MatchCommand, AnExplanationNamesTheFirstDifference) {
  put("net", {4, 5, 6});
  const Json steps = match({4, 8, 6}, {"--explain"})["explain"];
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0], Json({{"layer", "x"}, {"class", "Input"}, {"matches", "x"}, {"counted", false}}));
  EXPECT_EQ(steps[1], Json({{"layer", "a"}, {"class", "Dense"}, {"matches", "a"}, {"counted", true}}));
  EXPECT_THAT(steps[2]["why_not"].get<std::string>(), HasSubstr("{\"units\":5}"));
  EXPECT_EQ(steps[2]["matches"], Json());
  EXPECT_THAT(steps[3]["why_not"].get<std::string>(), HasSubstr("its input b does not match"));
}

TEST_F(MatchCommand, ABatchAnswersEveryLineInOrder) {
  put("net", {4, 5, 6});
  write_file(folder_ / "b.jsonl", chain_graph({4, 5}).dump() + "\n{\"freshet_graph\":1\n\n" + chain_graph({9}).dump() +
                                      "\n" + chain_graph({4}).dump());
  const Ended ended = repo({"match", "--batch", folder_ / "b.jsonl"});
  EXPECT_EQ(ended.exit_code, 1);
  const std::vector<Json> lines = ended.json_lines();
  ASSERT_EQ(lines.size(), 4u) << ended.out;
  EXPECT_EQ(lines[0]["best"]["lcp_layers"], 2);
  EXPECT_EQ(lines[1]["line"], 2);
  EXPECT_EQ(lines[2]["best"], Json());
  EXPECT_EQ(lines[3]["best"]["lcp_layers"], 1);
}

}  // namespace
}  // namespace freshet::cli_test
