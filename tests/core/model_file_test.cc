// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/format.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ModelFiles : public testing::Test {
 protected:
  /// A file with one byte a tensor: the first of its name.
  void add(const std::string& name, const std::vector<std::string>& tensors, SafetensorsMetadata metadata = {}) {
    std::vector<TensorView> views;
    for (const std::string& tensor : tensors) {
      views.push_back({.spec = {.name = tensor, .dtype = DType::u8, .shape = {1}},
                       .data = std::as_bytes(std::span(tensor.data(), 1))});
    }
    ASSERT_TRUE(write_safetensors(folder_ / name, views, metadata, false));
  }
  void add_index(const std::map<std::string, std::string>& map, const std::string& name = "m.safetensors.index.json") {
    std::string text;
    for (const auto& [tensor, file] : map) text += format(R"({}"{}":"{}")", text.empty() ? "" : ",", tensor, file);
    write(name, format(R"({{"metadata":{{"total_size":2}},"weight_map":{{{}}}}})", text));
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  /// Name and byte of each tensor; or the error.
  std::vector<std::string> read(const std::string& name) {
    const auto file = ModelFile::read(folder_ / name);
    if (!file) return {format("{}: {}", name_of(file.error().code()), file.error().message())};
    std::vector<std::string> all;
    for (const TensorView& view : file->tensors()) {
      all.push_back(format("{}={}", view.spec.name, static_cast<char>(view.data[0])));
    }
    return all;
  }
  std::string error(const std::string& name) { return read(name).front(); }

  TemporaryFolder folder_;
};

TEST_F(ModelFiles, TheMetadataTellStepAndMetrics) {
  add("a.safetensors", {"w"},
      {{"step", "900"},
       {"loss", "0.25"},
       {"accuracy", "1e-3"},
       {"format", "pt"},
       {"seed", "-7"},
       {"bad", "0.5 "},
       {"worse", "0x10"},
       {"none", ""},
       {"lost", "nan"},
       {"gone", "inf"}});
  const auto file = ModelFile::read(folder_ / "a.safetensors");
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->step(), 900u);
  const std::map<std::string, double> metrics(file->metrics().begin(), file->metrics().end());
  EXPECT_EQ(metrics, (std::map<std::string, double>{{"loss", 0.25}, {"accuracy", 1e-3}, {"seed", -7}}));
  EXPECT_EQ(file->tags().size(), 10u);  // All of them stay what they were, too.
  for (const char* step : {"-1", "1.5", "1e3", "", "99999999999999999999"}) {
    add("b.safetensors", {"w"}, {{"step", step}});
    const auto odd = ModelFile::read(folder_ / "b.safetensors");
    ASSERT_TRUE(odd) << odd.error().message();
    EXPECT_EQ(odd->step(), 0u) << step;
    EXPECT_TRUE(odd->metrics().empty()) << step;
  }
}

TEST_F(ModelFiles, AnIndexIsTheModelThatLiesInItsParts) {
  add("m-00001-of-00002.safetensors", {"embed", "a"}, {{"format", "pt"}, {"first", "1"}});
  add("m-00002-of-00002.safetensors", {"head"}, {{"format", "np"}});
  add_index({{"embed", "m-00001-of-00002.safetensors"},
             {"a", "m-00001-of-00002.safetensors"},
             {"head", "m-00002-of-00002.safetensors"}});
  EXPECT_THAT(read("m.safetensors.index.json"), ElementsAre("embed=e", "a=a", "head=h"));
  auto file = ModelFile::read(folder_ / "m.safetensors.index.json");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->tags(), (Tags{{"format", "pt"}, {"first", "1"}}));
  EXPECT_EQ(static_cast<const void*>(file->memory_of(2).data()), file->tensors()[2].data.data());
  EXPECT_THAT(error("m-00001-of-00002.safetensors"), HasSubstr("m.safetensors.index.json names all its parts"));
  EXPECT_THAT(*files_of_safetensors_index(folder_ / "m.safetensors.index.json"),
              ElementsAre(folder_ / "m-00001-of-00002.safetensors", folder_ / "m-00002-of-00002.safetensors"));

  const auto mapped = ModelFile::map(folder_ / "m.safetensors.index.json");
  ASSERT_TRUE(mapped);
  ASSERT_EQ(mapped->tensors().size(), 3u);
  EXPECT_EQ(static_cast<char>(mapped->tensors()[2].data[0]), 'h');
  EXPECT_TRUE(file->check_unchanged());
  EXPECT_TRUE(mapped->check_unchanged());
  std::filesystem::resize_file(folder_ / "m-00002-of-00002.safetensors", 8);
  EXPECT_TRUE(file->check_unchanged());
  EXPECT_THAT(mapped->check_unchanged().error().message(), HasSubstr("m-00002-of-00002.safetensors: the file changed"));
}

