// SPDX-License-Identifier: Apache-2.0
// What listings tell people of a version: its file, its step, a metric, a date, and words.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/bindings/cli/support/streaming.h"

namespace freshet::cli_test {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class ListedFacts : public Streaming {
 protected:
  std::string file_at(const std::string& name, char number) const {
    ModelBytes model = chain(1, 2, number);
    model.metadata = {{"step", std::to_string(number * 10)}, {"accuracy", "0.5"}, {"loss", "0.125"}, {"by", "hand"}};
    return file_of(model, name);
  }
  std::string text_of(std::vector<std::string> arguments) const {
    Environment zone = environment();
    zone["TZ"] = "UTC";
    zone["FRESHET_REPO"] = folder_ / "repository";
    const Ended ended = run(arguments, zone);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.out;
  }
};

TEST_F(ListedFacts, FilesOfOneTimeComeInTheOrderOfTheirNumbers) {
  fs::create_directory(folder_ / "in");
  const auto then = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const char* name : {"in/step10.safetensors", "in/step9.safetensors", "in/step100.safetensors"}) {
    fs::last_write_time(file_at(name, 1), then);
  }
  fs::last_write_time(file_at("in/step200.safetensors", 1), then - std::chrono::hours(1));  // Of a run before.
  const Ended ended = run_to_end({"publish", "net", "--watch", folder_ / "in", "--settle", "0", "--linger", "0.3"});
  std::vector<std::string> files;
  for (const Json& line : ended.json_lines()) files.push_back(fs::path(line["file"].get<std::string>()).filename());
  EXPECT_THAT(files,
              ElementsAre("step200.safetensors", "step9.safetensors", "step10.safetensors", "step100.safetensors"));
}

TEST_F(ListedFacts, AreWordsAndDates) {
  const std::string file = file_at("a.safetensors", 9);
  text_of({"repo", "put", "net", "--weights", file});
  const std::string today = "20[0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]";
  const std::string versions = text_of({"repo", "ls", "net"});
  EXPECT_THAT(versions, ContainsRegex("net@1 .* 90 +loss 0.125 +" + today));
  EXPECT_LE(versions.find('\n'), 80u);
  const std::string shown = text_of({"repo", "show", "net"});
  EXPECT_THAT(shown, ContainsRegex("created +" + today));
  EXPECT_THAT(shown, HasSubstr("step=90 accuracy=0.5 loss=0.125 by=hand"));
  EXPECT_THAT(shown, testing::Not(HasSubstr("{")));
  const Json line = Json::parse(text_of({"repo", "ls", "net", "--json"}));
  EXPECT_EQ(line["step"], 90);
  EXPECT_EQ(line["metrics"], (Json{{"accuracy", 0.5}, {"loss", 0.125}}));
  EXPECT_EQ(line["created_ms"], Json::parse(text_of({"repo", "show", "net", "--json"}))["created_ms"]);
  // A retired one has no record to tell them.
  text_of({"repo", "retire", "net@1"});
  EXPECT_FALSE(Json::parse(text_of({"repo", "ls", "net", "--json"})).contains("step"));
}

}  // namespace
}  // namespace freshet::cli_test
