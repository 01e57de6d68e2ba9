// SPDX-License-Identifier: Apache-2.0
#include "repo/files/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "core/base/format.h"
#include "core/safetensors/safetensors.h"
#include "repo/backend/backend_wrapper.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using testing::HasSubstr;

constexpr char kTwoLayers[] = R"({"freshet_graph": 1, "layers": [
  {"name": "x", "class": "Input", "config": {"dtype": "f32", "shape": [null, 2]}},
  {"name": "a", "class": "Dense", "config": {"units": 4}, "inputs": ["x"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [2, 4]}, "bias": {"dtype": "f32", "shape": [4]}}},
  {"name": "b", "class": "Dense", "config": {"units": 3}, "inputs": ["a"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [4, 3]}}}], "outputs": ["b"]})";
// Its first layer goes by another name, its second has another width.
constexpr char kTransferred[] = R"({"freshet_graph": 1, "layers": [
  {"name": "in", "class": "Input", "config": {"dtype": "f32", "shape": [null, 2]}},
  {"name": "stem", "class": "Dense", "config": {"units": 4}, "inputs": ["in"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [2, 4]}, "bias": {"dtype": "f32", "shape": [4]}}},
  {"name": "b", "class": "Dense", "config": {"units": 5}, "inputs": ["stem"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [4, 5]}}}], "outputs": ["b"]})";

class StagePut : public testing::Test {
 protected:
  // A float tensor whose bytes all come from `fill`.
  TensorView tensor(const std::string& name, Shape shape, float fill) {
    TensorSpec spec{.name = name, .dtype = DType::f32, .shape = std::move(shape)};
    storage_.push_back(std::make_unique<std::vector<float>>(spec.bytes() / sizeof(float), fill));
    return {.spec = spec, .data = bytes_of(storage_.back()->data(), storage_.back()->size())};
  }

  static std::shared_ptr<const Architecture> graph(const char* text) {
    auto parsed = parse_graph_json(text);
    FRESHET_CHECK(parsed.has_value());
    return *parsed;
  }

  Result<VersionName> store(const StageRequest& request) {
    staged_ = stage_put(*repository_, request);
    if (!staged_) return fail(staged_.error());
    return repository_->put(staged_->manifest, staged_->bytes_of(), staged_->options);
  }

  std::vector<TensorView> two_layers() {
    return {tensor("a.kernel", {2, 4}, 1), tensor("a.bias", {4}, 2), tensor("b.kernel", {4, 3}, 3)};
  }

  std::vector<std::byte> bytes_in(const VersionName& name, const std::string& tensor_name) {
    const auto record = repository_->get(name);
    const auto index = record->manifest.architecture->tensor_named(tensor_name);
    return read_all(*repository_, name).value()[*index];
  }

  static std::vector<std::byte> copy(const TensorView& view) { return {view.data.begin(), view.data.end()}; }

  std::vector<std::unique_ptr<std::vector<float>>> storage_;
  std::unique_ptr<Repository> repository_ = open_or_die(make_memory_backend());
  Result<StagedPut> staged_ = fail(Code::not_found, "");
};

TEST_F(StagePut, GraphAndWeights) {
  const auto tensors = two_layers();
  const auto name = store(
      {.model = "net", .architecture = graph(kTwoLayers), .tensors = tensors, .quality = 0.5, .tags = {{"k", "v"}}});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(staged_->own_bytes, 96u);
  EXPECT_EQ(staged_->inherited_bytes, 0u);
  EXPECT_EQ(bytes_in(*name, "b.kernel"), copy(tensors[2]));
  const auto record = repository_->get(*name);
  EXPECT_EQ(record->quality, 0.5);
  EXPECT_EQ(record->manifest.tags.size(), 1u);
}

// The file's bytes change behind its digests, and are cut off.
TEST_F(StagePut, AMappedFileThatChangesIsNotStored) {
  const TemporaryFolder folder;
  const std::string path = folder / "f.safetensors";
  const std::string kinds[] = {"rewritten", "cut short", "left alone"};
  for (const std::string& kind : kinds) {
    ASSERT_TRUE(write_safetensors(path, two_layers(), {}, false));
    const auto file = SafetensorsFile::map(path);
    ASSERT_TRUE(file) << file.error().message();
    const auto staged = stage_put(*repository_, {.model = "net", .tensors = file->tensors()});
    ASSERT_TRUE(staged) << staged.error().message();
    ASSERT_TRUE(file->check_unchanged());
    if (kind == "rewritten")
      std::fstream(path, std::ios::in | std::ios::out | std::ios::ate).seekp(-4, std::ios::end) << 'x';
    if (kind == "cut short") std::filesystem::resize_file(path, 0);
    const auto stored = repository_->put(staged->manifest, staged->bytes_of(), staged->options);
    EXPECT_EQ(stored.has_value(), kind == "left alone") << kind;
    if (!stored) {
      EXPECT_EQ(stored.error().code(), Code::corrupt) << stored.error().message();
    }
    EXPECT_EQ(repository_->models()->size(), stored ? 1u : 0u) << kind;
  }
}