TEST_F(ModelFiles, APartIsKnownByItsNameOrByAnIndexThatNamesItAndOthers) {
  for (const char* const name : {"m-00001-of-00002.safetensors", "m.fp16-2-of-10.safetensors",
                                 "model-rank-0-part-1.safetensors", "a-00003-of-00001-of-00002.safetensors"}) {
    add(name, {"w"});
    EXPECT_THAT(error(name), HasSubstr("part of a checkpoint")) << name;
  }
  std::filesystem::create_symlink("m-00001-of-00002.safetensors", folder_ / "current.safetensors");
  EXPECT_THAT(error("current.safetensors"), HasSubstr("part of a checkpoint"));
  for (const char* const name : {"m.safetensors", "m-00001-of-00001.safetensors", "one-of-a-kind.safetensors",
                                 "best-of-3.safetensors", "m-of-00002.safetensors", "part-1.safetensors"}) {
    add(name, {"w"});
    EXPECT_THAT(read(name), ElementsAre("w=w")) << name;
  }

  add("left.safetensors", {"a"});
  add("right.safetensors", {"b"});
  add("alone.safetensors", {"a", "b"});
  EXPECT_THAT(read("left.safetensors"), ElementsAre("a=a"));
  add_index({{"a", "left.safetensors"}, {"b", "right.safetensors"}}, "m.safetensors.index.fp16.json");
  add_index({{"a", "alone.safetensors"}, {"b", "alone.safetensors"}}, "alone.safetensors.index.json");
  EXPECT_THAT(error("left.safetensors"), HasSubstr("m.safetensors.index.fp16.json"));
  EXPECT_THAT(read("m.safetensors.index.fp16.json"), ElementsAre("a=a", "b=b"));
  EXPECT_THAT(read("alone.safetensors"), ElementsAre("a=a", "b=b")) << "its index names it alone";
}

TEST_F(ModelFiles, AnIndexThatContradictsItsFilesIsRefused) {
  constexpr const char* kIndex = "m.safetensors.index.json";
  add("left.safetensors", {"a"});
  add("right.safetensors", {"b"});
  add_index({{"a", "left.safetensors"}, {"b", "gone.safetensors"}});
  EXPECT_THAT(error(kIndex), HasSubstr("not_found: "));
  EXPECT_THAT(error(kIndex), HasSubstr("gone.safetensors"));
  add_index({{"a", "left.safetensors"}});
  EXPECT_THAT(read(kIndex), ElementsAre("a=a"));
  add_index({{"a", "right.safetensors"}, {"b", "left.safetensors"}});
  EXPECT_THAT(error(kIndex), HasSubstr("corrupt: "));
  add_index({{"a", "left.safetensors"}, {"b", "right.safetensors"}, {"c", "right.safetensors"}});
  EXPECT_THAT(error(kIndex), HasSubstr("right.safetensors has no tensor c"));
  add("right.safetensors", {"b", "more"});
  add_index({{"a", "left.safetensors"}, {"b", "right.safetensors"}});
  EXPECT_THAT(error(kIndex), HasSubstr("right.safetensors has a tensor more"));

  for (const char* const text : {"", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
                                 R"({"weight_map":{"a":"../left.safetensors"}})", R"({"weight_map":{"a":".."}})",
                                 R"({"weight_map":{"a":"left.safetensors","a":"right.safetensors"}})"}) {
    write(kIndex, text);
    EXPECT_THAT(error(kIndex), HasSubstr("corrupt: ")) << text;
    EXPECT_THAT(error(kIndex), HasSubstr(kIndex)) << text;
  }
  write(kIndex, R"({"metadata":{"delta_encoding":"xor"},"weight_map":{"a":"left.safetensors"}})");
  EXPECT_THAT(error(kIndex), HasSubstr("invalid_argument: "));
  EXPECT_THAT(read("left.safetensors"), ElementsAre("a=a")) << "an index that cannot be read names nothing";
}

}  // namespace
}  // namespace freshet
