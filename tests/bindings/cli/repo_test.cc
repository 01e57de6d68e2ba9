// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RepoCommand : public testing::Test {
 protected:
  Ended repo(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "repo");
    arguments.push_back("--json");
    return run(arguments, {{"FRESHET_REPO", folder_ / "repository"}});
  }

  std::string file_of(const ModelBytes& model) {
    const std::string path = folder_ / ("model" + std::to_string(files_++) + ".safetensors");
    write_file(path, encoded(model));
    return path;
  }

  Json put(const std::string& model, const ModelBytes& weights, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"put", model, "--weights", file_of(weights)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = repo(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json();
  }

  TemporaryFolder folder_;
  int files_ = 0;
};

TEST_F(RepoCommand, AnAliasStandsForAVersionEverywhere) {
  const ModelBytes model = model_of_all_types(1);
  put("net", model);
  put("net", model_of_all_types(2));
  const Json first = {{"model", "net"}, {"alias", "best"}, {"version", 1}};
  EXPECT_EQ(repo({"alias", "net@best", "--to", "net@1", "--expect", "0"}).json(), first);
  EXPECT_EQ(repo({"alias", "net@best"}).json(), first);
  EXPECT_EQ(repo({"alias", "net"}).json(), first);
  EXPECT_EQ(repo({"show", "net@best"}).json()["version"], 1);
  EXPECT_EQ(repo({"pin", "net@best", "--by", "me"}).json()["version"], 1);
  EXPECT_EQ(repo({"verify", "net@best"}).exit_code, 0);
  const Json child = put("child", model, {"--ancestor", "net@best"});
  EXPECT_EQ(child["own_bytes"], 0);
  const Ended late = repo({"alias", "net@best", "--to", "net", "--expect", "2"});
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_THAT(late.err, HasSubstr("net@best means version 1 now, not version 2"));
  EXPECT_EQ(repo({"alias", "net@best", "--to", "net"}).json()["version"], 2);
  EXPECT_EQ(repo({"alias", "net@best", "--remove"}).json()["version"], nullptr);
  EXPECT_EQ(repo({"show", "net@best"}).exit_code, 3);
  EXPECT_EQ(repo({"alias", "net@1", "--to", "net@2"}).exit_code, 2);
  EXPECT_EQ(repo({"alias", "net@9x"}).exit_code, 2);
  EXPECT_EQ(repo({"alias", "net", "--remove"}).exit_code, 2);
  EXPECT_EQ(repo({"alias", "net@best", "--to", "child@1"}).exit_code, 1);
}

/// `get` reads a few tensors ahead into memory that it uses again.
TEST_F(RepoCommand, AModelThatIsLargerThanWhatIsReadAheadComesBackWhole) {
  constexpr std::uint64_t kEach = std::uint64_t{20} << 20;
  ModelBytes model;
  for (char i = 'a'; i < 'g'; ++i) {
    model.tensors.push_back({.name = {i}, .dtype = "U8", .shape = {kEach}, .bytes = std::string(kEach, i)});
  }
  put("large", model);
  EXPECT_EQ(repo({"get", "large", "--output", folder_ / "got.safetensors"}).json()["bytes"], 6 * kEach);
  EXPECT_TRUE(model_in(folder_ / "got.safetensors") == model);
}

TEST_F(RepoCommand, TagsChooseWhatIsListed) {
  put("net", model_of_all_types(1), {"--tag", "data=v1"});
  put("net", model_of_all_types(2), {"--tag", "data=v2", "--tag", "who=me"});
  put("other", model_of_all_types(3));
  const Json listed = repo({"ls", "net", "--tag", "data=v2", "--tag", "who=me"}).json();
  EXPECT_EQ(listed["version"], 2);
  EXPECT_EQ(repo({"ls", "--tag", "data=v1"}).json()["model"], "net");
  EXPECT_EQ(repo({"ls", "--tag", "data=v1"}).json()["newest"], 1);
  EXPECT_EQ(repo({"ls", "net", "--tag", "data=v3"}).out, "");
  EXPECT_EQ(repo({"ls", "--tag", "data"}).exit_code, 2);
}

