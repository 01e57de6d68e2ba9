// SPDX-License-Identifier: Apache-2.0
// `freshet archive`: every version in a repository, beside publishers and commands that come and go.

#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <sstream>

#include "tests/bindings/cli/support/streaming.h"
#include "tests/support/small_disk.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class Archives : public Streaming {
 protected:
  void SetUp() override { fs::create_directory(folder_ / "in"); }

  /// Version `number` of the model, with step and loss in the file's metadata.
  void drop_version(char number, std::size_t tensor_bytes = 16) const {
    ModelBytes model = chain(1, 2, number);
    model.tensors[2].shape = {tensor_bytes / 4};
    model.tensors[2].bytes.resize(tensor_bytes, number);
    model.metadata = {{"step", std::to_string(100 * number)}, {"loss", "0." + std::to_string(number)}, {"by", "hand"}};
    drop(folder_ / "in", std::to_string(number) + ".safetensors", encoded(model));
  }

  Running publisher() const { return start({"publish", "net", "--watch", folder_ / "in", "--settle", "0.01"}); }
  Running archive() const { return start({"archive", "net", "--repo", repository_}); }

  /// The numbers of the stored versions.
  std::vector<int> stored() const {
    std::vector<int> versions;
    const Ended listed = run_to_end({"repo", "ls", "net", "--repo", repository_});
    for (const Json& line : listed.json_lines()) versions.push_back(line["version"].get<int>());
    return versions;
  }

  std::string repository_ = folder_ / "repository";
};

TEST_F(Archives, StoreStepMetricsAndTagsAndServeThePlace) {
  Running archiving = archive();
  EXPECT_THAT(archiving.next_error_line().value_or(""), HasSubstr("is owned and served by this archive"));
  Running publishing = publisher();
  drop_version(1);
  const Json first = archiving.next_json();
  EXPECT_EQ(keys_of(first), (std::vector<std::string>{"model", "version", "published", "step", "metrics", "own_bytes",
                                                      "gap_before", "put_ms"}));
  EXPECT_EQ(first["version"], 1);
  EXPECT_EQ(first["step"], 100);
  EXPECT_EQ(first["metrics"], (Json{{"loss", 0.1}}));
  EXPECT_EQ(first["own_bytes"], 48);
  drop_version(2);
  EXPECT_EQ(archiving.next_json()["own_bytes"], 16);  // What changed.
  // Other commands read and write the place meanwhile.
  const Ended shown = run_to_end({"repo", "show", "net@2", "--repo", repository_});
  EXPECT_EQ(shown.json()["step"], 200) << shown.err;
  EXPECT_EQ(shown.json()["metrics"], (Json{{"loss", 0.2}}));
  EXPECT_EQ(shown.json()["tags"]["by"], "hand");
  EXPECT_EQ(shown.json()["ancestor"], "net@1");
  const std::string other = file_of(chain(7, 8, 9), "other.safetensors");
  EXPECT_EQ(run_to_end({"repo", "put", "other", "--weights", other, "--repo", repository_}).json()["version"], 1);
  // The publisher ends, and a later one goes on.
  publishing.signal(SIGTERM);
  EXPECT_EQ(publishing.wait().exit_code, 130);
  drop_version(3);
  Running later = publisher();
  const Json third = archiving.next_json();
  EXPECT_EQ(third["version"], 3);
  EXPECT_EQ(third["step"], 300);
  EXPECT_EQ(third["gap_before"], 0);
  // The place is an ordinary one afterwards, and the next archive goes on.
  archiving.signal(SIGTERM);
  const Ended ended = archiving.wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_THAT(stored(), ElementsAre(1, 2, 3));
  Running again = archive();
  drop_version(4);
  EXPECT_EQ(again.next_json()["version"], 4);
  const Ended verified = run_to_end({"repo", "verify", "--repo", repository_});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
}

TEST_F(Archives, EndAfterWhatTheyHave) {
  Running publishing = publisher();
  for (char number = 1; number <= 9; ++number) drop_version(number, 1 << 20);
  Running archiving = archive();
  const int first = archiving.next_json()["version"].get<int>();
  archiving.signal(SIGTERM);
  const Ended ended = archiving.wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  // Its lines tell exactly what is stored, and what is stored is whole.
  std::vector<int> told = {first};
  for (const Json& line : ended.json_lines()) told.push_back(line["version"].get<int>());
  EXPECT_EQ(stored(), told);
  EXPECT_EQ(run_to_end({"repo", "verify", "--repo", repository_}).exit_code, 0);
}

