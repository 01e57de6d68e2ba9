// SPDX-License-Identifier: Apache-2.0
#include "core/model/slot_id.h"

#include <sodium.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/canonical_json.h"

namespace freshet {
namespace {

/// Changes with any change to what is hashed below.
constexpr std::string_view kDomain = "freshet slot id 1";

template <typename Integer>
void append_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
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
    const Shape& shape = spec.global_shape();
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (axis != 0) out += ',';
      out += std::to_string(shape[axis]);
    }
    out += "]}";
  }
  out += '}';
}

static_assert(sizeof(ConfigHashes::State) >= sizeof(crypto_generichash_state));
static_assert(alignof(ConfigHashes::State) >= alignof(crypto_generichash_state));

crypto_generichash_state* hash_state(ConfigHashes::State& state) {
  return reinterpret_cast<crypto_generichash_state*>(state.bytes.data());
}

void update(ConfigHashes::State& state, std::string_view text) {
  crypto_generichash_update(hash_state(state), reinterpret_cast<const unsigned char*>(text.data()), text.size());
}

/// Tells apart what config_of() tells apart, in fewer steps: each text with its length before it.
class ConfigKey {
 public:
  std::string make(const Layer& layer, std::span<const TensorSpec> tensors, std::uint64_t ordinal,
                   const SlotId* tensors_of) {
    add(layer.class_name);
    add(layer.config);
    append_little_endian(key_, ordinal);
    key_ += tensors_of != nullptr ? '1' : '0';
    if (tensors_of != nullptr) {
      key_.append(reinterpret_cast<const char*>(tensors_of->bytes.data()), tensors_of->bytes.size());
    }
    for (const LayerTensor& tensor : layer.tensors) {
      const TensorSpec& spec = tensors[tensor.tensor];
      add(tensor.name);
      append_little_endian(key_, static_cast<std::uint32_t>(spec.dtype));
      append_little_endian(key_, static_cast<std::uint64_t>(spec.global_shape().size()));
      for (const std::uint64_t extent : spec.global_shape()) append_little_endian(key_, extent);
    }
    return std::move(key_);
  }

 private:
  void add(std::string_view text) {
    append_little_endian(key_, static_cast<std::uint64_t>(text.size()));
    key_ += text;
  }
  std::string key_;
};

/// Computes the ids in the layers' order: every input's id is known when it is needed.
class SlotComputer {
 public:
  /// `known` may be null.
  SlotComputer(std::span<const Layer> layers, std::span<const TensorSpec> tensors, ConfigHashes* known)
      : layers_(layers), tensors_(tensors), known_(known) {}

  Result<std::vector<SlotId>> compute() {
    slots_.reserve(layers_.size());
    for (const Layer& layer : layers_) {
      Result<SlotId> slot = slot_of(layer);
      if (!slot) return fail(std::move(slot).error().with_context(format("layer {}", shown(layer.name))));
      slots_.push_back(*slot);
    }
    return std::move(slots_);
  }

 private:
  Result<SlotId> slot_of(const Layer& layer) {
    if (known_ != nullptr) FRESHET_TRY(check_places(layer));
    FRESHET_ASSIGN(const ConfigHashes::State begun, begin(layer, is_input(layer) ? ++inputs_ : 0));
    std::string text;
    append_inputs(text, layer);
    // The id with k = 0 tells (config, inputs) apart, so it serves to count the earlier layers that have both equal.
    const SlotId first = end(begun, text, 0);
    const std::uint64_t k = seen_[first]++;
    return k == 0 ? first : end(begun, text, k);
  }

  Status check_places(const Layer& layer) const {
    for (const LayerInput& input : layer.inputs) {
      if (input.layer >= slots_.size())
        return fail(Code::invalid_argument, "an input does not come from an earlier layer");
    }
    for (const LayerTensor& tensor : layer.tensors) {
      if (tensor.tensor >= tensors_.size())
        return fail(Code::invalid_argument, "it names a tensor that the graph does not have");
    }
    if (!layer.tensors_of) return {};
    if (*layer.tensors_of >= slots_.size())
      return fail(Code::invalid_argument, "tensors_of does not name an earlier layer");
    return layer.tensors.empty() ? Status()
                                 : fail(Code::invalid_argument, "it has both tensors and tensors_of: give one of them");
  }

