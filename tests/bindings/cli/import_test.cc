// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

class ImportCommand : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(files()); }
  std::string files() const { return folder_ / "files"; }
  void add(const std::string& name, const ModelBytes& model) { write_file(files() + "/" + name, encoded(model)); }
  Ended repo(std::vector<std::string> arguments, const std::string& repository = "repository") {
    arguments.insert(arguments.begin(), "repo");
    arguments.push_back("--json");
    return run(arguments, {{"FRESHET_REPO", folder_ / repository}});
  }

  TemporaryFolder folder_;
};

TEST_F(ImportCommand, AFolderIsALineInTheOrderOfItsNumbers) {
  add("step10.safetensors", chain(1, 2, 5));
  add("step9.safetensors", chain(1, 2, 4));
  add("step1.safetensors", chain(1, 2, 3));
  add(".hidden.safetensors", chain(9, 9, 9));
  const Ended ended = repo({"import", files(), "--model", "net"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<Json> lines = ended.json_lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], Json({{"model", "net"},
                            {"version", 1},
                            {"inherited_bytes", 0},
                            {"own_bytes", 48},
                            {"file", files() + "/step1.safetensors"},
                            {"guessed", true}}));
  EXPECT_EQ(lines[2]["inherited_bytes"], 32);
  EXPECT_EQ(repo({"get", "net@3", "-o", folder_ / "out"}).exit_code, 0);
  EXPECT_EQ(model_in(folder_ / "out"), chain(1, 2, 5));
  EXPECT_EQ(repo({"lineage", "net"}).json().size(), 3u);
}

TEST_F(ImportCommand, AModelInPartsIsOneVersionByItsIndexAndAPartIsNone) {
  const ModelBytes whole = chain(1, 2, 3);
  ModelBytes left = whole;
  left.tensors.pop_back();
  ModelBytes right;
  right.tensors = {whole.tensors.back()};
  add("m-00001-of-00002.safetensors", left);
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{"import", files()},
        {"import", files() + "/m-00001-of-00002.safetensors"},
        {"put", "net", "--weights", files() + "/m-00001-of-00002.safetensors"}}) {
    const Ended ended = repo(refused);
    EXPECT_EQ(ended.exit_code, 1) << ended.out;
    EXPECT_THAT(ended.err, HasSubstr("m-00001-of-00002.safetensors: the file is a part of a checkpoint"));
  }
  add("m-00002-of-00002.safetensors", right);
  Json map;
  for (const FileTensor& tensor : left.tensors) map[tensor.name] = "m-00001-of-00002.safetensors";
  map[right.tensors[0].name] = "m-00002-of-00002.safetensors";
  const std::string index = files() + "/m.safetensors.index.json";
  write_file(index, Json({{"weight_map", map}}).dump());
  const Ended imported = repo({"import", files()});
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_EQ(imported.json()["model"], "m");
  EXPECT_EQ(imported.json()["file"], index);
  EXPECT_EQ(imported.json()["own_bytes"], 48);
  const Ended put = repo({"put", "net", "--weights", index});
  EXPECT_EQ(put.exit_code, 0) << put.err;
  for (const char* const version : {"m@1", "net@1"}) {
    ASSERT_EQ(repo({"get", version, "-o", folder_ / "out"}).exit_code, 0);
    EXPECT_EQ(model_in(folder_ / "out"), whole);
  }
  EXPECT_EQ(repo({"ls"}).json_lines().size(), 2u);
}

TEST_F(ImportCommand, AFilesMetadataBecomesNoTagOfFreshetsOwn) {
  ModelBytes model = chain(1, 2, 3);
  model.metadata = {{"format", "pt"}, {"freshet.parts", R"(["prod.rank1@1"])"}, {"freshet.tied", "{"}};
  add("net.safetensors", model);
  const std::string file = files() + "/net.safetensors";
  write_file(folder_ / "batch", Json({{"model", "net"}, {"weights", file}}).dump() + "\n");
  for (const std::vector<std::string>& door : {std::vector<std::string>{"put", "net", "--weights", file},
                                               {"import", file},
                                               {"put", "--batch", folder_ / "batch"}}) {
    const Ended ended = repo(door);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("its freshet.parts is no tag of the version"));
    EXPECT_EQ(repo({"show", "net"}).json()["tags"], Json({{"format", "pt"}})) << door[0];
  }
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{"put", "net", "--weights", file, "--tag", "freshet.parts=[\"prod@1\"]"},
        {"set", "net", "--tag", "freshet.new=x"}}) {
    const Ended ended = repo(refused);
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.err, HasSubstr("are Freshet's own"));
  }
}

TEST_F(ImportCommand, WhatIsExportedComesBackByteForByte) {
  add("net@4.safetensors", chain(1, 2, 3));
  add("other.safetensors", model_of_all_types(1));
  add("net@11.safetensors", chain(1, 2, 6));
  const std::string graph =
      R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"},{"name":"d","class":"Dense","inputs":["x"],)"
      R"("tensors":{"w":{"dtype":"f32","shape":[4],"key":"a.w"}}}],"outputs":["d"]})";
  ModelBytes one;
  one.tensors = {chain(8, 0, 0).tensors[0]};
  add("known.safetensors", one);
  write_file(files() + "/known.graph.json", graph);
  ASSERT_EQ(repo({"import", files()}).exit_code, 0);
  EXPECT_EQ(repo({"show", "known"}).json()["guessed"], false);
  EXPECT_EQ(repo({"show", "net@2"}).json()["ancestor"], "net@1");

  const Ended exported = repo({"export", "--all", "-o", folder_ / "out"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(exported.json_lines().size(), 4u);
  EXPECT_EQ(model_in(folder_ / "out/net@2.safetensors"), chain(1, 2, 6));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/known@1.graph.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/net@1.graph.json")) << "it was guessed";

  ASSERT_EQ(repo({"import", folder_ / "out"}, "copy").exit_code, 0);
  for (const char* version : {"net@1", "net@2", "other@1", "known@1"}) {
    ASSERT_EQ(repo({"get", version, "-o", folder_ / "again"}, "copy").exit_code, 0);
    EXPECT_EQ(model_in(folder_ / "again"), model_in(folder_ / ("out/" + std::string(version) + ".safetensors")));
  }
  EXPECT_EQ(repo({"show", "known"}, "copy").json()["layers"], 2);
}

TEST_F(ImportCommand, WhatCannotBeTakenIsNamed) {
  EXPECT_THAT(repo({"import", files()}).err, HasSubstr("no *.safetensors"));
  EXPECT_EQ(repo({"import", folder_ / "nowhere"}).exit_code, 3);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "repository")) << "what cannot be read makes no repository";
  add("-odd name.safetensors", chain(1, 2, 3));
  const Ended odd = repo({"import", files()});
  EXPECT_EQ(odd.exit_code, 1);
  EXPECT_THAT(odd.err, HasSubstr("--model"));
  add("-odd name.safetensors", ModelBytes{});
  write_file(files() + "/broken.safetensors", "nonsense");
  const Ended broken = repo({"import", files() + "/broken.safetensors"});
  EXPECT_EQ(broken.exit_code, 4);
  EXPECT_THAT(broken.err, HasSubstr("broken.safetensors"));
  EXPECT_EQ(repo({"import"}).exit_code, 2);
  EXPECT_EQ(repo({"export", "-o", folder_ / "out"}).exit_code, 2);
  EXPECT_EQ(repo({"export", "nobody", "-o", folder_ / "out"}).exit_code, 3);
}

}  // namespace
}  // namespace freshet::cli_test