TEST_F(Archives, OutliveTheOwnerOfTheirPlace) {
  Running owner = start({"provider", "--repo", repository_});
  ASSERT_TRUE(owner.next_json().is_object());
  Running archiving = archive();
  Running publishing = publisher();
  drop_version(1);
  EXPECT_EQ(archiving.next_json()["version"], 1);
  owner.signal(SIGKILL);
  owner.wait();
  EXPECT_THAT(archiving.next_error_line().value_or(""), HasSubstr("owns and serves it now"));
  drop_version(2);
  EXPECT_EQ(archiving.next_json()["version"], 2);
  EXPECT_THAT(stored(), ElementsAre(1, 2));  // Through the archive.
}

TEST_F(Archives, GoOnBesideAFullDisk) {
  SmallDisk disk(std::uint64_t{40} << 20);
  if (!disk) GTEST_SKIP() << disk.reason();
  repository_ = disk / "repository";
  Running publishing = publisher();
  Running archiving = archive();
  EXPECT_THAT(archiving.next_error_line().value_or(""), HasSubstr("is owned"));
  drop_version(1, 1 << 20);
  EXPECT_EQ(archiving.next_json()["version"], 1);
  const auto fill = [&] {
    const std::string path = disk / "somebody";
    write_file(path, "");
    std::ofstream file(path, std::ios::binary);
    const std::string block(1 << 16, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  };
  fill();
  for (char number = 2; number <= 4; ++number) {
    drop_version(number, 1 << 20);
    ASSERT_TRUE(publishing.next_json().is_object());
  }
  EXPECT_THAT(archiving.next_error_line().value_or(""), HasSubstr("cannot store net@2"));
  EXPECT_EQ(run_to_end({"repo", "get", "net@1", "-o", folder_ / "back", "--repo", repository_}).exit_code, 0);
  fs::remove(disk / "somebody");
  const Json next = archiving.next_json();
  EXPECT_GT(next["version"], 1);
  EXPECT_EQ(next["gap_before"].get<int>(), next["version"].get<int>() - 2);
  // Said once; the end of it, once too.
  EXPECT_THAT(archiving.next_error_line().value_or(""), HasSubstr("stores again"));
  archiving.signal(SIGTERM);
  EXPECT_EQ(archiving.wait().exit_code, 130);
}

/// What the unit of examples/systemd starts, word for word.
TEST_F(Archives, AreAService) {
  const std::string unit = read_file(FRESHET_DOCS "/../examples/systemd/freshet-archive@.service").value_or("");
  const std::string key = "ExecStart=%h/.local/bin/freshet ";
  const std::size_t at = unit.find(key);
  ASSERT_NE(at, std::string::npos);
  std::vector<std::string> words;
  std::istringstream line(unit.substr(at + key.size(), unit.find('\n', at) - at - key.size()));
  for (std::string word; line >> word;) {
    for (const auto& [letter, value] : {std::pair<std::string, std::string>{"%i", "net"}, {"%h", folder_.path()}}) {
      if (const std::size_t in = word.find(letter); in != std::string::npos) word.replace(in, 2, value);
    }
    words.push_back(word);
  }
  Running archiving(words, environment());
  Running publishing = publisher();
  drop_version(1);
  EXPECT_EQ(archiving.next_json()["version"], 1);
  archiving.signal(SIGTERM);  // As systemd stops it.
  EXPECT_EQ(archiving.wait().exit_code, 130);
  EXPECT_THAT(unit, HasSubstr("SuccessExitStatus=130"));
  repository_ = folder_ / "freshet/net";
  EXPECT_THAT(stored(), ElementsAre(1));
}

TEST_F(Archives, EndWithTheirCountOrTheirTime) {
  Running publishing = publisher();
  drop_version(1);
  ASSERT_TRUE(publishing.next_json().is_object());
  const Ended counted = run_to_end({"archive", "net", "--repo", repository_, "--count", "1"});
  EXPECT_EQ(counted.exit_code, 0) << counted.err;
  EXPECT_EQ(counted.json()["version"], 1);
  // Nothing new comes.
  const Ended timed = run_to_end({"archive", "net", "--repo", repository_, "--for", "0.2"});
  EXPECT_EQ(timed.exit_code, 5);
  EXPECT_THAT(timed.err, HasSubstr("0 versions of net were stored in 0.2 s"));
  EXPECT_EQ(run_to_end({"archive", "net"}).exit_code, 2);  // Where?
}

}  // namespace
}  // namespace freshet::cli_test
