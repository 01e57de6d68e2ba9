// SPDX-License-Identifier: Apache-2.0
/// A repository that is exported and imported, by the program, into a folder and back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

constexpr const char* kCandidate = R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"},)"
                                   R"({"name":"d","class":"Dense","inputs":["x"],"tensors":{"w":)"
                                   R"({"dtype":"f32","shape":[4],"key":"a.w"}}}],"outputs":["d"]})";

class RoundTrip : public testing::Test {
 protected:
  Ended repo(std::vector<std::string> arguments, const std::string& repository = "repository") {
    arguments.insert(arguments.begin(), "repo");
    arguments.push_back("--json");
    return run(arguments, {{"FRESHET_REPO", folder_ / repository}});
  }
  Json done(std::vector<std::string> arguments, const std::string& repository = "repository") {
    const Ended ended = repo(arguments, repository);
    EXPECT_EQ(ended.exit_code, 0) << testing::PrintToString(arguments) << ended.err;
    Json lines = Json::array();
    for (const Json& line : ended.json_lines()) lines.push_back(line);
    return lines;
  }
  void put(const std::string& model, const ModelBytes& weights, std::vector<std::string> more = {}) {
    write_file(folder_ / "weights", encoded(weights));
    std::vector<std::string> arguments = {"put", model, "--weights", folder_ / "weights"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    done(arguments);
  }
  void export_all() { done({"export", "--all", "-o", folder_ / "out"}); }

  /// All that the commands say of a repository, but for what only the disk takes.
  Json all_answers(const std::string& repository) {
    Json all = Json::array({done({"ls"}, repository), done({"lineage", "--all"}, repository)});
    const Json versions = all[1][0];
    for (const Json& version : versions) {
      const std::string label = version["version"];
      const Json shown = done({"show", label}, repository)[0];
      all.push_back(shown);
      if (shown["has_weights"] == false) continue;
      done({"get", label, "-o", folder_ / "got"}, repository);
      all.push_back(std::hash<std::string>()(read_file(folder_ / "got").value_or("")));
    }
    all.push_back(done({"alias", "net"}, repository));
    Json stat = done({"stat"}, repository)[0];
    for (const char* key : {"retired_versions", "disk_bytes", "metadata_bytes"}) stat.erase(key);
    all.push_back(stat);
    return all;
  }

  TemporaryFolder folder_;
};

TEST_F(RoundTrip, EveryTypeEveryNameAndLongMetadataComeBackAsTheyWere) {
  ModelBytes model = model_of_all_types(7);
  model.metadata.emplace_back("workflow", std::string(3 << 20, 'w'));
  put("net", model);
  EXPECT_EQ(done({"verify"})[0]["corrupt"].size(), 0u);
  done({"get", "net@1", "-o", folder_ / "got"});
  EXPECT_EQ(model_in(folder_ / "got"), model);
  export_all();
  EXPECT_EQ(model_in(folder_ / "out/net@1.safetensors"), model);
  done({"import", folder_ / "out"}, "other");
  done({"get", "net@1", "-o", folder_ / "again"}, "other");
  EXPECT_EQ(model_in(folder_ / "again"), model);
  EXPECT_EQ(done({"show", "net@1"}, "other")[0]["tensors"], done({"show", "net@1"})[0]["tensors"]);
}

TEST_F(RoundTrip, AnyRepositoryComesBackAsItWas) {
  constexpr unsigned kRoundTripSeed = 20261122;
  SCOPED_TRACE(kRoundTripSeed);
  std::mt19937 random(kRoundTripSeed);
  write_file(folder_ / "g.json", kCandidate);
  ModelBytes one;
  one.tensors = {chain(8, 0, 0).tensors[0]};
  put("known", one, {"--graph", folder_ / "g.json", "--quality", "0.1"});
  std::vector<std::string> versions;
  for (int i = 0; i < 7; ++i) {
    const std::string model = i % 3 == 0 ? "net" : "other";
    std::vector<std::string> more;
    if (!versions.empty() && random() % 4 != 0) more = {"--ancestor", versions[random() % versions.size()]};
    if (random() % 2 == 0) more.insert(more.end(), {"--quality", "0." + std::to_string(random() % 1000)});
    if (random() % 2 == 0) more.insert(more.end(), {"--tag", "k=v " + std::to_string(i), "--tag", "a=\"b\"\n"});
    const auto letter = [&] { return static_cast<char>(random() % 3); };
    put(model, chain(letter(), letter(), letter()), more);
    const Json newest = done({"ls", model});
    versions.push_back(model + "@" + std::to_string(newest[newest.size() - 1]["version"].get<int>()));
  }
  done({"put", "candidate", "--graph", folder_ / "g.json", "--ancestor", "known@1", "--tag", "c=d"});
  done({"alias", "net@best", "--to", "net@2"});
  done({"alias", "net@last", "--to", "net"});
  done({"set", "net@2", "--quality", "0.75", "--tag", "said=later"});
  export_all();
  done({"import", folder_ / "out"}, "copy");
  EXPECT_EQ(all_answers("copy"), all_answers("repository"));
  EXPECT_EQ(repo({"verify"}, "copy").exit_code, 0);

  // Once more, it is there already.
  const Json again = done({"import", folder_ / "out"}, "copy");
  for (const Json& line : again) EXPECT_EQ(line["was_there"], true) << line;
}

TEST_F(RoundTrip, AModelAloneKeepsTheNamesOfItsAncestors) {
  put("base", chain(1, 2, 3));
  put("net", chain(1, 2, 4), {"--ancestor", "base@1"});
  put("net", chain(1, 2, 5), {"--ancestor", "net@1"});
  done({"retire", "net@1"});
  done({"export", "net", "-o", folder_ / "out"});
  done({"import", folder_ / "out"}, "copy");
  EXPECT_EQ(done({"ls", "net"}, "copy")[0]["version"], 2) << "its number";
  EXPECT_EQ(done({"lineage", "net"}, "copy")[0][0]["ancestor"], "net@1");
  EXPECT_EQ(done({"show", "net"}, "copy")[0]["inherited_bytes"], 32);
  EXPECT_EQ(done({"get", "net", "-o", folder_ / "got"}, "copy")[0]["bytes"], 48);
  EXPECT_EQ(model_in(folder_ / "got"), chain(1, 2, 5));
}

TEST_F(RoundTrip, WhatTheRepositoryHasAlreadyGivesWay) {
  put("net", chain(1, 2, 3));
  done({"alias", "net@best", "--to", "net@1"});
  export_all();
  write_file(folder_ / "weights", encoded(chain(7, 8, 9)));
  done({"put", "net", "--weights", folder_ / "weights"}, "copy");
  done({"alias", "net@best", "--to", "net@1"}, "copy");
  const Ended imported = repo({"import", folder_ / "out"}, "copy");
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_EQ(imported.json()["version"], 2);
  EXPECT_EQ(imported.json()["exported_as"], "net@1");
  EXPECT_THAT(imported.err, HasSubstr("alias net@best is not changed here"));
  EXPECT_EQ(done({"alias", "net@best"}, "copy")[0]["version"], 1);
  // As others' files, they are versions like any.
  EXPECT_EQ(done({"import", "--plain", folder_ / "out"}, "copy")[0]["version"], 3);
  EXPECT_EQ(done({"import", "--model", "new", folder_ / "out"}, "copy")[0]["version"], 1);
}

TEST_F(RoundTrip, WhatWasRetiredHereKeepsNothingElseAway) {
  put("a", chain(1, 2, 3));
  put("b", chain(4, 5, 6));
  export_all();
  put("a", chain(7, 8, 9));
  done({"retire", "a@1"});
  const Ended imported = repo({"import", folder_ / "out"});
  EXPECT_EQ(imported.exit_code, 1);
  EXPECT_EQ(imported.json()["model"], "b");
  EXPECT_EQ(imported.json()["was_there"], true);
  EXPECT_THAT(imported.err, HasSubstr("a@1"));
  EXPECT_THAT(imported.err, HasSubstr("1 of 2 versions were not restored"));
}

TEST_F(RoundTrip, ASheetLeadsToNoOtherFile) {
  put("net", chain(1, 2, 3));
  export_all();
  const std::string sheet = folder_ / "out/net@1.version.json";
  const std::string text = read_file(sheet).value();
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    write_file(sheet, changed);
    const Ended ended = repo({"import", folder_ / "out"}, "copy");
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(sheet));
    EXPECT_EQ(ended.out, "");
    return ended.exit_code;
  };
  EXPECT_EQ(refused("\"net@1\"", "\"../../net@1\""), 1);
  EXPECT_EQ(refused("\"name\":\"a.w\"", "\"name\":\"q.w\""), 4);
  EXPECT_EQ(refused("\"digest\":\"", "\"digest\":\"0"), 1);
  EXPECT_EQ(refused("{", "["), 1);
  EXPECT_EQ(refused("\"tensors\":[{", "\"tensors\":[{},{"), 1);
  write_file(sheet, text);
  std::filesystem::remove(folder_ / "out/net@1.safetensors");
  const Ended missing = repo({"import", folder_ / "out"}, "copy");
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("net@1.safetensors"));
  write_file(folder_ / "out/net@1.safetensors", encoded(chain(1, 2, 4)));
  const Ended other = repo({"import", folder_ / "out"}, "copy");
  EXPECT_EQ(other.exit_code, 4);
  EXPECT_THAT(other.err, HasSubstr("tensor c.w differs from the exported one"));
  EXPECT_EQ(repo({"import", "--plain", folder_ / "out"}, "copy").exit_code, 0);
}

}  // namespace
}  // namespace freshet::cli_test
