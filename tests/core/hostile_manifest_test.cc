// SPDX-License-Identifier: Apache-2.0
#include <flatbuffers/flatbuffers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "core/base/format.h"
#include "core/model/manifest.h"
#include "core/model/manifest_generated.h"
#include "core/model/sealed_buffer.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;

/// What an attacker sends: a buffer of any content whose own digest is right.
template <typename Table>
std::vector<std::byte> sealed(Builder& builder, flatbuffers::Offset<Table> root, const char* identifier) {
  builder.Finish(root, identifier);
  return seal(builder);
}

struct HostileLayer {
  std::string name = "f";
  std::string class_name = "F";
  std::string config = "{}";
  std::vector<fbs::LayerInput> inputs;
  std::vector<std::pair<std::string, std::uint32_t>> tensors;
  flatbuffers::Optional<std::uint32_t> tensors_of = flatbuffers::nullopt;
};

struct HostileTensor {
  std::string name = "f.w";
  std::uint8_t dtype = 0;
  std::uint8_t role = 0;
  std::vector<std::uint64_t> shape;
};

struct HostileGraph {
  std::vector<HostileTensor> tensors;
  std::vector<HostileLayer> layers;
  std::vector<fbs::LayerInput> outputs;
  std::string extra;
  std::uint16_t format_version = kFormatVersion;
  const char* identifier = "FRAR";

  std::vector<std::byte> encode() const {
    Builder builder;
    std::vector<flatbuffers::Offset<fbs::Tensor>> tensor_offsets;
    for (const HostileTensor& tensor : tensors) {
      tensor_offsets.push_back(
          fbs::CreateTensorDirect(builder, tensor.name.c_str(), tensor.dtype, tensor.role, &tensor.shape));
    }
    std::vector<flatbuffers::Offset<fbs::Layer>> layer_offsets;
    for (const HostileLayer& layer : layers) {
      std::vector<flatbuffers::Offset<fbs::LayerTensor>> owned;
      for (const auto& [name, index] : layer.tensors) {
        owned.push_back(fbs::CreateLayerTensorDirect(builder, name.c_str(), index));
      }
      layer_offsets.push_back(fbs::CreateLayerDirect(builder, layer.name.c_str(), layer.class_name.c_str(),
                                                     layer.config.c_str(), nullptr, &layer.inputs, &owned,
                                                     layer.tensors_of));
    }
    const auto root = fbs::CreateArchitectureDirect(builder, format_version, "g", &tensor_offsets, &layer_offsets,
                                                    &outputs, nullptr, extra.c_str());
    return sealed(builder, root, identifier);
  }
};

template <typename Decoded>
void expect_corrupt(const Result<Decoded>& decoded, std::string_view part) {
  ASSERT_TRUE(is_refused(decoded, Code::corrupt, part)) << part;
  EXPECT_EQ(decoded.error().message().find('\n'), std::string::npos);
}

HostileGraph one_layer() {
  HostileGraph graph;
  graph.tensors.push_back({.shape = {2}});
  graph.layers.push_back({.tensors = {{"w", 0}}});
  return graph;
}

void expect_graph_error(std::string_view part, const std::function<void(HostileGraph&)>& spoil) {
  HostileGraph graph = one_layer();
  ASSERT_TRUE(decode_architecture(graph.encode()));
  spoil(graph);
  expect_corrupt(decode_architecture(graph.encode()), part);
}

