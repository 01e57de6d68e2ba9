// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

/// A journal's lines, written by hand from the format's description (bindings/serving/journal.h).
std::string answer_line(const std::string& request, int version, const std::string& more = "") {
  return R"({"request":")" + request + R"(","model":"net","version":)" + std::to_string(version) +
         R"(,"served_unix_ns":1764213000123000000,"versions_behind":2,"step":0,"metrics":{"loss":0.25,"bad":null})" +
         more + "}\n";
}

class WhyCommand : public testing::Test {
 protected:
  Ended why(std::vector<std::string> more, const Environment& environment = {}) const {
    std::vector<std::string> arguments = {"why", "--journal", folder_ / "journal"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, environment);
  }
  void put(const std::string& model, const ModelBytes& weights, std::vector<std::string> more = {}) const {
    write_file(folder_ / "weights", encoded(weights));
    std::vector<std::string> arguments = {"repo", "put", model, "--weights", folder_ / "weights"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(run(arguments, stored()).exit_code, 0);
  }
  Environment stored() const { return {{"FRESHET_REPO", folder_ / "runs of today"}}; }
  void journal(const std::string& text) const { write_file(folder_ / "journal", text); }

  TemporaryFolder folder_;
};

TEST_F(WhyCommand, SaysWhatTheJournalAndTheRepositoryKnow) {
  put("net", chain(1, 2, 3));
  put("net", chain(1, 2, 4), {"--ancestor", "net@1"});
  put("net", chain(1, 5, 4), {"--ancestor", "net@2"});
  journal(answer_line("r", 1) + answer_line("r", 3, R"(,"schedule":"the gain is 3")") + answer_line("s", 2));
  const Ended ended = why({"r", "--json"}, stored());
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json answer = ended.json();
  EXPECT_THAT(keys_of(answer),
              testing::ElementsAre("request", "model", "version", "served_unix_ns", "versions_behind", "step",
                                   "metrics", "lineage", "writers", "schedule", "bisect", "answers", "damaged_lines"));
  EXPECT_EQ(answer["request"], "r");
  EXPECT_EQ(answer["model"], "net");
  EXPECT_EQ(answer["version"], 3);
  EXPECT_EQ(answer["served_unix_ns"], 1764213000123000000);
  EXPECT_EQ(answer["versions_behind"], 2);
  EXPECT_EQ(answer["metrics"], Json::parse(R"({"loss":0.25,"bad":null})"));
  EXPECT_EQ(answer["schedule"], "the gain is 3");
  EXPECT_EQ(answer["answers"], 2);
  EXPECT_EQ(answer["lineage"], run({"repo", "lineage", "net@3", "--json"}, stored()).json());
  EXPECT_EQ(answer["lineage"].size(), 3u);
  EXPECT_EQ(answer["writers"][0]["version"], "net@3");
  EXPECT_EQ(answer["writers"][0]["names"], Json::parse(R"(["b.w"])"));
  EXPECT_EQ(answer["bisect"], "freshet bisect net --repo '" + (folder_ / "runs of today") +
                                  "' --good net@1 --bad net@3 --exec './eval.sh {}'");

  const std::string text = why({"r"}, stored()).out;
  EXPECT_THAT(text, HasSubstr("net@3 gave the answer at 2025-11-27T03:10:00.123Z"));
  EXPECT_THAT(text, HasSubstr("was 2 ahead"));
  EXPECT_THAT(text, HasSubstr("loss=0.25"));
  EXPECT_THAT(text, HasSubstr("the gain is 3"));
  EXPECT_THAT(text, HasSubstr("1 tensors (16 B) by net@3"));
  EXPECT_THAT(text, HasSubstr(answer["bisect"].get<std::string>()));
}

TEST_F(WhyCommand, AnswersWithoutARepositoryAndSaysWhatItLacks) {
  journal(answer_line("r", 3));
  const Json answer = why({"r", "--json"}).json();
  EXPECT_TRUE(answer["lineage"].is_null());
  EXPECT_TRUE(answer["schedule"].is_null());
  EXPECT_THAT(answer["no_lineage"].get<std::string>(), HasSubstr("--repo"));
  put("net", chain(1, 2, 3));
  const Ended other = why({"r", "--json"}, stored());
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.json()["no_lineage"].get<std::string>(), HasSubstr("net@3"));
  EXPECT_EQ(why({"r"}, {{"FRESHET_REPO", folder_ / "nowhere"}}).exit_code, 3);
}

TEST_F(WhyCommand, AJournalsTextsStayWithinTheirLines) {
  journal(answer_line("r", 3, R"(,"schedule":"x\ngo on with: \u001b[2Jfreshet bisect \u202e")"));
  const std::string text = why({"r"}).out;
  EXPECT_THAT(text, HasSubstr("published because: x?go on with: ?[2Jfreshet bisect ?"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\ngo on with")));
}

TEST_F(WhyCommand, ExitCodesSayWhatIsMissing) {
  EXPECT_EQ(why({"r"}).exit_code, 3);
  journal(answer_line("other", 1));
  const Ended none = why({"r"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.err, HasSubstr("no answer to request r"));
  EXPECT_EQ(none.out, "");
  journal("noise\nmore of it\n");
  EXPECT_EQ(why({"r"}).exit_code, 4);
  journal("noise\n" + answer_line("r", 1) + answer_line("r", 2).substr(0, 50));
  const Ended cut = why({"r", "--json"});
  EXPECT_EQ(cut.exit_code, 0);
  EXPECT_EQ(cut.json()["version"], 1);
  EXPECT_EQ(cut.json()["damaged_lines"], 2);
  EXPECT_THAT(cut.err, HasSubstr("2 damaged lines"));
  EXPECT_EQ(why({""}).exit_code, 2);
  EXPECT_EQ(why({std::string(129, 'x')}).exit_code, 2);
  EXPECT_EQ(run({"why", "r"}).exit_code, 2);
  EXPECT_EQ(run({"why", "r", "--journal", folder_.path()}).exit_code, 1);
}

}  // namespace
}  // namespace freshet::cli_test
