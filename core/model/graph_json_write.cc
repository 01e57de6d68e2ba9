// SPDX-License-Identifier: Apache-2.0
#include "core/base/format.h"
#include "core/json/canonical_json.h"
#include "core/model/graph.h"

namespace freshet {
namespace {

/// Writes a graph file, leaving out what an absent key says as well.
class GraphWriter {
 public:
  explicit GraphWriter(const Architecture::Parts& parts) : parts_(parts) {}

  std::string write() {
    out_ = "{\"freshet_graph\":1,\"name\":";
    append_json_string(out_, parts_.name);
    out_ += ",\"layers\":[";
    for (const Layer& layer : parts_.layers) {
      if (out_.back() != '[') out_ += ',';
      append(layer);
    }
    out_ += "],\"outputs\":";
    append(parts_.outputs);
    append_text_member("framework_config", parts_.framework_config);
    if (parts_.guessed) out_ += ",\"guessed\":true";
    if (!is_in_layer_order()) append_tensor_order();
    if (!parts_.extra.empty()) out_ += ',' + parts_.extra.substr(1, parts_.extra.size() - 2);
    out_ += '}';
    return std::move(out_);
  }

 private:
  void append_text_member(std::string_view key, const std::string& text) {
    if (text.empty()) return;
    out_ += format(",\"{}\":", key);
    append_json_string(out_, text);
  }

  void append(const std::vector<LayerInput>& calls) {
    out_ += '[';
    for (const LayerInput& call : calls) {
      if (out_.back() != '[') out_ += ',';
      const std::string& name = parts_.layers[call.layer].name;
      if (call.port == 0) {
        append_json_string(out_, name);
      } else {
        out_ += '[';
        append_json_string(out_, name);
        out_ += format(",{}]", call.port);
      }
    }
    out_ += ']';
  }

  void append(const Layer& layer) {
    out_ += "{\"name\":";
    append_json_string(out_, layer.name);
    append_text_member("class", layer.class_name);
    if (layer.config != "{}") out_ += ",\"config\":" + layer.config;
    append_text_member("framework_config", layer.framework_config);
    out_ += ",\"inputs\":";
    append(layer.inputs);
    if (!layer.tensors.empty()) append_tensors(layer);
    if (layer.tensors_of) append_text_member("tensors_of", parts_.layers[*layer.tensors_of].name);
    if (layer.commutative) out_ += ",\"commutative\":true";
    out_ += '}';
  }

  void append_tensors(const Layer& layer) {
    out_ += ",\"tensors\":{";
    for (const LayerTensor& tensor : layer.tensors) {
      if (out_.back() != '{') out_ += ',';
      const TensorSpec& spec = parts_.tensors[tensor.tensor];
      append_json_string(out_, tensor.name);
      out_ += format(":{{\"dtype\":\"{}\",\"shape\":[{}]", name_of(spec.dtype), fmt::join(spec.shape, ","));
      if (spec.name != layer.name + '.' + tensor.name) {
        out_ += ",\"key\":";
        append_json_string(out_, spec.name);  // Also the empty one.
      }
      if (spec.role != Role::weight) out_ += format(",\"role\":\"{}\"", name_of(spec.role));
      if (spec.slice) {
        out_ += format(",\"slice\":{{\"global_shape\":[{}],\"offset\":[{}],\"parts\":{}}}",
                       fmt::join(spec.slice->global_shape, ","), fmt::join(spec.slice->offset, ","), spec.slice->parts);
      }
      out_ += '}';
    }
    out_ += '}';
  }

  bool is_in_layer_order() const {
    std::uint32_t next = 0;
    for (const Layer& layer : parts_.layers) {
      for (const LayerTensor& tensor : layer.tensors) {
        if (tensor.tensor != next++) return false;
      }
    }
    return true;
  }

  void append_tensor_order() {
    out_ += ",\"tensor_order\":[";
    for (const TensorSpec& spec : parts_.tensors) {
      if (out_.back() != '[') out_ += ',';
      append_json_string(out_, spec.name);
    }
    out_ += ']';
  }

  const Architecture::Parts& parts_;
  std::string out_;
};

}  // namespace

std::string to_graph_json(const Architecture& architecture) { return GraphWriter(architecture.parts()).write(); }

}  // namespace freshet