TEST(HostileArchitecture, IsOneErrorThatNamesTheThing) {
  expect_graph_error("written by an older Freshet (format 1)", [](HostileGraph& g) { g.format_version = 1; });
  expect_graph_error("written by a newer Freshet (format 4)", [](HostileGraph& g) { g.format_version = 4; });
  expect_graph_error("well-formed", [](HostileGraph& g) { g.identifier = "FRMF"; });
  expect_graph_error("layer f: an input does not come from an earlier layer", [](HostileGraph& g) {
    g.layers[0].inputs = {{0, 0}};
  });
  expect_graph_error("layer a: an input does not come", [](HostileGraph& g) {
    g.layers.push_back({.name = "a", .inputs = {{2, 0}}});
    g.layers.push_back({.name = "b", .inputs = {{1, 0}}});
  });
  expect_graph_error("tensors_of", [](HostileGraph& g) { g.layers[0].tensors_of = 0u; });
  expect_graph_error("canonical form", [](HostileGraph& g) { g.layers[0].config = "{ }"; });
  expect_graph_error("canonical form", [](HostileGraph& g) {
    g.layers.push_back({.name = "a", .tensors_of = 0u});
    g.layers.push_back({.name = "b", .tensors_of = 1u});
  });
  expect_graph_error("config", [](HostileGraph& g) { g.layers[0].config = "{"; });
  expect_graph_error("config", [](HostileGraph& g) { g.layers[0].config = std::string(1 << 20, '['); });
  expect_graph_error("taken", [](HostileGraph& g) { g.layers.push_back({}); });
  expect_graph_error("class", [](HostileGraph& g) { g.layers[0].class_name.clear(); });
  expect_graph_error("layer name", [](HostileGraph& g) { g.layers[0].name = std::string(5000, 'x'); });
  expect_graph_error("control", [](HostileGraph& g) { g.layers[0].name = "a\nb"; });
  expect_graph_error("UTF-8", [](HostileGraph& g) { g.layers[0].name = "\xff"; });
  expect_graph_error("output", [](HostileGraph& g) { g.outputs = {{1, 0}}; });
  expect_graph_error("extra", [](HostileGraph& g) { g.extra = "[]"; });
  expect_graph_error("extra keys hold layers", [](HostileGraph& g) { g.extra = R"({"layers":[]})"; });
  HostileGraph later = one_layer();
  later.tensors[0].dtype = kDTypeCount;
  EXPECT_TRUE(is_refused(decode_architecture(later.encode()), Code::unsupported));
  expect_graph_error("unknown role 4", [](HostileGraph& g) { g.tensors[0].role = 4; });
  expect_graph_error("overflows", [](HostileGraph& g) { g.tensors[0].shape = {~std::uint64_t{0}, 2}; });
  expect_graph_error("rank", [](HostileGraph& g) { g.tensors[0].shape.assign(65, 1); });
  expect_graph_error("belongs to no layer", [](HostileGraph& g) { g.layers[0].tensors.clear(); });
  expect_graph_error("tensor w does not exist", [](HostileGraph& g) { g.layers[0].tensors[0].second = 1; });
  expect_graph_error("two of its tensors", [](HostileGraph& g) { g.layers[0].tensors.emplace_back("w", 0); });
  expect_graph_error("belongs to layer f", [](HostileGraph& g) { g.layers[0].tensors.emplace_back("v", 0); });
  expect_graph_error("two tensors are named f.w", [](HostileGraph& g) {
    g.tensors.push_back(g.tensors[0]);
    g.layers[0].tensors.emplace_back("v", 1);
  });
}

TEST(HostileArchitecture, AMillionTensorsAreOneError) {
  Builder builder;
  const auto name = builder.CreateString("w");
  const auto tensor = fbs::CreateTensor(builder, name);
  const std::vector<flatbuffers::Offset<fbs::Tensor>> tensors(1'000'000, tensor);
  const auto root = fbs::CreateArchitecture(builder, kFormatVersion, 0, builder.CreateVector(tensors));
  expect_corrupt(decode_architecture(sealed(builder, root, "FRAR")), "1000000 tensors, over the limit");
}

/// A megabyte that a quarter of a million layers point to would be 256 GB of copies.
TEST(HostileArchitecture, SharedStringsAreNotCopiedWithoutEnd) {
  Builder builder;
  const auto name = builder.CreateString(std::string(1 << 20, 'x'));
  const auto layer = fbs::CreateLayer(builder, name, name, name, name);
  const std::vector<flatbuffers::Offset<fbs::Layer>> layers(kLayersMax, layer);
  const auto root = fbs::CreateArchitecture(builder, kFormatVersion, 0, 0, builder.CreateVector(layers));
  expect_corrupt(decode_architecture(sealed(builder, root, "FRAR")), "share bytes");
}

TEST(HostileArchitecture, LengthsNearTheEndOfTheNumbersAreRefused) {
  const std::vector<std::byte> good = one_layer().encode();
  std::size_t accepted = 0;
  for (std::size_t at = 0; at + 4 <= good.size() - kSealBytes; at += 4) {
    for (const std::uint32_t value : {0xffffffffu, 0x7fffffffu, 0x80000000u, 0x40000000u, 0u}) {
      std::vector<std::byte> content(good.begin(), good.end() - kSealBytes);
      std::memcpy(content.data() + at, &value, sizeof value);
      const auto decoded = decode_architecture(seal(content));
      if (decoded) {
        ++accepted;
      } else {
        // Only the number of a dtype may be one of a later format.
        const bool is_dtype = decoded.error().message().find(" has dtype ") != std::string::npos;
        ASSERT_EQ(decoded.error().code(), is_dtype ? Code::unsupported : Code::corrupt) << at;
      }
    }
  }
  EXPECT_LT(accepted, good.size() / 4);  // Padding, ports, extents: some words may well be anything.
}

