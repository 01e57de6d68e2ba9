// SPDX-License-Identifier: Apache-2.0
// `--metric` of ls, lineage and match: a metric in place of the quality.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// net@1 … net@5, of which net@2 has the lowest val_loss, net@3 the highest acc, and net@5 neither.
class MetricOption : public testing::Test {
 protected:
  void SetUp() override {
    put("net", 1, {{"val_loss", "0.75"}, {"acc", "0.5"}});
    put("net", 2, {{"val_loss", "0.25"}, {"acc", "0.625"}});
    put("net", 3, {{"val_loss", "0.5"}, {"acc", "0.875"}});
    put("net", 4, {{"val_loss", "1.5"}, {"acc", "0.25"}});
    put("net", 5, {});
    put("other", 6, {{"val_loss", "0.125"}});
  }

  Ended repo(std::vector<std::string> arguments, bool json = true) {
    arguments.insert(arguments.begin(), "repo");
    if (json) arguments.push_back("--json");
    return run(arguments, {{"FRESHET_REPO", folder_ / "repository"}});
  }
  void put(const std::string& model, char value, std::vector<std::pair<std::string, std::string>> metadata) {
    ModelBytes weights = chain(1, 2, value);
    weights.metadata = std::move(metadata);
    write_file(folder_ / "weights", encoded(weights));
    std::vector<std::string> arguments = {"put", model, "--weights", folder_ / "weights"};
    if (value > 1 && model == "net") arguments.insert(arguments.end(), {"--ancestor", "net"});
    ASSERT_EQ(repo(arguments).exit_code, 0);
  }
  std::vector<int> versions(std::vector<std::string> arguments) {
    std::vector<int> numbers;
    for (const Json& line : repo(std::move(arguments)).json_lines()) numbers.push_back(line["version"]);
    return numbers;
  }

  TemporaryFolder folder_;
};

TEST_F(MetricOption, ListsTheBestFirst) {
  EXPECT_THAT(versions({"ls", "net"}), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(versions({"ls", "net", "--metric", "val_loss"}), ElementsAre(2, 3, 1, 4, 5)) << "lower is better";
  EXPECT_THAT(versions({"ls", "net", "--metric", "acc"}), ElementsAre(3, 2, 1, 4, 5));
  EXPECT_THAT(versions({"ls", "net", "--metric", "acc", "--lower"}), ElementsAre(4, 1, 2, 3, 5));
  EXPECT_THAT(versions({"ls", "net", "--metric", "val_loss", "--higher"}), ElementsAre(4, 1, 3, 2, 5));
  EXPECT_THAT(versions({"ls", "net", "--metric", "val_loss", "--at-most", "0.5"}), ElementsAre(2, 3));
  EXPECT_THAT(versions({"ls", "net", "--metric", "val_loss", "--at-most", "1", "--at-least", "0.5"}),
              ElementsAre(3, 1));
  const Json first = repo({"ls", "net", "--metric", "acc"}).json_lines().front();
  const Ended slip = repo({"ls", "net", "--metric", "los"});
  EXPECT_EQ(slip.exit_code, 3);
  EXPECT_THAT(slip.err, HasSubstr("no version here has a metric los; here are: acc, "));
  EXPECT_EQ(repo({"lineage", "net", "--metric", "los"}).exit_code, 3);
  EXPECT_EQ(first["metric"], 0.875);
  EXPECT_EQ(first["metrics"]["val_loss"], 0.5);
  EXPECT_FALSE(repo({"ls", "net"}).json_lines().front().contains("metric"));
  EXPECT_THAT(repo({"ls", "net", "--metric", "val_loss"}, false).out, HasSubstr("STEP  val_loss  CREATED"));

  const std::vector<Json> models = repo({"ls", "--metric", "val_loss"}).json_lines();
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(
      models[0],
      Json({{"model", "other"}, {"versions", 1}, {"newest", 1}, {"quality", nullptr}, {"best", 1}, {"metric", 0.125}}));
  EXPECT_EQ(models[1]["best"], 2);
  EXPECT_EQ(models[1]["newest"], 5);
  EXPECT_EQ(repo({"ls", "--metric", "acc", "--at-least", "0.9"}).out, "");
}

TEST_F(MetricOption, LineagesAreColouredByIt) {
  const std::string svg = folder_ / "line.svg";
  const Json rows = repo({"lineage", "net", "--metric", "val_loss", "--svg", svg}).json();
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0]["metric"], Json()) << "the newest has none";
  EXPECT_EQ(rows[3]["metric"], 0.25);
  EXPECT_EQ(rows[3]["quality"], Json()) << "keys of before mean what they meant";
  const std::string drawn = read_file(svg).value_or("");
  EXPECT_THAT(drawn, HasSubstr(">net@2  0.25 (best)</text>"));
  EXPECT_THAT(drawn, HasSubstr(">val_loss: worst 1.5</text>"));
  EXPECT_EQ(repo({"lineage", "net", "--metric", "acc", "--svg", svg}).exit_code, 0);
  EXPECT_THAT(read_file(svg).value_or(""), HasSubstr(">net@3  0.875 (best)</text>"));
  EXPECT_THAT(repo({"descendants", "net@1", "--metric", "acc", "--at-least", "0.5"}).json().size(), 2u);
  EXPECT_THAT(repo({"lineage", "net", "--metric", "acc"}, false).out, HasSubstr("acc"));
}