/// Calls `before_writes` before it writes tensors.
class PreparedBackend final : public BackendWrapper {
 public:
  PreparedBackend(std::shared_ptr<Backend> inner, std::function<void()> before_writes)
      : BackendWrapper(std::move(inner)), before_writes_(std::move(before_writes)) {}
  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    before_writes_();
    return BackendWrapper::write_blobs();
  }

 private:
  const std::function<void()> before_writes_;
};

TEST_F(StagePut, AFileThatChangesWhileItIsPutIsToldByName) {
  const TemporaryFolder folder;
  const std::string path = folder / "f.safetensors";
  const auto change = [&] {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::ate).seekp(-4, std::ios::end) << 'x';
    // Its time, where two writes may have the same one.
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  };
  for (const bool is_staged : {false, true}) {
    ASSERT_TRUE(write_safetensors(path, two_layers(), {}, false));
    const auto file = ModelFile::map(path);
    ASSERT_TRUE(file) << file.error().message();
    const auto repository = open_or_die(std::make_unique<PreparedBackend>(make_memory_backend(), [&] {
      if (is_staged) change();
    }));
    if (!is_staged) change();
    const auto stored = stage_and_put(*repository, {.model = "net", .tensors = file->tensors()}, &*file);
    ASSERT_TRUE(is_refused(stored, Code::unavailable, path + ": the file changed while it was read"))
        << "after its digests were taken: " << is_staged;
    if (is_staged) {
      EXPECT_THAT(stored.error().message(), HasSubstr("digest")) << "the repository's own words";
    }
    EXPECT_TRUE(repository->models()->empty());
  }
}

TEST_F(StagePut, ThePrefixIsInheritedUnderAnotherName) {
  const auto tensors = two_layers();
  ASSERT_TRUE(store({.model = "net", .architecture = graph(kTwoLayers), .tensors = tensors}));
  // The bias is left out, the kernel is given with equal bytes: both are inherited.
  const std::vector<TensorView> given = {tensor("stem.kernel", {2, 4}, 1), tensor("b.kernel", {4, 5}, 7)};
  const auto name = store({.model = "child",
                           .architecture = graph(kTransferred),
                           .tensors = given,
                           .ancestor = VersionName{.model = "net"}});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(staged_->own_bytes, 80u);
  EXPECT_EQ(staged_->inherited_bytes, 48u);
  EXPECT_EQ(bytes_in(*name, "stem.bias"), copy(tensors[1]));
  EXPECT_EQ(bytes_in(*name, "stem.kernel"), copy(tensors[0]));
  EXPECT_EQ(bytes_in(*name, "b.kernel"), copy(given[1]));
  EXPECT_EQ(to_string((*repository_->lineage(*name))[0].ancestor), "net@1");
  EXPECT_EQ(repository_->stat()->live_tensors, 4u);
}

TEST_F(StagePut, OtherBytesInThePrefixAreItsOwn) {
  const auto tensors = two_layers();
  ASSERT_TRUE(store({.model = "net", .architecture = graph(kTwoLayers), .tensors = tensors}));
  const std::vector<TensorView> given = {tensor("a.kernel", {2, 4}, 1.5), tensor("b.kernel", {4, 3}, 3)};
  const auto name = store({.model = "net",
                           .architecture = graph(kTwoLayers),
                           .tensors = given,
                           .ancestor = VersionName{.model = "net", .number = 1}});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(name->number, 2u);
  EXPECT_EQ(staged_->own_bytes, 32u);
  EXPECT_EQ(bytes_in(*name, "a.kernel"), copy(given[0]));
  EXPECT_EQ(bytes_in(*name, "a.bias"), copy(tensors[1]));
}

TEST_F(StagePut, WhatIsOutsideThePrefixMustBeGiven) {
  const auto tensors = two_layers();
  ASSERT_TRUE(store({.model = "net", .architecture = graph(kTwoLayers), .tensors = tensors}));
  const std::vector<TensorView> given = {tensor("stem.kernel", {2, 4}, 1)};
  const auto refused = store({.model = "child",
                              .architecture = graph(kTransferred),
                              .tensors = given,
                              .ancestor = VersionName{.model = "net"}});
  ASSERT_TRUE(is_refused(refused, Code::invalid_argument));
  EXPECT_EQ(refused.error().message(),
            "tensor b.kernel is missing and does not lie in the common prefix with the ancestor");
}

