// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/canonical_json.h"
#include "core/json/json_document.h"
#include "core/model/graph_parts.h"

namespace freshet {
namespace {

Result<std::string> read_string(std::string_view what, const JsonDocument& value) {
  if (!value.is_string()) return refuse(format("{} is not a string", what));
  return value.get<std::string>();
}

Result<bool> read_bool(std::string_view what, const JsonDocument& value) {
  if (!value.is_boolean()) return refuse(format("{} is neither true nor false", what));
  return value.get<bool>();
}

Result<std::uint64_t> read_count(std::string_view what, const JsonDocument& value, std::uint64_t max) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max) {
    return refuse(format("{} is not an integer from 0 to {}", what, max));
  }
  return value.get<std::uint64_t>();
}

Result<Shape> read_shape(std::string_view what, const JsonDocument& value) {
  if (!value.is_array()) return refuse(format("{} is not a list of extents", what));
  if (value.size() > kRankMax) return refuse(format("{} has more than {} extents", what, kRankMax));
  Shape shape;
  for (const JsonDocument& extent : value) {
    FRESHET_ASSIGN(const std::uint64_t count,
                   read_count(format("an extent of {}", what), extent, std::numeric_limits<std::uint64_t>::max()));
    shape.push_back(count);
  }
  return shape;
}

Result<Role> read_role(const JsonDocument& value) {
  FRESHET_ASSIGN(const std::string name, read_string("role", value));
  for (const Role role : {Role::weight, Role::buffer, Role::optimizer, Role::opaque}) {
    if (name_of(role) == name) return role;
  }
  return refuse(format("unknown role {}", shown(name)));
}

Result<Slice> read_slice(const JsonDocument& value) {
  if (!value.is_object()) return refuse("slice is not an object");
  Slice slice;
  for (const auto& [key, member] : value.get_ref<const JsonDocument::object_t&>()) {
    if (key == "global_shape") {
      FRESHET_ASSIGN(slice.global_shape, read_shape(key, member));
    } else if (key == "offset") {
      FRESHET_ASSIGN(slice.offset, read_shape(key, member));
    } else if (key == "parts") {
      FRESHET_ASSIGN(const std::uint64_t parts, read_count(key, member, std::numeric_limits<std::uint32_t>::max()));
      slice.parts = static_cast<std::uint32_t>(parts);
    } else {
      return refuse(format("unknown key {} in slice", shown(key)));
    }
  }
  return slice;
}

/// Reads one layer at a time; every name that a layer uses must have been defined by an earlier one.
class GraphReader {
 public:
  Result<Architecture::Parts> read(const JsonDocument& file) {
    if (!file.is_object()) return refuse("a graph file is a JSON object");
    FRESHET_TRY(check_format(file));
    const JsonDocument* outputs = nullptr;
    const JsonDocument* tensor_order = nullptr;
    JsonDocument extra = JsonDocument::object();
    auto& extra_members = static_cast<JsonDocument::object_t::Container&>(extra.get_ref<JsonDocument::object_t&>());
    for (const auto& [key, value] : file.get_ref<const JsonDocument::object_t&>()) {
      if (key == "freshet_graph") continue;
      if (key == "name") {
        FRESHET_ASSIGN(parts_.name, read_string(key, value));
      } else if (key == "layers") {
        FRESHET_TRY(read_layers(value));
      } else if (key == "outputs") {
        outputs = &value;
      } else if (key == "tensor_order") {
        tensor_order = &value;
      } else if (key == "framework_config") {
        FRESHET_ASSIGN(parts_.framework_config, read_string(key, value));
      } else if (key == "guessed") {
        FRESHET_ASSIGN(parts_.guessed, read_bool(key, value));
      } else {
        extra_members.emplace_back(key, value);
      }
    }
    if (outputs != nullptr) FRESHET_TRY(read_calls("outputs", *outputs, parts_.outputs));
    if (tensor_order != nullptr) FRESHET_TRY(reorder_tensors(*tensor_order));
    if (parts_.layers.empty()) return refuse("layers is missing or empty: a graph has one layer at least");
    if (!extra.empty()) parts_.extra = extra.dump();
    return std::move(parts_);
  }