/// The fields of a manifest of one tensor, to be spoiled one by one.
struct HostileManifest {
  std::string model = "demo";
  std::uint64_t number = 1;
  std::uint16_t format_version = kFormatVersion;
  std::vector<fbs::VersionId> writers = {{1, 2, 3, 4}};
  std::vector<fbs::Owner> owners = {{0, 0}};
  std::vector<fbs::Digest> digests = {{5, 6}};
  std::vector<std::string> metric_names = {"loss"};
  std::vector<std::pair<std::string, std::string>> tags;
  std::string ancestor_model;
  bool metric_without_value = false;

  std::vector<std::byte> encode(const Architecture& architecture) const {
    Builder builder;
    std::vector<flatbuffers::Offset<fbs::Metric>> metrics;
    for (const std::string& name : metric_names) {
      flatbuffers::Optional<double> value = 1.0;
      if (metric_without_value) value = flatbuffers::nullopt;
      metrics.push_back(fbs::CreateMetricDirect(builder, name.c_str(), value));
    }
    std::vector<flatbuffers::Offset<fbs::Tag>> tag_offsets;
    for (const auto& [key, value] : tags) {
      tag_offsets.push_back(fbs::CreateTagDirect(builder, key.c_str(), value.c_str()));
    }
    const fbs::VersionId id(1, 2, 3, 4);
    const fbs::Digest digest(architecture.digest().low, architecture.digest().high);
    const auto root =
        fbs::CreateManifestDirect(builder, format_version, model.c_str(), number, &id, nullptr, ancestor_model.c_str(),
                                  0, 0, 0, &metrics, &tag_offsets, &digest, &writers, &owners, &digests);
    return sealed(builder, root, "FRMF");
  }
};

TEST(HostileManifest, IsOneErrorThatNamesTheThing) {
  const auto architecture = *decode_architecture(one_layer().encode());
  ASSERT_TRUE(decode_manifest(HostileManifest().encode(*architecture), architecture));
  const auto expect = [&architecture](std::string_view part, const std::function<void(HostileManifest&)>& spoil) {
    HostileManifest manifest;
    spoil(manifest);
    expect_corrupt(decode_manifest(manifest.encode(*architecture), architecture), part);
  };
  expect("written by an older Freshet (format 0)", [](HostileManifest& m) { m.format_version = 0; });
  expect("model name", [](HostileManifest& m) { m.model = "../../etc"; });
  expect("model name", [](HostileManifest& m) { m.model.clear(); });
  expect("count from 1", [](HostileManifest& m) { m.number = 0; });
  expect("0 owners for 1 tensors", [](HostileManifest& m) { m.owners.clear(); });
  expect("2 owners for 1 tensors", [](HostileManifest& m) { m.owners = {{0, 0}, {0, 0}}; });
  expect("writer 1 of 1", [](HostileManifest& m) { m.owners = {{1, 0}}; });
  expect("writer 4294967295 of 1", [](HostileManifest& m) { m.owners = {{~0u, 0}}; });
  expect("writer 0 of 0", [](HostileManifest& m) { m.writers.clear(); });
  expect("2 writers", [](HostileManifest& m) { m.writers = {{1, 2, 3, 4}, {1, 2, 3, 5}}; });
  expect("this version's own tensor 1", [](HostileManifest& m) { m.owners = {{0, 1}}; });
  expect("out of range", [](HostileManifest& m) {
    m.writers = {{1, 2, 3, 3}};
    m.owners = {{0, ~0u}};
  });
  expect("2 digests for 1 tensors", [](HostileManifest& m) { m.digests = {{5, 6}, {7, 8}}; });
  expect("two metrics are named loss", [](HostileManifest& m) { m.metric_names = {"loss", "loss"}; });
  expect("no value", [](HostileManifest& m) { m.metric_without_value = true; });
  expect("name of a metric is empty", [](HostileManifest& m) { m.metric_names = {""}; });
  expect("1025 metrics", [](HostileManifest& m) {
    for (int i = 0; i < 1024; ++i) m.metric_names.push_back(format("m{}", i));
  });
  expect("two tags are named a", [](HostileManifest& m) { m.tags = {{"a", "1"}, {"a", "2"}}; });
  expect("ancestor", [](HostileManifest& m) { m.ancestor_model = "demo"; });
}

TEST(HostileManifest, AWriterThatStandsTwiceIsNoticed) {
  HostileGraph graph = one_layer();
  graph.tensors.push_back({.name = "f.v"});
  graph.layers[0].tensors.emplace_back("v", 1);
  const auto architecture = *decode_architecture(graph.encode());
  HostileManifest manifest;
  manifest.writers = {{1, 2, 3, 4}, {1, 2, 3, 4}};
  manifest.owners = {{0, 0}, {1, 1}};
  manifest.digests = {{5, 6}, {7, 8}};
  expect_corrupt(decode_manifest(manifest.encode(*architecture), architecture), "stands twice");
}

}  // namespace
}  // namespace freshet
