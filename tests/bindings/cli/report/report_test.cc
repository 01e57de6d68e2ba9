// SPDX-License-Identifier: Apache-2.0
// `freshet report`: the page, read by Python's HTML parser.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tests/bindings/cli/support/streaming.h"
#include "tests/support/small_disk.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Places of a version's row (bindings/cli/report/report_data.h).
struct Column {
  enum { kNumber, kAncestor, kStep, kCreated, kQuality, kOwn, kInherited, kRetired, kWhy, kGraph, kOwners, kMetrics };
};

class Report : public Streaming {
 protected:
  Ended repo(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "repo");
    arguments.insert(arguments.end(), {"--repo", place_});
    return run_to_end(std::move(arguments));
  }
  void put(const std::string& model, ModelBytes weights, std::vector<std::pair<std::string, std::string>> metadata,
           std::vector<std::string> more = {}) {
    weights.metadata = std::move(metadata);
    std::vector<std::string> arguments = {"put", model, "--weights", file_of(weights, "weights.safetensors")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = repo(arguments);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  }
  Ended report(const std::string& model, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"report", model, "--repo", place_, "-o", page_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_to_end(std::move(arguments));
  }
  /// What Python's parser sees in the page.
  Json parsed() const {
    const std::string out = folder_ / "parsed.json";
    const std::string line = "python3 '" FRESHET_PAGE_PARSER "' '" + page_ + "' > '" + out + "'";
    EXPECT_EQ(std::system(line.c_str()), 0);
    return Json::parse(read_file(out).value_or(""), nullptr, false);
  }
  /// For many puts: a sync of a file takes no time there. Without the right to mount they take longer.
  void keep_in_memory() {
    memory_.emplace(std::uint64_t{512} << 20);
    if (*memory_) place_ = *memory_ / "repository";
  }
  static Json data_of(const Json& page) { return page["scripts"][0]["data"]; }

  std::string place_ = folder_ / "repository";
  std::string page_ = folder_ / "report.html";
  std::optional<SmallDisk> memory_;
};

TEST_F(Report, TellsOfVersionsOwnersAndServers) {
  put("net", chain(1, 2, 3), {{"loss", "0.75"}, {"step", "10"}});
  put("net", chain(1, 2, 4), {{"loss", "0.25"}, {"step", "20"}}, {"--ancestor", "net", "--tag", "schedule=it fell"});
  put("net", chain(1, 5, 4), {{"loss", "0.5"}, {"step", "30"}}, {"--ancestor", "net"});
  Running publisher = start({"publish", "net", file_of(chain(1, 2, 3), "1.safetensors")});
  ASSERT_EQ(publisher.next_json()["version"], 1);
  Running subscriber = start({"subscribe", "net", "--out", folder_ / "out"});
  ASSERT_EQ(subscriber.next_json()["version"], 1);

  const Ended ended = report("net");
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(keys_of(ended.json()),
              ElementsAre("model", "file", "bytes", "versions", "left_out", "publisher", "subscribers"));
  EXPECT_EQ(ended.json()["bytes"], std::filesystem::file_size(page_));
  EXPECT_EQ(ended.json()["subscribers"], 1);

  const Json page = parsed();
  const Json data = data_of(page);
  ASSERT_EQ(data["versions"].size(), 3u);
  EXPECT_EQ(data["metrics"][0], Json({{"name", "loss"}, {"lower", true}}));
  EXPECT_EQ(data["measure"], "loss") << "no version has a quality";
  const Json& second = data["versions"][1];
  EXPECT_EQ(second[Column::kNumber], 2);
  EXPECT_EQ(second[Column::kAncestor], 1);
  EXPECT_EQ(second[Column::kStep], 20);
  EXPECT_EQ(second[Column::kWhy], "it fell");
  EXPECT_EQ(second[Column::kMetrics], 0.25);
  // a.w and b.w are net@1's, c.w its own.
  std::vector<std::string> owners;
  for (std::size_t at = 0; at < second[Column::kOwners].size(); at += 2) {
    for (int n = second[Column::kOwners][at]; n > 0; --n)
      owners.push_back(data["owners"][int(second[Column::kOwners][at + 1])]);
  }
  EXPECT_THAT(owners, ElementsAre("net@1", "net@1", "net@2"));
  EXPECT_EQ(data["serving"]["newest"], 1);
  EXPECT_EQ(data["serving"]["subscribers"][0]["serving"], 1);
  // This publisher's net@1 is not the stored net@1: the page tells them apart by their times.
  EXPECT_EQ(data["serving"]["published"][0][0], 1);
  EXPECT_GT(data["serving"]["published"][0][1], 0);
  EXPECT_NE(data["serving"]["published"][0][1], data["versions"][0][Column::kCreated]);

  // Nothing is fetched, and no script runs but the page's own.
  ASSERT_EQ(page["scripts"].size(), 2u);
  EXPECT_EQ(page["scripts"][1]["attributes"], Json::array());
  EXPECT_THAT(page["policy"].get<std::string>(), HasSubstr("default-src 'none'"));
  EXPECT_THAT(page["policy"].get<std::string>(),
              HasSubstr("script-src " + page["scripts"][1]["source"].get<std::string>()));
  for (const Json& element : page["elements"]) {
    for (const Json& attribute : element[1]) {
      EXPECT_THAT(attribute.get<std::string>(), Not(testing::AnyOf("src", "href", "srcset", "action"))) << element;
      EXPECT_THAT(attribute.get<std::string>(), Not(testing::StartsWith("on"))) << element;
    }
  }
}