 private:
  static Status check_format(const JsonDocument& file) {
    const auto found = file.find("freshet_graph");
    if (found == file.end()) return refuse("no key freshet_graph: not a graph file");
    if (*found != 1) return refuse("freshet_graph is not 1: another version of the format");
    return {};
  }

  Status read_layers(const JsonDocument& layers) {
    if (!layers.is_array()) return refuse("layers is not a list");
    if (layers.size() > kLayersMax) return refuse(format("{} layers, over the limit of {}", layers.size(), kLayersMax));
    parts_.layers.reserve(layers.size());
    for (const JsonDocument& entry : layers) {
      const std::string what = place_of(entry);
      if (Status status = read_layer(entry); !status) return fail(std::move(status).error().with_context(what));
    }
    return {};
  }

  std::string place_of(const JsonDocument& entry) const {
    if (entry.is_object()) {
      const auto name = entry.find("name");
      if (name != entry.end() && name->is_string())
        return format("layer {}", shown(name->get_ref<const std::string&>()));
    }
    return format("layer number {}", parts_.layers.size() + 1);
  }

  Status read_layer(const JsonDocument& entry) {
    if (!entry.is_object()) return refuse("is not an object");
    const auto name = entry.find("name");
    if (name == entry.end()) return refuse("has no name");
    Layer layer;
    FRESHET_ASSIGN(layer.name, read_string("name", *name));
    if (entry.find("class") == entry.end()) return refuse("has no class");
    for (const auto& [key, value] : entry.get_ref<const JsonDocument::object_t&>()) {
      FRESHET_TRY(read_layer_key(key, value, layer));
    }
    const auto index = static_cast<std::uint32_t>(parts_.layers.size());
    if (!layer_named_.emplace(layer.name, index).second) return refuse("the name is taken by an earlier layer");
    parts_.layers.push_back(std::move(layer));
    return {};
  }

  Status read_layer_key(const std::string& key, const JsonDocument& value, Layer& layer) {
    if (key == "name") return {};
    if (key == "config") {
      if (!value.is_object()) return refuse("config is not an object");
      layer.config = canonical_text(value);
      return {};
    }
    if (key == "class") {
      FRESHET_ASSIGN(layer.class_name, read_string(key, value));
      return {};
    }
    if (key == "framework_config") {
      FRESHET_ASSIGN(layer.framework_config, read_string(key, value));
      return {};
    }
    if (key == "commutative") {
      FRESHET_ASSIGN(layer.commutative, read_bool(key, value));
      return {};
    }
    if (key == "tensors_of") {
      FRESHET_ASSIGN(const std::string called, read_string(key, value));
      FRESHET_ASSIGN(layer.tensors_of, layer_named(key, called));
      return {};
    }
    if (key == "inputs") return read_calls(key, value, layer.inputs);
    if (key == "tensors") return read_tensors(value, layer);
    return refuse(format("unknown key {}", shown(key)));
  }

  Result<std::uint32_t> layer_named(std::string_view what, const std::string& name) const {
    const auto found = layer_named_.find(name);
    if (found != layer_named_.end()) return found->second;
    return refuse(format("{} names {}, which is no earlier layer: unknown, a cycle, or not in topological order", what,
                         shown(name)));
  }

  /// A list of layers' outputs: a name, or [name, port].
  Status read_calls(std::string_view what, const JsonDocument& value, std::vector<LayerInput>& calls) const {
    if (!value.is_array()) return refuse(format("{} is not a list", what));
    if (value.size() > kLayerInputsMax) {
      return refuse(format("{} {}, over the limit of {}", value.size(), what, kLayerInputsMax));
    }
    calls.reserve(value.size());
    for (const JsonDocument& entry : value) {
      const bool has_port = entry.is_array() && entry.size() == 2;
      const JsonDocument& name = has_port ? entry[0] : entry;
      if (!name.is_string()) return refuse(format("an entry of {} is neither a name nor [name, port]", what));
      LayerInput call;
      FRESHET_ASSIGN(call.layer, layer_named(what, name.get_ref<const std::string&>()));
      if (has_port) {
        FRESHET_ASSIGN(const std::uint64_t port,
                       read_count("a port", entry[1], std::numeric_limits<std::uint32_t>::max()));
        call.port = static_cast<std::uint32_t>(port);
      }
      calls.push_back(call);
    }
    return {};
  }