TEST_F(RepoCommand, EqualContentIsInheritedOnRequest) {
  const ModelBytes model = model_of_all_types(1);
  const Json first = put("net", model);
  const Json again = put("copy", model, {"--dedup"});
  EXPECT_EQ(again["own_bytes"], 0);
  EXPECT_EQ(again["inherited_bytes"], first["own_bytes"]);
  EXPECT_EQ(put("tuned", model, {"--ancestor", "net", "--deltas"})["own_bytes"], 0);
  EXPECT_EQ(repo({"verify"}).exit_code, 0);
}

TEST_F(RepoCommand, PutAndGetKeepEveryByte) {
  const ModelBytes model = model_of_all_types(1);
  std::uint64_t bytes = 0;
  for (const FileTensor& tensor : model.tensors) bytes += tensor.bytes.size();
  const Json answer = put("net", model);
  EXPECT_EQ(answer, Json({{"model", "net"}, {"version", 1}, {"inherited_bytes", 0}, {"own_bytes", bytes}}));

  const Ended got = repo({"get", "net@1", "-o", folder_ / "out.safetensors"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_THAT(keys_of(got.json()), ElementsAre("model", "version", "file", "tensors", "bytes"));
  EXPECT_EQ(model_in(folder_ / "out.safetensors"), model);
}

TEST_F(RepoCommand, ForPeoplePutPrintsTheNameAlone) {
  const std::string repository = folder_ / "repository";
  const Ended ended = run({"repo", "--repo", repository, "put", "net", "--weights", file_of(chain(1, 2, 3))});
  EXPECT_EQ(ended.out, "net@1\n");
}

TEST_F(RepoCommand, GetOfSomeTensorsHasThoseAlone) {
  const ModelBytes model = chain(1, 2, 3);
  put("net", model, {"--tag", "k=v"});
  const Ended got = repo({"get", "net", "--tensors", "a.*", "--tensors", "c*", "-o", folder_ / "part"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.json()["bytes"], 32);
  EXPECT_EQ(model_in(folder_ / "part"),
            (ModelBytes{.tensors = {model.tensors[0], model.tensors[2]}, .metadata = {{"k", "v"}}}));

  const Ended none = repo({"get", "net", "--tensors", "q*", "-o", folder_ / "none"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_FALSE(read_file(folder_ / "none"));
}

// As JAX' pytrees name their leaves.
TEST_F(RepoCommand, AnEqualNameIsMeantBeforeAPattern) {
  ModelBytes model = chain(1, 2, 3);
  model.tensors[0].name = "['params']['w']";
  model.tensors[1].name = "pw";  // What the first one's name matches as a pattern.
  put("net", model);
  const Ended got = repo({"get", "net", "--tensors", "['params']['w']", "-o", folder_ / "part"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(model_in(folder_ / "part").tensors, std::vector{model.tensors[0]});
}

TEST_F(RepoCommand, WhatTheAncestorHasIsInherited) {
  put("net", chain(1, 2, 3));
  const Json second = put("net", chain(1, 2, 9), {"--ancestor", "net@1", "--quality", "0.5"});
  EXPECT_EQ(second, Json({{"model", "net"}, {"version", 2}, {"inherited_bytes", 32}, {"own_bytes", 16}}));

  EXPECT_EQ(repo({"owners", "net"}).json(), Json::parse(R"([{"tensor":"a.w","owner":"net@1","bytes":16},
      {"tensor":"b.w","owner":"net@1","bytes":16},{"tensor":"c.w","owner":"net@2","bytes":16}])"));
  EXPECT_EQ(repo({"lineage", "net"}).json(), Json::parse(R"([
      {"version":"net@2","ancestor":"net@1","inherited_bytes":32,"own_bytes":16,"quality":0.5},
      {"version":"net@1","ancestor":null,"inherited_bytes":0,"own_bytes":48,"quality":null}])"));
  EXPECT_EQ(repo({"diff", "net@1", "net@2"}).json(),
            Json::parse(R"({"layers_added":[],"layers_removed":[],"tensors_changed":["c.w"],"changed_bytes":16,
                            "quality":[null,0.5]})"));
  EXPECT_EQ(repo({"mrca", "net@1", "net@2"}).json(), Json::parse(R"({"version":"net@1"})"));
  EXPECT_EQ(repo({"descendants", "net@1"}).json()[0]["version"], "net@2");
  EXPECT_EQ(repo({"contributors", "net"}).json(), Json::parse(R"([
      {"version":"net@2","tensors":1,"bytes":16,"ancestor":true,"names":["c.w"]},
      {"version":"net@1","tensors":2,"bytes":32,"ancestor":true,"names":["a.w","b.w"]}])"));

  EXPECT_EQ(repo({"get", "net@2", "-o", folder_ / "out"}).exit_code, 0);
  EXPECT_EQ(model_in(folder_ / "out"), chain(1, 2, 9));
}

TEST_F(RepoCommand, ATensorLeftOutIsInheritedAndOneWithoutAnAncestorIsMissing) {
  const std::string graph = folder_ / "g.json";
  const auto layer = [](const char* name, const char* input) {
    return Json{{"name", name},
                {"class", "Dense"},
                {"inputs", {input}},
                {"tensors", {{"w", {{"dtype", "f32"}, {"shape", {4}}}}}}};
  };
  Json json = {{"freshet_graph", 1}, {"name", "g"}, {"outputs", {"b"}}};
  json["layers"] = {Json{{"name", "x"}, {"class", "Input"}, {"config", {{"dtype", "f32"}, {"shape", {4}}}}},
                    layer("a", "x"), layer("b", "a")};
  write_file(graph, json.dump());
  ModelBytes whole;
  whole.tensors = {chain(1, 2, 0).tensors[0], chain(1, 2, 0).tensors[1]};
  ASSERT_EQ(put("net", whole, {"--graph", graph})["own_bytes"], 32);

  ModelBytes part;
  part.tensors = {chain(1, 7, 0).tensors[1]};
  EXPECT_EQ(put("net", part, {"--graph", graph, "--ancestor", "net"})["inherited_bytes"], 16);
  EXPECT_EQ(repo({"get", "net@2", "-o", folder_ / "out"}).exit_code, 0);
  EXPECT_EQ(model_in(folder_ / "out").tensors[0].bytes, whole.tensors[0].bytes);
  EXPECT_EQ(model_in(folder_ / "out").tensors[1].bytes, part.tensors[0].bytes);

  const Ended missing = repo({"put", "net", "--graph", graph, "--weights", file_of(part)});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("a.w"));
  EXPECT_EQ(missing.out, "");
}

TEST_F(RepoCommand, AGraphAloneIsAModelWithoutWeights) {
  write_file(folder_ / "g.json",
             R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"}],"outputs":["x"]})");
  EXPECT_EQ(repo({"put", "net", "--graph", folder_ / "g.json"}).json()["version"], 1);
  EXPECT_EQ(repo({"show", "net"}).json()["has_weights"], false);
  EXPECT_EQ(repo({"get", "net", "-o", folder_ / "out"}).exit_code, 1);

  write_file(folder_ / "g.json", "{\"freshet_graph\":1");
  const Ended bad = repo({"put", "net", "--graph", folder_ / "g.json"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("g.json"));
}

TEST_F(RepoCommand, ABatchAnswersEveryLineInOrder) {
  const std::string graph = R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"}],"outputs":["x"]})";
  write_file(folder_ / "b.jsonl", R"({"model":"n","graph":)" + graph + R"(,"quality":0.25})" + "\n" +
                                      R"({"model":"n","graph":{}})" + "\n\nnonsense\n" + std::string(200, '[') + "\n" +
                                      R"({"model":"n","graph":)" + graph + R"(,"ancestor":"n@1"})");
  const Ended ended = repo({"put", "--batch", folder_ / "b.jsonl"});
  EXPECT_EQ(ended.exit_code, 1);
  const std::vector<Json> lines = ended.json_lines();
  ASSERT_EQ(lines.size(), 5u) << ended.out;
  EXPECT_EQ(lines[0]["version"], 1);
  EXPECT_EQ(lines[1]["line"], 2);
  EXPECT_EQ(lines[2]["line"], 4);
  EXPECT_EQ(lines[3]["line"], 5);
  EXPECT_EQ(lines[4]["version"], 2);
  EXPECT_EQ(repo({"lineage", "n"}).json()[0]["ancestor"], "n@1");
}

TEST_F(RepoCommand, ABatchTakesWeightsAndTags) {
  std::filesystem::create_directory(folder_ / "in");
  ModelBytes second = chain(1, 2, 4);
  second.metadata = {{"from", "file"}, {"k", "file"}};
  write_file(folder_ / "in/one.safetensors", encoded(chain(1, 2, 3)));
  write_file(folder_ / "in/two.safetensors", encoded(second));
  write_file(folder_ / "in/batch.jsonl", R"({"model":"n","weights":"one.safetensors","quality":0.5})"
                                         "\n"
                                         R"({"model":"n","weights":")" +
                                             (folder_ / "in/two.safetensors") +
                                             R"(","ancestor":"n@1","tags":{"k":"v"}})"
                                             "\n"
                                             R"({"model":"n","weights":"three.safetensors"})"
                                             "\n"
                                             R"({"model":"n","weights":"one.safetensors","tags":{"k":1}})"
                                             "\n"
                                             R"({"model":"n","weights":7})"
                                             "\n"
                                             R"({"model":"n"})"
                                             "\n");
  const Ended ended = repo({"put", "--batch", folder_ / "in/batch.jsonl"});
  EXPECT_EQ(ended.exit_code, 1);
  const std::vector<Json> lines = ended.json_lines();
  ASSERT_EQ(lines.size(), 6u) << ended.out;
  EXPECT_EQ(lines[0], Json::parse(R"({"model":"n","version":1,"inherited_bytes":0,"own_bytes":48})"));
  EXPECT_EQ(lines[1], Json::parse(R"({"model":"n","version":2,"inherited_bytes":32,"own_bytes":16})"));
  for (std::size_t i = 2; i < 6; ++i) EXPECT_EQ(lines[i]["line"], i + 1) << lines[i];
  EXPECT_THAT(lines[2]["error"], HasSubstr(folder_ / "in/three.safetensors"));
  EXPECT_THAT(lines[3]["error"], HasSubstr("\"k\""));
  EXPECT_EQ(repo({"show", "n@2"}).json()["tags"], Json::parse(R"({"from":"file","k":"v"})"));
  EXPECT_EQ(repo({"ls", "n"}).json_lines()[0]["quality"], 0.5);
  EXPECT_EQ(repo({"get", "n@2", "-o", folder_ / "out"}).exit_code, 0);
  EXPECT_EQ(model_in(folder_ / "out").tensors, second.tensors);
}

TEST_F(RepoCommand, ABatchStoresEqualTensorsOnceWhenAsked) {
  write_file(folder_ / "one.safetensors", encoded(chain(1, 2, 3)));
  for (const char* model : {"a", "b"}) {
    write_file(folder_ / "batch.jsonl", R"({"model":")" + std::string(model) + R"(","weights":"one.safetensors"})");
    const Ended ended = repo({"put", "--batch", folder_ / "batch.jsonl", "--dedup"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.json()["own_bytes"], model == std::string("a") ? 48 : 0);
  }
}

TEST_F(RepoCommand, ListingsHaveTheirKeys) {
  put("net", chain(1, 2, 3));
  put("net", chain(4, 5, 6), {"--ancestor", "net@1"});
  EXPECT_EQ(repo({"ls"}).json(), Json({{"model", "net"}, {"versions", 2}, {"newest", 2}, {"quality", nullptr}}));
  ASSERT_EQ(repo({"ls", "net"}).json_lines().size(), 2u);
  EXPECT_THAT(keys_of(repo({"ls", "net"}).json_lines()[1]),
              ElementsAre("model", "version", "ancestor", "inherited_bytes", "own_bytes", "quality", "step", "metrics",
                          "created_ms"));
  const Json stat = repo({"stat"}).json();
  EXPECT_THAT(keys_of(stat), ElementsAre("models", "versions", "retired_versions", "live_tensors", "live_bytes",
                                         "disk_bytes", "metadata_bytes"));
  EXPECT_EQ(stat["live_tensors"], 6);
  EXPECT_EQ(stat["live_bytes"], 96);
  EXPECT_EQ(repo({"show", "net@1"}).json()["tensors"][2],
            Json::parse(R"({"name":"c.w","dtype":"f32","shape":[4],"bytes":16,"role":"weight","owner":"net@1"})"));
}

TEST_F(RepoCommand, PinsAreCountedByWhoMadeThem) {
  put("net", chain(1, 2, 3));
  EXPECT_EQ(repo({"pin", "net", "--by", "me"}).json()["pins"], Json({"me"}));
  EXPECT_EQ(repo({"unpin", "net", "--by", "me"}).json()["pins"], Json::array());
}

/// Flips a bit of every copy of `needle` in the folder's files. How many there were.
int flip_a_bit_of(const std::string& needle, const std::string& folder) {
  int flipped = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string text = read_file(entry.path().string()).value_or("");
    const std::size_t at = text.find(needle);
    if (at == std::string::npos) continue;
    text[at + 7] = static_cast<char>(text[at + 7] ^ 0x10);
    write_file(entry.path().string(), text);
    ++flipped;
  }
  return flipped;
}

ModelBytes megabyte() {
  ModelBytes model{.tensors = {{"w", "U8", {1 << 20}, std::string(1 << 20, '\0')}}};
  for (std::size_t i = 0; i < model.tensors[0].bytes.size(); ++i) {
    model.tensors[0].bytes[i] = static_cast<char>(i * 2654435761U >> 13);
  }
  return model;
}

TEST_F(RepoCommand, VerifyFindsAFlippedBit) {
  const ModelBytes model = megabyte();
  put("net", model);
  EXPECT_EQ(repo({"verify"}).json(), Json({{"checked_bytes", 1 << 20}, {"corrupt", Json::array()}}));

  // The next owner of the folder moves what the first one's log held into tables.
  put("other", chain(1, 2, 3));
  ASSERT_EQ(flip_a_bit_of(model.tensors[0].bytes.substr(500000, 64), folder_ / "repository"), 1);
  const Ended corrupt = repo({"verify"});
  EXPECT_EQ(corrupt.exit_code, 4) << corrupt.err;
  ASSERT_EQ(corrupt.json()["corrupt"].size(), 1u) << corrupt.out;
  EXPECT_EQ(corrupt.json()["corrupt"][0]["version"], "net@1");
  EXPECT_EQ(corrupt.json()["corrupt"][0]["tensor"], "w");
  EXPECT_EQ(repo({"verify", "other"}).exit_code, 0);
  EXPECT_EQ(repo({"get", "net", "-o", folder_ / "out"}).exit_code, 4);
  EXPECT_FALSE(read_file(folder_ / "out"));

  const Ended backup = repo({"export", "--all", "-o", folder_ / "backup"});
  EXPECT_EQ(backup.exit_code, 4);
  EXPECT_THAT(backup.err, HasSubstr("export net@1"));
  EXPECT_TRUE(read_file(folder_ / "backup/other@1.safetensors")) << "one bad version keeps the others out of a backup";
}

TEST_F(RepoCommand, AFlippedBitInTheLogIsNoLostVersion) {
  const ModelBytes model = megabyte();
  put("net", model);
  ASSERT_EQ(flip_a_bit_of(model.tensors[0].bytes.substr(500000, 64), folder_ / "repository"), 1);
  // Not "the repository is empty", which is what a log that ends early would mean.
  const Ended damaged = repo({"verify"});
  EXPECT_EQ(damaged.exit_code, 4);
  EXPECT_EQ(damaged.json()["checked_bytes"], 0) << damaged.out;
  EXPECT_EQ(damaged.json()["corrupt"], Json::parse(R"([{"version":null,"tensor":null}])"));
  EXPECT_THAT(damaged.json()["damaged"].get<std::string>(), HasSubstr(folder_ / "repository"));
  EXPECT_EQ(repo({"get", "net", "-o", folder_ / "out"}).exit_code, 4);
}

TEST_F(RepoCommand, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(repo({"ls"}).exit_code, 3);
  put("net", chain(1, 2, 3));
  EXPECT_THAT(repo({"show", "nte"}).err, HasSubstr("no model nte; here are: net"));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"show", "other"},
                                             {"show", "net@2"},
                                             {"lineage", "other"},
                                             {"owners", "net@7"},
                                             {"ls", "other"},
                                             {"pin", "other"},
                                             {"diff", "net", "other"},
                                             {"verify", "net@2"},
                                             {"get", "net@2", "-o", folder_ / "x"},
                                             {"put", "net", "--weights", folder_ / "nowhere"}}) {
    const Ended ended = repo(command);
    EXPECT_EQ(ended.exit_code, 3) << command[0] << ": " << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
}

TEST_F(RepoCommand, AMissingFolderForTheFileIsNoMissingVersion) {
  put("net", chain(1, 2, 3));
  const Ended ended = repo({"get", "net", "-o", folder_ / "nowhere/out.safetensors"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr(folder_ / "nowhere/out.safetensors"));
  EXPECT_THAT(ended.err, HasSubstr("its folder does not exist"));
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

TEST_F(RepoCommand, AFileThatCannotBeReadBeginsNoRepository) {
  const std::string missing = folder_ / "missing";
  const std::vector<std::vector<std::string>> puts = {
      {"put", "net", "--weights", missing}, {"put", "net", "--graph", missing}, {"put", "--batch", missing}};
  for (const std::vector<std::string>& words : puts) {
    const Ended ended = repo(words);
    EXPECT_EQ(ended.exit_code, 3) << words[1];
    EXPECT_THAT(ended.err, HasSubstr(missing));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "repository")) << words[1];
  }
}

TEST_F(RepoCommand, AGraphWithoutWeightsHasNoOwners) {
  write_file(folder_ / "g.json", R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"},
      {"name":"a","class":"Dense","inputs":["x"],"tensors":{"w":{"dtype":"f32","shape":[4]}}}],"outputs":["a"]})");
  const Ended made = repo({"put", "net", "--graph", folder_ / "g.json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(repo({"owners", "net"}).json(), Json::parse(R"([{"tensor":"a.w","owner":null,"bytes":16}])"));
  EXPECT_EQ(repo({"show", "net"}).json()["tensors"][0]["owner"], nullptr);
}

TEST_F(RepoCommand, AnAddressWhereNobodyIsIsUnavailable) {
  const std::string address = "ipc://" + (folder_ / "nobody");
  const Ended ended = run({"repo", "--repo", address, "ls"});
  EXPECT_EQ(ended.exit_code, 5);
  EXPECT_THAT(ended.err, HasSubstr(address));
}

TEST_F(RepoCommand, AServedRepositoryIsReachedByItsFolderAndByItsAddress) {
  put("net", chain(1, 2, 3));
  const std::string address = "ipc://" + (folder_ / "socket");
  Running server({"provider", "--repo", folder_ / "repository", "--listen", address, "--json"}, {});
  ASSERT_EQ(server.next_json()["address"], address);
  // Through the owner, and the same is there.
  EXPECT_EQ(put("net", chain(1, 2, 4))["version"], 2);
  const Ended listed = run({"repo", "--repo", address, "ls", "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_EQ(listed.json()["versions"], 2);
  const std::string out = folder_ / "out.safetensors";
  EXPECT_EQ(run({"repo", "--repo", address, "get", "net@1", "-o", out}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(out));
  EXPECT_EQ(run({"repo", "--repo", address, "get", "net@9", "-o", out}).exit_code, 3);
  const Ended second = run({"provider", "--repo", folder_ / "repository", "--json"});
  EXPECT_EQ(second.exit_code, 5);
  EXPECT_THAT(second.err, HasSubstr(std::to_string(server.pid())));
  ::kill(server.pid(), SIGINT);
  EXPECT_EQ(server.wait().exit_code, 130);
  EXPECT_EQ(repo({"ls"}).exit_code, 0);
}

TEST_F(RepoCommand, WhileAnotherCommandOwnsTheFolderOthersGoThroughIt) {
  put("net", chain(1, 2, 3));
  // A batch from a pipe that stays open keeps the folder owned.
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Running owner({"repo", "--repo", folder_ / "repository", "put", "--json", "--batch", pipe}, {});
  std::ofstream lines(pipe);
  lines
      << R"({"model":"n","graph":{"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"}],"outputs":["x"]}})"
      << std::endl;
  ASSERT_EQ(owner.next_json()["version"], 1);

  EXPECT_EQ(repo({"get", "net", "-o", folder_ / "out"}).exit_code, 0);
  EXPECT_EQ(repo({"show", "n"}).exit_code, 0) << "what it put just now";
  EXPECT_EQ(put("net", chain(1, 2, 4))["version"], 2);
  lines.close();
  EXPECT_EQ(owner.wait().exit_code, 0);
}

}  // namespace
}  // namespace freshet::cli_test
