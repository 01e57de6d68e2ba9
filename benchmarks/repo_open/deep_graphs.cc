// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/repo_open/deep_graphs.h"

#include <random>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint32_t kUnitsMax = 1024;

VersionId id_of(std::uint64_t number) { return {.run = {.high = 7, .low = 8}, .incarnation = 1, .sequence = number}; }

/// About as many words as Keras has for a dense layer.
std::string framework_words(std::uint32_t layer, std::uint32_t units) {
  return format(
      R"({{"module":"keras.layers","class_name":"Dense","config":{{"name":"dense_{}","trainable":true,"dtype":)"
      R"("float32","units":{},"activation":"relu","use_bias":false,"kernel_initializer":"GlorotUniform"}}}})",
      layer, units);
}

}  // namespace

std::string deep_name(std::uint64_t number) { return format("deep{}", number); }

std::vector<DeepModel> deep_models(std::uint64_t count, std::uint32_t layers) {
  std::mt19937_64 random(17);
  const auto draw = [&](std::uint64_t below) { return random() % below; };
  std::vector<DeepModel> models(count + 1);
  for (std::uint64_t number = 1; number <= count; ++number) {
    DeepModel& model = models[number];
    if (number == 1) {
      for (std::uint32_t i = 0; i < layers; ++i) model.units.push_back(static_cast<std::uint32_t>(1 + draw(kUnitsMax)));
      continue;
    }
    // Among the latest thousand, as a population is renewed.
    model.parent = number - 1 - draw(std::min<std::uint64_t>(number - 1, 1000));
    model.units = models[model.parent].units;
    model.inherited = static_cast<std::uint32_t>(draw(layers));
    model.units[model.inherited] = static_cast<std::uint32_t>(1 + draw(kUnitsMax));
  }
  return models;
}

Result<std::shared_ptr<const Architecture>> deep_architecture(const DeepModel& model) {
  Architecture::Parts parts;
  parts.name = "deep";
  Layer input;
  input.name = "in";
  input.class_name = "Input";
  input.config = R"({"shape":[1]})";
  parts.layers.push_back(std::move(input));
  for (std::uint32_t i = 0; i < model.units.size(); ++i) {
    Layer layer;
    layer.name = format("dense_{}", i);
    layer.class_name = "Dense";
    layer.config = format(R"({{"activation":"relu","units":{},"use_bias":false}})", model.units[i]);
    layer.framework_config = framework_words(i, model.units[i]);
    layer.inputs = {{.layer = i}};
    layer.tensors = {{.name = "kernel", .tensor = i}};
    parts.tensors.push_back({.name = layer.name + "/kernel", .dtype = DType::u8, .shape = {8}});
    parts.layers.push_back(std::move(layer));
  }
  parts.outputs = {{.layer = static_cast<std::uint32_t>(model.units.size())}};
  return Architecture::build(std::move(parts));
}

Status put_deep_models(Repository& repository, const std::vector<DeepModel>& models, bool with_weights) {
  std::vector<OwnerMap> owners(models.size());
  const std::vector<std::byte> zeros(8);
  const Digest digest = digest_of(zeros);
  for (std::uint64_t number = 1; number < models.size(); ++number) {
    const DeepModel& model = models[number];
    Manifest manifest;
    manifest.name.model = deep_name(number);
    manifest.id = id_of(number);
    FRESHET_ASSIGN(manifest.architecture, deep_architecture(model));
    if (model.parent != 0) manifest.ancestor = id_of(model.parent);
    std::vector<SegmentName> segments;
    for (std::uint32_t i = 0; i < model.units.size(); ++i) {
      const bool inherits = model.parent != 0 && i < model.inherited;
      segments.push_back(inherits ? owners[model.parent][i] : SegmentName{.writer = manifest.id, .tensor = i});
    }
    manifest.owners = owners[number] = OwnerMap(std::move(segments));
    if (!with_weights) manifest.owners = OwnerMap::all_written_by(manifest.id, model.units.size());
    manifest.digests.assign(model.units.size(), with_weights ? digest : Digest{});
    const auto bytes_of = [&](std::uint32_t) -> Result<Bytes> { return Bytes(zeros); };
    FRESHET_TRY(repository.put(manifest, bytes_of, {.quality = 0.5, .has_weights = with_weights}));
  }
  return {};
}

}  // namespace freshet::benchmarks