TEST_F(StagePut, AnotherSliceOfATensorIsNotInherited) {
  const auto half = [](const char* name, int row) {
    const std::string text = format(R"({{"freshet_graph": 1, "layers": [
      {{"name": "x", "class": "Input"}},
      {{"name": "{}", "class": "Dense", "inputs": ["x"], "tensors": {{"kernel": {{"dtype": "f32", "shape": [1, 4],
        "slice": {{"global_shape": [2, 4], "offset": [{}, 0], "parts": 2}}}}}}}}], "outputs": ["{}"]}})",
                                    name, row, name);
    return graph(text.c_str());
  };
  ASSERT_TRUE(std::ranges::equal(half("a", 0)->slots(), half("b", 1)->slots()));
  const std::vector<TensorView> upper = {tensor("a.kernel", {1, 4}, 1)};
  ASSERT_TRUE(store({.model = "net", .architecture = half("a", 0), .tensors = upper}));
  const std::vector<TensorView> none;
  const VersionName parent{.model = "net", .number = 1};
  const auto refused = store({.model = "other", .architecture = half("b", 1), .tensors = none, .ancestor = parent});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "tensor b.kernel is missing and does not lie in the common prefix with the ancestor");
  const std::vector<TensorView> lower = {tensor("b.kernel", {1, 4}, 2)};
  const auto other = store({.model = "other", .architecture = half("b", 1), .tensors = lower, .ancestor = parent});
  ASSERT_TRUE(other) << other.error().message();
  EXPECT_EQ(staged_->inherited_bytes, 0u);
  EXPECT_EQ(bytes_in(*other, "b.kernel"), copy(lower[0]));
  const auto same = store({.model = "same", .architecture = half("c", 0), .tensors = none, .ancestor = parent});
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_EQ(staged_->inherited_bytes, 16u);
  EXPECT_EQ(bytes_in(*same, "c.kernel"), copy(upper[0]));
}

TEST_F(StagePut, AGuessedChainIsTheAncestorsOnlyIfItIsCutAlike) {
  TensorView part = tensor("a.kernel", {1, 4}, 1);
  part.spec.slice = Slice{.global_shape = {2, 4}, .offset = {1, 0}, .parts = 2};
  ASSERT_TRUE(store({.model = "net", .tensors = std::vector{part}}));
  const std::vector<TensorView> whole = {tensor("a.kernel", {1, 4}, 1)};
  const auto name = store({.model = "net", .tensors = whole, .ancestor = VersionName{.model = "net"}});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_FALSE(repository_->get(*name)->manifest.architecture->tensors()[0].slice);
}

TEST_F(StagePut, MistakesAreNamed) {
  const auto code_of = [&](std::vector<TensorView> given, const char* text) {
    const auto refused = store({.model = "net", .architecture = text ? graph(text) : nullptr, .tensors = given});
    return refused ? std::string("stored")
                   : format("{}: {}", name_of(refused.error().code()), refused.error().message());
  };
  auto given = two_layers();
  given.push_back(tensor("c", {1}, 0));
  EXPECT_EQ(code_of(given, kTwoLayers), "invalid_argument: tensor c is not in the graph");
  given = two_layers();
  given.push_back(given[0]);
  EXPECT_EQ(code_of(given, kTwoLayers), "invalid_argument: tensor a.kernel was given twice");
  given = two_layers();
  given[1] = tensor("a.bias", {5}, 0);
  EXPECT_EQ(code_of(given, kTwoLayers), "invalid_argument: tensor a.bias is f32[5]; the graph has f32[4]");
  given.erase(given.begin() + 1);
  EXPECT_EQ(code_of(given, kTwoLayers), "invalid_argument: tensor a.bias is missing");
  EXPECT_EQ(code_of({}, nullptr), "invalid_argument: it has neither a graph nor a tensor");
  const auto unknown =
      store({.model = "net", .architecture = graph(kTwoLayers), .ancestor = VersionName{.model = "no"}});
  EXPECT_EQ(unknown.error().code(), Code::not_found);
}

TEST_F(StagePut, WeightsWithoutAGraphAreAGuessedChain) {
  const std::vector<TensorView> given = {tensor("enc.0.weight", {4}, 1), tensor("enc.0.bias", {2}, 2),
                                         tensor("head", {3}, 3)};
  ASSERT_TRUE(store({.model = "net", .tensors = given}));
  EXPECT_TRUE(repository_->get({.model = "net"})->manifest.architecture->parts().guessed);
  // A file that leaves tensors out is completed from a guessed ancestor.
  const std::vector<TensorView> part = {tensor("head", {3}, 4)};
  const auto name = store({.model = "net", .tensors = part, .ancestor = VersionName{.model = "net"}});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(staged_->own_bytes, 12u);
  EXPECT_EQ(staged_->inherited_bytes, 24u);
  EXPECT_EQ(bytes_in(*name, "enc.0.weight"), copy(given[0]));
}

TEST_F(StagePut, AGraphWithoutWeightsInheritsNothing) {
  const auto tensors = two_layers();
  ASSERT_TRUE(store({.model = "net", .architecture = graph(kTwoLayers), .tensors = tensors}));
  const auto name =
      store({.model = "candidate", .architecture = graph(kTwoLayers), .ancestor = VersionName{.model = "net"}});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_FALSE(repository_->get(*name)->has_weights);
  EXPECT_EQ(staged_->own_bytes + staged_->inherited_bytes, 0u);
  // Nor is anything inherited from it.
  const std::vector<TensorView> part = {tensor("b.kernel", {4, 3}, 3)};
  EXPECT_FALSE(store({.model = "net", .architecture = graph(kTwoLayers), .tensors = part, .ancestor = *name}));
}

}  // namespace
}  // namespace freshet