  /// The hash of the domain and the layer's config. `ordinal` counts Inputs from 1; 0 for other layers.
  Result<ConfigHashes::State> begin(const Layer& layer, std::uint64_t ordinal) {
    const SlotId* const called = layer.tensors_of ? &slots_[first_call(*layer.tensors_of)] : nullptr;
    std::string key;
    if (known_ != nullptr) {
      key = ConfigKey().make(layer, tensors_, ordinal, called);
      if (const auto state = known_->find(key)) return *state;
    }
    std::string own = layer.config.empty() ? "{}" : layer.config;
    if (known_ != nullptr && own != "{}") {
      FRESHET_ASSIGN(own, canonical_json(own));
      if (own.front() != '{') return fail(Code::invalid_argument, "config is not a JSON object");
    }
    ConfigHashes::State state;
    crypto_generichash_init(hash_state(state), nullptr, 0, sizeof(SlotId::bytes));
    const std::string config = config_of(layer, own, ordinal, called);
    std::string text(kDomain);
    append_little_endian(text, static_cast<std::uint64_t>(config.size()));
    update(state, text);
    update(state, config);
    if (known_ != nullptr) known_->add(std::move(key), std::make_shared<const ConfigHashes::State>(state));
    return state;
  }

  static SlotId end(const ConfigHashes::State& begun, std::string_view inputs, std::uint64_t k) {
    ConfigHashes::State state = begun;
    std::string ordinal;
    append_little_endian(ordinal, k);
    update(state, inputs);
    update(state, ordinal);
    SlotId id;
    crypto_generichash_final(hash_state(state), id.bytes.data(), id.bytes.size());
    return id;
  }

  /// In normalized layers one step at most.
  std::uint32_t first_call(std::uint32_t layer) const {
    while (layers_[layer].tensors_of) layer = *layers_[layer].tensors_of;
    return layer;
  }

  /// Canonical JSON: its keys stand in sorted order.
  std::string config_of(const Layer& layer, std::string_view own, std::uint64_t ordinal, const SlotId* called) const {
    std::string out = "{\"class\":";
    append_json_string(out, layer.class_name);
    out += ",\"config\":";
    out += own;
    if (ordinal != 0) out += format(",\"ordinal\":{}", ordinal - 1);
    if (called != nullptr) {
      out += format(",\"tensors_of\":\"{}\"", to_hex(*called));
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
  ConfigHashes* const known_;
  std::vector<SlotId> slots_;
  std::unordered_map<SlotId, std::uint64_t> seen_;
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
  return *SlotComputer(layers, tensors, nullptr).compute();
}

Result<std::vector<SlotId>> compute_slots(std::span<const Layer> layers, std::span<const TensorSpec> tensors,
                                          ConfigHashes& known) {
  return SlotComputer(layers, tensors, &known).compute();
}

std::shared_ptr<const ConfigHashes::State> ConfigHashes::find(std::string_view key) {
  const std::string whole(key);
  const MutexLock lock(mutex_);
  if (const auto found = newer_.find(whole); found != newer_.end()) {
    ++hits_;
    return found->second;
  }
  const auto found = older_.find(whole);
  if (found == older_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  return found->second;
}

void ConfigHashes::add(std::string key, std::shared_ptr<const State> state) {
  const MutexLock lock(mutex_);
  if (newer_.size() >= entries_max_) {
    older_ = std::move(newer_);
    newer_.clear();
  }
  newer_.insert_or_assign(std::move(key), std::move(state));
}

std::uint64_t ConfigHashes::hits() const {
  const MutexLock lock(mutex_);
  return hits_;
}

std::uint64_t ConfigHashes::misses() const {
  const MutexLock lock(mutex_);
  return misses_;
}

}  // namespace freshet
