// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/palette.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "core/json/canonical_json.h"

namespace freshet::nas {
namespace {

/// As core/FORMAT.md has it, "Slot ids". Tests hold this against core/model/slot_id.h.
constexpr std::string_view kSlotDomain = "freshet slot id 1";

/// The layer that a kind stands for, as far as its identity goes.
Layer bare_layer(const LayerKind& kind, bool has_inputs) {
  Layer layer{.class_name = kind.class_name};
  if (has_inputs) layer.inputs.emplace_back();
  return layer;
}

std::string tensors_text(std::vector<KindTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const KindTensor& left, const KindTensor& right) { return utf16_less(left.name, right.name); });
  std::string out = "{";
  for (const KindTensor& tensor : tensors) {
    if (out.size() > 1) out += ',';
    append_json_string(out, tensor.name);
    out += format(":{{\"dtype\":\"{}\",\"shape\":[{}]}}", name_of(tensor.dtype), fmt::join(tensor.shape, ","));
  }
  return out + '}';
}

std::string config_text(const LayerKind& kind, bool input) {
  std::string out = "{\"class\":";
  append_json_string(out, kind.class_name);
  out += ",\"config\":" + kind.config;
  if (input) out += format(",\"ordinal\":{}", kind.ordinal);
  return out + ",\"tensors\":" + tensors_text(kind.tensors) + '}';
}

crypto_generichash_state prefix_of(const std::string& config) {
  std::string text(kSlotDomain);
  for (int shift = 0; shift < 64; shift += 8) text += static_cast<char>((config.size() >> shift) & 0xff);
  text += config;
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, sizeof(SlotId));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  return state;
}

}  // namespace

std::uint32_t Palette::add(LayerKind kind) {
  const bool input = freshet::is_input(bare_layer(kind, false));
  const std::string text = config_text(kind, input);
  const auto [place, fresh] = by_text_.try_emplace(text, static_cast<std::uint32_t>(entries_.size()));
  if (!fresh) return place->second;
  std::uint64_t bytes = 0;
  for (const KindTensor& tensor : kind.tensors) bytes += byte_size(tensor.dtype, tensor.shape).value_or(0);
  const bool commutative = freshet::is_commutative(bare_layer(kind, true));
  entries_.push_back({.kind = std::move(kind),
                      .slot_prefix = prefix_of(text),
                      .bytes = bytes,
                      .input = input,
                      .commutative = commutative});
  return place->second;
}

}  // namespace freshet::nas