TEST_F(MetricOption, DecidesBetweenEqualMatches) {
  const std::string layer = R"("class":"Dense","config":{"units":4},"tensors":{"w":{"dtype":"f32","shape":[4]}})";
  const auto graph = [&](const std::string& name, const std::string& second) {
    const std::string path = folder_ / name;
    write_file(path, R"({"freshet_graph":1,"name":"n","outputs":["b"],"layers":[{"name":"a","inputs":[],)" + layer +
                         R"(},{"name":"b","inputs":["a"],"class":")" + second + R"(","config":{}}]})");
    return path;
  };
  ModelBytes weights;
  const auto put_graph = [&](const std::string& model, const std::string& second, const std::string& loss,
                             const std::string& quality) {
    weights = chain(1, 2, 3);
    weights.tensors.resize(1);
    weights.metadata = {{"loss", loss}};
    write_file(folder_ / "g.safetensors", encoded(weights));
    const Ended ended = repo({"put", model, "--graph", graph("g.json", second), "--weights", folder_ / "g.safetensors",
                              "--quality", quality});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  };
  put_graph("g1", "Relu", "0.5", "0.9");
  put_graph("g2", "Relu", "0.25", "0.1");
  put_graph("longer", "Tanh", "2", "0.5");
  const std::string query = graph("query.json", "Tanh");
  const auto best = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"match", "--graph", query};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Json answer = repo(arguments).json();
    std::vector<std::string> models;
    for (const Json& row : answer["top"]) models.push_back(row["model"]);
    return models;
  };
  EXPECT_THAT(best({"--top", "3"}), ElementsAre("longer", "g1", "g2")) << "by quality";
  EXPECT_THAT(best({"--top", "3", "--metric", "loss"}), ElementsAre("longer", "g2", "g1"));
  EXPECT_THAT(best({"--metric", "loss", "--at-most", "1"}), ElementsAre("g2"));
  EXPECT_THAT(best({"--metric", "loss", "--at-most", "1", "--higher"}), ElementsAre("g1"));
  EXPECT_THAT(best({"--metric", "nothing", "--at-most", "1"}), testing::IsEmpty());
  EXPECT_EQ(repo({"match", "--graph", query, "--metric", "loss"}).json()["best"]["metric"], 2);
}

TEST_F(MetricOption, WhatDoesNotGoTogetherIsWrongUsage) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"ls", "net", "--lower"},
                                             {"ls", "net", "--at-most", "1"},
                                             {"ls", "net", "--metric", ""},
                                             {"ls", "net", "--metric", "loss", "--lower", "--higher"},
                                             {"ls", "net", "--metric", "loss", "--at-most", "nan"},
                                             {"match", "--graph", "g.json", "--metric", "loss", "--pin", "me"}}) {
    const Ended ended = repo(wrong);
    EXPECT_EQ(ended.exit_code, 2) << testing::PrintToString(wrong) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
}

}  // namespace
}  // namespace freshet::cli_test
