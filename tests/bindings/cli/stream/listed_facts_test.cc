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

/// In a table's line, a column is a code point.
std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::size_t columns = 0;
  for (const char c : text) {
    columns = c == '\n' ? 0 : columns + ((c & '\xC0') != '\x80' ? 1 : 0);
    widest = std::max(widest, columns);
  }
  return widest;
}

TEST_F(ListedFacts, TopListsWhatIsPublishedAndWhoLags) {
  const Ended nobody = run({"top", "--once"}, environment());
  EXPECT_EQ(nobody.exit_code, 0) << nobody.err;
  EXPECT_THAT(nobody.out, HasSubstr("nobody publishes in " + (folder_ / "run")));

  const std::string long_name = std::string(50, 'm') + ".of-a-long-name";
  const std::string folder = "a-folder-with-a-name-of-many-words/and-another-one/and-yet-another-one";
  fs::create_directories(folder_ / folder);
  const std::string file = file_at(folder + "/step70.safetensors", 7);
  fs::create_directory(folder_ / "in");
  Running first = start({"publish", long_name, file_at("one.safetensors", 3), file, "--watch", folder_ / "in"});
  Running second = start({"publish", "net", file_at("two.safetensors", 4)});
  ASSERT_EQ(first.next_json()["version"], 1);
  ASSERT_EQ(first.next_json()["version"], 2);
  ASSERT_EQ(second.next_json()["version"], 1);
  Running subscriber = start({"subscribe", long_name});
  ASSERT_EQ(subscriber.next_json()["version"], 2);
  const auto eventually_text = [&](const std::vector<std::string>& command, const std::string& needle) {
    std::string text;
    for (int tries = 0; tries < 600 && text.find(needle) == std::string::npos; ++tries) text = text_of(command);
    return text;
  };
  const std::string all = eventually_text({"top", "--once"}, "  1\n    " + long_name);
  EXPECT_LE(widest_line(all), 80u) << all;
  const std::string today = "20[0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]";
  EXPECT_THAT(all, ContainsRegex("mmmmm\\.\\. +@2 +70 +loss 0.125 +" + today +
                                 " +1\n    m+.of-a-long-name\n    from .*step70.safetensors\n"));
  EXPECT_THAT(all, ContainsRegex("net +@1 +40 +loss 0.125 +" + today + " +0\n"));
  EXPECT_THAT(all, testing::Not(HasSubstr("behind")));

  const std::string one = text_of({"top", long_name, "--once"});
  EXPECT_THAT(one,
              ContainsRegex("@2 +70 +loss 0.125 +" + today + " +.*step70.safetensors\n@1 +30 .*one.safetensors\n"));
  EXPECT_LE(widest_line(one.substr(one.find("VERSION"))), 80u) << one;

  const Ended lines = run({"top", "--once", "--json"}, environment());
  ASSERT_EQ(lines.json_lines().size(), 2u);
  const Json json = lines.json_lines()[0];
  EXPECT_EQ(json["model"], long_name);
  EXPECT_EQ(keys_of(json["versions"][1]),
            (std::vector<std::string>{"version", "step", "metrics", "published_ms", "file"}));
  EXPECT_EQ(json["versions"][1]["file"], file);
  EXPECT_EQ(json["versions"][1]["metrics"], (Json{{"loss", 0.125}, {"accuracy", 0.5}}));
  const std::string metrics = text_of({"top", "--metrics"});
  EXPECT_THAT(metrics, ContainsRegex("# TYPE freshet_newest_version gauge\nfreshet_newest_version\\{model=\"m+.*\\} 2\n"
                                     "freshet_newest_version\\{model=\"net\"\\} 1\n#"));

  // A subscriber that stands still falls behind, and a publisher that stands still gives no answer.
  subscriber.signal(SIGSTOP);
  fs::rename(file_at("three.safetensors", 8), folder_ / "in/three.safetensors");
  ASSERT_EQ(first.next_json()["version"], 3);
  EXPECT_THAT(text_of({"top", "--once"}), HasSubstr("    freshet subscribe at @2, 1 behind"));
  second.signal(SIGSTOP);
  const Ended quiet = run({"top", "--once", "--json"}, environment());
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  ASSERT_EQ(quiet.json_lines().size(), 2u);
  EXPECT_THAT(quiet.json_lines()[1].value("error", ""), HasSubstr("does not answer"));
  EXPECT_THAT(text_of({"top", "--once"}), ContainsRegex("not[ \n]+answer"));
  second.signal(SIGCONT);
  subscriber.signal(SIGCONT);
}

}  // namespace
}  // namespace freshet::cli_test