TEST_F(Report, NoNameBecomesAnElement) {
  const std::string hostile = "</script><img src=x onerror=alert(1)>\"'&{{DATA}}";
  const std::string turned = "\xe2\x80\xae";  // Shows what follows from right to left. A tag's value may have it.
  const auto elements_with = [&](const std::string& name) {
    std::filesystem::create_directories(folder_ / name);
    place_ = folder_ / name + "/repository";
    ModelBytes weights = chain(1, 2, 3);
    weights.tensors[0].name = name + ".w";
    put("net", weights, {{name, "0.5"}, {"schedule", name + turned}});
    const Ended ended = report("net", {"--metric", name});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return parsed();
  };
  const Json harmless = elements_with("harmless");
  const Json page = elements_with(hostile);
  EXPECT_EQ(page["elements"], harmless["elements"]);
  EXPECT_EQ(page["scripts"][1], harmless["scripts"][1]);
  const Json data = data_of(page);
  EXPECT_THAT(data["tensors"].dump(), HasSubstr("</script><img src=x onerror=alert(1)>")) << "it is there, as text";
  EXPECT_EQ(data["versions"][0][Column::kWhy], hostile + "?");
  EXPECT_THAT(data["metrics"][0]["name"].get<std::string>(), HasSubstr("onerror"));
  EXPECT_THAT(read_file(page_).value_or(""), Not(HasSubstr("<img")));
}

TEST_F(Report, APageIsBoundedHoweverManyVersionsThereAre) {
  keep_in_memory();
  constexpr int kVersions = 5100;
  constexpr int kInBatch = 510;
  std::string batch;
  for (int i = 1; i <= kVersions; ++i) {
    batch += R"({"model":"net","quality":)" + std::to_string(i) +
             R"(,"graph":{"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"}],"outputs":["x"]})" +
             (i == 1 ? "}" : R"(,"ancestor":"net@)" + std::to_string(i - 1) + "\"}") + "\n";
    if (i % kInBatch != 0) continue;
    write_file(folder_ / "batch.jsonl", batch);
    ASSERT_EQ(repo({"put", "--batch", folder_ / "batch.jsonl"}).exit_code, 0);
    batch.clear();
  }
  const Ended ended = report("net");
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["versions"], 5000);
  EXPECT_EQ(ended.json()["left_out"], 100);
  EXPECT_LT(std::filesystem::file_size(page_), 1'000'000u);
  const Json data = data_of(parsed());
  EXPECT_EQ(data["versions"][0][Column::kNumber], 101);
  EXPECT_EQ(data["left_out"], 100);
}

TEST_F(Report, TheNewestOwnerMapsAreThereWhenAllAreTooLarge) {
  keep_in_memory();
  ModelBytes wide;
  for (int i = 0; i < 10'000; ++i) {
    wide.tensors.push_back({.name = std::string(195, 'n') + std::to_string(i),
                            .dtype = "U8",
                            .shape = {1},
                            .bytes = std::string(1, static_cast<char>(i))});
  }
  put("net", wide, {});
  put("net", chain(1, 2, 3), {});
  const Ended ended = report("net");
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_LT(std::filesystem::file_size(page_), 100'000u);
  const Json data = data_of(parsed());
  EXPECT_EQ(data["versions"][0][Column::kGraph], -1);
  EXPECT_EQ(data["versions"][0][Column::kOwners], 0);
  EXPECT_EQ(data["versions"][1][Column::kOwners].size(), 2u);
}

TEST_F(Report, SaysThatNoPublisherAnswered) {
  put("net", chain(1, 2, 3), {});
  const Ended ended = report("net");
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.json()["publisher"], false);
  EXPECT_THAT(data_of(parsed())["serving"]["error"].get<std::string>(), HasSubstr("net"));
  EXPECT_EQ(report("nobody").exit_code, 3);
  EXPECT_EQ(run_to_end({"report", "net", "--repo", place_}).exit_code, 2) << "no -o";
  page_ = folder_ / "nowhere/report.html";
  const Ended nowhere = report("net");
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("its folder does not exist"));
}

TEST_F(Report, AFullDiskLeavesTheOldPage) {
  put("net", chain(1, 2, 3), {});
  const SmallDisk disk(32'768);
  if (!disk) GTEST_SKIP() << disk.reason();
  page_ = disk / "report.html";
  write_file(page_, "the old page");
  write_file(disk / "filler", std::string(24'000, 'f'));
  const Ended ended = report("net");
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("report.html"));
  EXPECT_THAT(ended.err, HasSubstr("No space left"));
  EXPECT_EQ(read_file(page_), "the old page");
  std::filesystem::remove(disk / "filler");
  EXPECT_EQ(report("net").exit_code, 0) << "nothing of the failed page is in the way";
}

}  // namespace
}  // namespace freshet::cli_test
