#include "core/slot_id.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

#include "core/canonical_json.h"
#include "core/format.h"

namespace freshet {
namespace {

/// Changes with any change to what is hashed below.
constexpr std::string_view kDomain = "freshet slot id 1";

struct SlotHash {
  std::size_t operator()(const SlotId& id) const noexcept {
    std::size_t value = 0;
    std::memcpy(&value, id.bytes.data(), sizeof value);
    return value;
  }
};

template <typename Integer>
void append_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

SlotId hash(std::string_view text) {
  SlotId id;
  crypto_generichash(id.bytes.data(), id.bytes.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     nullptr, 0);
  return id;
}

/// The class's last part: "Add" of "keras.layers.Add".
std::string_view bare_class(const Layer& layer) {
  const std::string_view name = layer.class_name;
  return name.substr(name.rfind('.') + 1);
}

void append_tensors(std::string& out, const Layer& layer, std::span<const TensorSpec> tensors) {
  std::vector<const LayerTensor*> sorted;
  for (const LayerTensor& tensor : layer.tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const LayerTensor* left, const LayerTensor* right) { return utf16_less(left->name, right->name); });
  out += '{';
  for (const LayerTensor* tensor : sorted) {
    if (out.back() != '{') out += ',';
    append_json_string(out, tensor->name);
    const TensorSpec& spec = tensors[tensor->tensor];
    out += format(":{{\"dtype\":\"{}\",\"shape\":[", name_of(spec.dtype));
    for (std::size_t axis = 0; axis < spec.shape.size(); ++axis) {
      if (axis != 0) out += ',';
      out += std::to_string(spec.shape[axis]);
    }
    out += "]}";
  }
  out += '}';
}

/// Computes the ids in the layers' order: every input's id is known when it is needed.
class SlotComputer {
 public:
  SlotComputer(std::span<const Layer> layers, std::span<const TensorSpec> tensors)
      : layers_(layers), tensors_(tensors) {}

  std::vector<SlotId> compute() {
    slots_.reserve(layers_.size());
    for (const Layer& layer : layers_) slots_.push_back(slot_of(layer));
    return std::move(slots_);
  }

 private:
  SlotId slot_of(const Layer& layer) {
    std::string text(kDomain);
    const std::string config = config_of(layer);
    append_little_endian(text, static_cast<std::uint64_t>(config.size()));
    text += config;
    append_inputs(text, layer);
    // The id with k = 0 tells (config, inputs) apart, so it serves to count the earlier layers that have both equal.
    const std::size_t before_k = text.size();
    append_little_endian(text, std::uint64_t{0});
    const SlotId first = hash(text);
    const std::uint64_t k = seen_[first]++;
    if (k == 0) return first;
    text.resize(before_k);
    append_little_endian(text, k);
    return hash(text);
  }

  /// Canonical JSON: its keys stand in sorted order.
  std::string config_of(const Layer& layer) {
    std::string out = "{\"class\":";
    append_json_string(out, layer.class_name);
    out += ",\"config\":";
    out += layer.config;
    if (is_input(layer)) out += format(",\"ordinal\":{}", inputs_++);
    if (layer.tensors_of) {
      out += format(",\"tensors_of\":\"{}\"", to_hex(slots_[*layer.tensors_of]));
    } else {
      out += ",\"tensors\":";
      append_tensors(out, layer, tensors_);
    }
    return out + '}';
  }

  void append_inputs(std::string& out, const Layer& layer) {
    std::vector<std::pair<SlotId, std::uint32_t>> inputs;
    inputs.reserve(layer.inputs.size());
    for (const LayerInput& input : layer.inputs) inputs.emplace_back(slots_[input.layer], input.port);
    if (is_commutative(layer)) std::sort(inputs.begin(), inputs.end());
    append_little_endian(out, static_cast<std::uint64_t>(inputs.size()));
    for (const auto& [slot, port] : inputs) {
      out.append(reinterpret_cast<const char*>(slot.bytes.data()), slot.bytes.size());
      append_little_endian(out, port);
    }
  }

  std::span<const Layer> layers_;
  std::span<const TensorSpec> tensors_;
  std::vector<SlotId> slots_;
  std::unordered_map<SlotId, std::uint64_t, SlotHash> seen_;
  std::uint64_t inputs_ = 0;  ///< Input layers so far.
};

}  // namespace

std::string to_hex(const SlotId& id) {
  std::string text;
  for (const std::uint8_t byte : id.bytes) text += format("{:02x}", byte);
  return text;
}

bool is_input(const Layer& layer) { return layer.inputs.empty() && bare_class(layer) == "Input"; }

bool is_commutative(const Layer& layer) {
  constexpr std::array<std::string_view, 5> kCommutative = {"Add", "Multiply", "Average", "Maximum", "Minimum"};
  return layer.commutative ||
         std::find(kCommutative.begin(), kCommutative.end(), bare_class(layer)) != kCommutative.end();
}

std::vector<SlotId> compute_slots(std::span<const Layer> layers, std::span<const TensorSpec> tensors) {
  return SlotComputer(layers, tensors).compute();
}

}  // namespace freshet
