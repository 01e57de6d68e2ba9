// SPDX-License-Identifier: Apache-2.0
// Names and notes come from other people's files and processes. Nothing that a command prints can command a terminal,
// or show text in another order than it has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/text.h"
#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

/// Clears a terminal by C0 and by C1, turns the order of reading, moves to a new line by another character, and DEL.
const std::string kHostile =
    "a\x1b[2J\xc2\x9b"
    "2J\xe2\x80\xae"
    "b\xe2\x81\xa6\xe2\x80\xa8\x7f";

class ShownText : public testing::Test {
 protected:
  Ended repo(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "repo");
    const Ended ended = run(arguments, {{"FRESHET_REPO", folder_ / "repository"}});
    EXPECT_FALSE(has_controls(ended.out, "\n\t")) << testing::PrintToString(arguments) << ended.out;
    EXPECT_FALSE(has_controls(ended.err, "\n\t")) << testing::PrintToString(arguments) << ended.err;
    return ended;
  }
  Json in_json(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const Ended ended = repo(std::move(arguments));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json();
  }

  TemporaryFolder folder_;
};

TEST_F(ShownText, ATagsValueIsEscapedWhereverItIsPrinted) {
  ModelBytes model = chain(1, 2, 3);
  model.metadata = {{"note", kHostile}};
  write_file(folder_ / "m.safetensors", encoded(model));
  ASSERT_EQ(repo({"put", "net", "--weights", folder_ / "m.safetensors"}).exit_code, 0);
  const std::string escaped = R"(a\u001b[2J\u009b2J\u202eb\u2066\u2028\u007f)";
  EXPECT_THAT(repo({"show", "net"}).out, HasSubstr(escaped));
  const Json shown = in_json({"show", "net"});
  EXPECT_EQ(shown["tags"]["note"], kHostile) << "as JSON the value is the same";
  for (const char* command : {"ls", "lineage", "owners", "verify", "pins", "stat"}) {
    std::vector<std::string> words = {command};
    if (std::string(command) != "stat" && std::string(command) != "pins") words.push_back("net");
    EXPECT_EQ(repo(words).exit_code, 0) << command;
  }
  ASSERT_EQ(repo({"get", "net", "-o", folder_ / "out.safetensors"}).exit_code, 0);
  EXPECT_EQ(model_in(folder_ / "out.safetensors"), model) << "files keep what they had";
}

TEST_F(ShownText, NamesAndLabelsThatHoldControlsAreRefused) {
  ModelBytes model = chain(1, 2, 3);
  write_file(folder_ / "m.safetensors", encoded(model));
  ASSERT_EQ(repo({"put", "net", "--weights", folder_ / "m.safetensors"}).exit_code, 0);
  for (const std::string control : {"\xc2\x80", "\xc2\x9b", "\xc2\x9f", "\xe2\x80\xae", "\xe2\x81\xa9", "\xd8\x9c"}) {
    // Each control starts a dozen programs: with a sanitizer, one of each kind.
    if (test::under_sanitizer() && control != "\xc2\x9b" && control != "\xe2\x80\xae") continue;
    SCOPED_TRACE(testing::PrintToString(control));
    const std::string name = "x" + control;
    EXPECT_EQ(repo({"put", name, "--weights", folder_ / "m.safetensors"}).exit_code, 2);
    EXPECT_EQ(repo({"put", "net", "--weights", folder_ / "m.safetensors", "--tag", name + "=1"}).exit_code, 2);
    EXPECT_EQ(repo({"put", "net", "--weights", folder_ / "m.safetensors", "--tag", "k=" + name}).exit_code, 2);
    EXPECT_EQ(repo({"set", "net@1", "--tag", name + "=1"}).exit_code, 2);
    EXPECT_NE(repo({"pin", "net@1", "--by", name}).exit_code, 0);
    EXPECT_NE(repo({"alias", "net@" + name, "--to", "net@1"}).exit_code, 0);
    EXPECT_NE(repo({"show", name}).exit_code, 0);
    EXPECT_NE(repo({name}).exit_code, 0);
    EXPECT_NE(repo({"put", "net", "--weights", folder_ / name}).exit_code, 0);
    model.tensors[0].name = name;
    write_file(folder_ / "n.safetensors", encoded(model));
    EXPECT_NE(repo({"put", "net", "--weights", folder_ / "n.safetensors"}).exit_code, 0);
  }
  EXPECT_EQ(repo({"put", "net", "--weights", folder_ / "m.safetensors", "--tag", "note=one\ntwo\t€"}).exit_code, 0);
}

}  // namespace
}  // namespace freshet::cli_test
