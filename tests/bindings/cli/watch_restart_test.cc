// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/bindings/cli/support/streaming.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Streaming, AWatchThatIsStartedAgainTakesNobodyBack) {
  const std::string in = folder_ / "in";
  std::filesystem::create_directory(in);
  const auto now = std::filesystem::file_time_type::clock::now();
  const auto put = [&](char number) {
    const std::string name = std::string(1, static_cast<char>('z' - number)) + ".safetensors";
    drop(in, name, encoded(chain(1, 2, number)));
    std::filesystem::last_write_time(in + "/" + name, now - std::chrono::minutes(60 - number));
  };
  const auto published = [&](const Ended& ended) {
    std::vector<int> changed;
    for (const Json& line : ended.json_lines()) changed.push_back(line["version"].get<int>());
    return changed;
  };
  const std::string base = file_of(chain(1, 2, 0), "base.safetensors");
  const auto watch = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"publish", "net", "--watch", in, "--settle", "0.01", "--linger", "0.3"};
    words.insert(words.end(), more.begin(), more.end());
    return run_to_end(words);
  };
  const auto served = [&] {  // The last version, as a server would get it.
    Running publisher = start({"publish", "net", "--watch", in, "--settle", "0.01"});
    EXPECT_TRUE(publisher.next_json().is_object());
    const Ended got = run_to_end({"subscribe", "net", "--out", folder_ / "out", "--count", "1"});
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return model_in(folder_ / "out/latest");
  };
  for (const char number : {1, 2, 3}) put(number);
  EXPECT_THAT(published(watch({base})), ElementsAre(1, 2, 3, 4));  // The first start takes all.
  // Nothing is newer: what was published last is served again, and not the file of the command line.
  EXPECT_THAT(published(watch({base})), ElementsAre(5));
  EXPECT_EQ(served(), chain(1, 2, 3));
  put(4);
  put(5);
  EXPECT_THAT(published(watch({})), ElementsAre(7, 8));
  // A newer file that is no version of the model costs nobody the older one.
  drop(in, "torn.safetensors", "torn");
  const Ended torn = watch({});
  EXPECT_THAT(published(torn), ElementsAre(9));
  EXPECT_THAT(torn.err, HasSubstr("torn.safetensors"));
  std::filesystem::remove(in + "/torn.safetensors");
  EXPECT_EQ(served(), chain(1, 2, 5));
  // Who remembers nothing takes the newest.
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "state/freshet")) {
    if (entry.path().extension() == ".watched") std::filesystem::remove(entry.path());
  }
  EXPECT_THAT(published(watch({})), ElementsAre(11));
  EXPECT_EQ(served(), chain(1, 2, 5));
}

}  // namespace
}  // namespace freshet::cli_test
