// SPDX-License-Identifier: Apache-2.0
#include "core/model/graph_parts.h"

#include <unordered_set>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/canonical_json.h"
#include "core/json/json_document.h"

namespace freshet {
namespace {

/// One pass over the parts, in order; each layer is checked against those before it.
class PartsChecker {
 public:
  explicit PartsChecker(Architecture::Parts& parts) : parts_(parts), owner_of_(parts.tensors.size(), kNobody) {}

  Status run() {
    FRESHET_TRY(check_counts());
    FRESHET_TRY(check_texts());
    FRESHET_TRY(check_tensors());
    for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
      if (Status status = check_layer(static_cast<std::uint32_t>(i)); !status) {
        return fail(std::move(status).error().with_context(format("layer {}", shown(parts_.layers[i].name))));
      }
    }
    for (std::size_t i = 0; i < owner_of_.size(); ++i) {
      if (owner_of_[i] == kNobody)
        return refuse(format("tensor {} belongs to no layer", shown(parts_.tensors[i].name)));
    }
    return check_outputs();
  }

 private:
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};

  Status check_counts() const {
    if (parts_.tensors.size() > kTensorsMax) {
      return refuse(format("{} tensors, over the limit of {}", parts_.tensors.size(), kTensorsMax));
    }
    if (parts_.layers.size() > kLayersMax) {
      return refuse(format("{} layers, over the limit of {}", parts_.layers.size(), kLayersMax));
    }
    return {};
  }

  Status spend(std::size_t bytes) {
    payload_bytes_ += bytes;
    if (payload_bytes_ <= kArchitecturePayloadBytesMax) return {};
    return refuse(format("names, configs and shapes are over the limit of {} bytes", kArchitecturePayloadBytesMax));
  }

  Status check_texts() {
    FRESHET_TRY(check_text("the graph's name", parts_.name, kLayerNameBytesMax));
    FRESHET_TRY(check_text("the framework's config", parts_.framework_config, kArchitecturePayloadBytesMax));
    FRESHET_TRY(spend(parts_.framework_config.size() + parts_.extra.size()));
    if (parts_.extra.empty()) return {};
    FRESHET_ASSIGN(const JsonDocument extra, parse_json(parts_.extra));
    if (!extra.is_object()) return refuse("the extra keys of a graph are not a JSON object");
    for (const std::string_view key : kGraphFileKeys) {
      if (extra.contains(key)) return refuse(format("the extra keys hold {}, which is the format's own", key));
    }
    parts_.extra = extra.empty() ? "" : extra.dump();
    return {};
  }

  Status check_tensors() {
    std::unordered_set<std::string_view> names;
    std::uint64_t bytes = 0;
    for (const TensorSpec& spec : parts_.tensors) {
      FRESHET_TRY(spec.check());
      FRESHET_TRY(spend(spec.name.size() + 24 * spec.shape.size()));
      if (static_cast<std::uint8_t>(spec.dtype) >= kDTypeCount || spec.role > Role::opaque) {
        return refuse(format("tensor {}: unknown dtype or role", shown(spec.name)));
      }
      if (!names.insert(spec.name).second) return refuse(format("two tensors are named {}", shown(spec.name)));
      if (__builtin_add_overflow(bytes, spec.bytes(), &bytes) || (bytes >> 63) != 0) {
        return refuse(format("tensor {}: the model's size overflows", shown(spec.name)));
      }
    }
    return {};
  }

  Status check_layer(std::uint32_t index) {
    Layer& layer = parts_.layers[index];
    FRESHET_TRY(check_label("layer name", layer.name, kLayerNameBytesMax));
    FRESHET_TRY(check_label("class", layer.class_name, kClassNameBytesMax));
    FRESHET_TRY(check_text("the framework's config", layer.framework_config, kArchitecturePayloadBytesMax));
    if (!layer_names_.insert(layer.name).second) return refuse("the name is taken by an earlier layer");
    FRESHET_TRY(spend(layer.name.size() + layer.class_name.size() + layer.config.size() +
                      layer.framework_config.size() + sizeof(LayerInput) * layer.inputs.size()));
    FRESHET_TRY(normalize_config(layer));
    FRESHET_TRY(check_inputs(layer, index));
    FRESHET_TRY(resolve_tensors_of(layer, index));
    return check_layer_tensors(layer, index);
  }

  Status normalize_config(Layer& layer) const {
    if (layer.config.empty()) layer.config = "{}";
    if (layer.config == "{}") return {};
    Result<std::string> canonical = canonical_json(layer.config);
    if (!canonical) return fail(std::move(canonical).error().with_context("config"));
    if (canonical->front() != '{') return refuse("config is not a JSON object");
    layer.config = std::move(*canonical);
    return {};
  }

  Status check_inputs(const Layer& layer, std::uint32_t index) const {
    if (layer.inputs.size() > kLayerInputsMax) {
      return refuse(format("{} inputs, over the limit of {}", layer.inputs.size(), kLayerInputsMax));
    }
    for (const LayerInput& input : layer.inputs) {
      if (input.layer >= index) return refuse("an input does not come from an earlier layer: a cycle, or not in order");
    }
    return {};
  }

  Status resolve_tensors_of(Layer& layer, std::uint32_t index) const {
    if (!layer.tensors_of) return {};
    if (*layer.tensors_of >= index) return refuse("tensors_of does not name an earlier layer");
    if (!layer.tensors.empty()) return refuse("has both tensors and tensors_of");
    const Layer& called = parts_.layers[*layer.tensors_of];
    if (called.tensors_of) layer.tensors_of = called.tensors_of;
    return {};
  }

  Status check_layer_tensors(const Layer& layer, std::uint32_t index) {
    std::unordered_set<std::string_view> names;
    for (const LayerTensor& tensor : layer.tensors) {
      FRESHET_TRY(check_label("tensor name", tensor.name, kTensorNameBytesMax));
      FRESHET_TRY(spend(tensor.name.size()));
      if (!names.insert(tensor.name).second)
        return refuse(format("two of its tensors are named {}", shown(tensor.name)));
      if (tensor.tensor >= owner_of_.size()) return refuse(format("tensor {} does not exist", shown(tensor.name)));
      std::uint32_t& owner = owner_of_[tensor.tensor];
      if (owner != kNobody) {
        return refuse(format("tensor {} belongs to layer {} already", shown(parts_.tensors[tensor.tensor].name),
                             shown(parts_.layers[owner].name)));
      }
      owner = index;
    }
    return {};
  }

  Status check_outputs() const {
    if (parts_.outputs.size() > kLayerInputsMax) {
      return refuse(format("{} outputs, over the limit of {}", parts_.outputs.size(), kLayerInputsMax));
    }
    for (const LayerInput& output : parts_.outputs) {
      if (output.layer >= parts_.layers.size()) return refuse("an output names a layer that does not exist");
    }
    return {};
  }

  Architecture::Parts& parts_;
  std::vector<std::uint32_t> owner_of_;  ///< By tensor.
  std::unordered_set<std::string_view> layer_names_;
  std::size_t payload_bytes_ = 0;
};

}  // namespace

Status check_and_normalize(Architecture::Parts& parts) { return PartsChecker(parts).run(); }

}  // namespace freshet