  Status read_tensors(const JsonDocument& value, Layer& layer) {
    if (!value.is_object()) return refuse("tensors is not an object");
    for (const auto& [name, entry] : value.get_ref<const JsonDocument::object_t&>()) {
      if (parts_.tensors.size() == kTensorsMax) return refuse(format("more than {} tensors", kTensorsMax));
      layer.tensors.push_back({.name = name, .tensor = static_cast<std::uint32_t>(parts_.tensors.size())});
      Result<TensorSpec> spec = read_tensor(entry, format("{}.{}", layer.name, name));
      if (!spec) return fail(std::move(spec).error().with_context(format("tensor {}", shown(name))));
      parts_.tensors.push_back(std::move(*spec));
    }
    return {};
  }

  static Result<TensorSpec> read_tensor(const JsonDocument& entry, std::string default_key) {
    if (!entry.is_object()) return refuse("is not an object");
    if (entry.find("dtype") == entry.end() || entry.find("shape") == entry.end())
      return refuse("has no dtype or no shape");
    TensorSpec spec{.name = std::move(default_key)};
    for (const auto& [key, value] : entry.get_ref<const JsonDocument::object_t&>()) {
      if (key == "dtype") {
        FRESHET_ASSIGN(const std::string name, read_string(key, value));
        const std::optional<DType> dtype = dtype_named(name);
        if (!dtype) return refuse(format("unknown dtype {}", shown(name)));
        spec.dtype = *dtype;
      } else if (key == "shape") {
        FRESHET_ASSIGN(spec.shape, read_shape(key, value));
      } else if (key == "key") {
        FRESHET_ASSIGN(spec.name, read_string(key, value));
      } else if (key == "role") {
        FRESHET_ASSIGN(spec.role, read_role(value));
      } else if (key == "slice") {
        FRESHET_ASSIGN(spec.slice, read_slice(value));
      } else {
        return refuse(format("unknown key {}", shown(key)));
      }
    }
    return spec;
  }

  /// The list of all tensors' keys, where their order is not that of the layers.
  Status reorder_tensors(const JsonDocument& order) {
    if (!order.is_array() || order.size() != parts_.tensors.size()) {
      return refuse("tensor_order does not list every tensor once");
    }
    std::unordered_map<std::string_view, std::uint32_t> position;
    for (const JsonDocument& key : order) {
      if (!key.is_string()) return refuse("tensor_order holds something that is not a string");
      position.emplace(key.get_ref<const std::string&>(), static_cast<std::uint32_t>(position.size()));
    }
    std::vector<TensorSpec> reordered(parts_.tensors.size());
    std::vector<std::uint32_t> new_index(parts_.tensors.size());
    std::vector<bool> taken(parts_.tensors.size());
    for (std::size_t i = 0; i < parts_.tensors.size(); ++i) {
      const auto found = position.find(parts_.tensors[i].name);
      if (found == position.end() || taken[found->second])
        return refuse("tensor_order does not list every tensor once");
      taken[found->second] = true;
      new_index[i] = found->second;
      reordered[found->second] = std::move(parts_.tensors[i]);
    }
    parts_.tensors = std::move(reordered);
    for (Layer& layer : parts_.layers) {
      for (LayerTensor& tensor : layer.tensors) tensor.tensor = new_index[tensor.tensor];
    }
    return {};
  }

  Architecture::Parts parts_;
  std::unordered_map<std::string, std::uint32_t> layer_named_;
};

}  // namespace

Result<std::shared_ptr<const Architecture>> parse_graph_json(std::string_view json) {
  if (json.size() > kGraphFileBytesMax) {
    return refuse(format("a graph of {} bytes is over the limit of {}", json.size(), kGraphFileBytesMax));
  }
  Result<JsonDocument> document = parse_json(json);
  if (!document) return fail(std::move(document).error().with_context("graph file"));
  Result<Architecture::Parts> parts = GraphReader().read(*document);
  if (!parts) return fail(std::move(parts).error().with_context("graph file"));
  return Architecture::build(std::move(*parts));
}

}  // namespace freshet
