// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/network.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/format.h"

namespace freshet::nas {
namespace {

/// The end of a slot id's text: the inputs, and the ordinal among calls that are equal so far.
class SlotTail {
 public:
  void begin(std::size_t inputs) {
    text_.clear();
    append(static_cast<std::uint64_t>(inputs));
  }
  void append_input(const SlotId& slot) {
    text_.insert(text_.end(), slot.bytes.begin(), slot.bytes.end());
    append(std::uint32_t{0});  // The port: these networks' layers have one.
  }
  SlotId hash(const crypto_generichash_state& prefix, std::uint64_t k) {
    crypto_generichash_state state = prefix;
    const std::size_t before_k = text_.size();
    append(k);
    SlotId id;
    crypto_generichash_update(&state, text_.data(), text_.size());
    crypto_generichash_final(&state, id.bytes.data(), id.bytes.size());
    text_.resize(before_k);
    return id;
  }

 private:
  template <typename Integer>
  void append(Integer value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      text_.push_back(static_cast<unsigned char>((value >> (8 * i)) & 0xff));
  }
  std::vector<unsigned char> text_;
};

std::string lower(std::string_view text) {
  std::string out(text.substr(text.rfind('.') + 1));
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

}  // namespace

void Network::clear() {
  kinds_.clear();
  inputs_.clear();
  ends_.resize(1);
}

std::uint32_t Network::add(std::uint32_t kind, std::span<const std::uint32_t> inputs) {
  kinds_.push_back(kind);
  inputs_.insert(inputs_.end(), inputs.begin(), inputs.end());
  ends_.push_back(static_cast<std::uint32_t>(inputs_.size()));
  return static_cast<std::uint32_t>(kinds_.size() - 1);
}

std::uint64_t SlotHasher::count_seen(const SlotId& id) {
  std::size_t at = 0;
  std::memcpy(&at, id.bytes.data(), sizeof at);
  for (;; ++at) {
    Seen& seen = table_[at & (table_.size() - 1)];
    if (seen.stamp != stamp_) seen = {.id = id, .stamp = stamp_};
    if (seen.id == id) return seen.count++;
  }
}

void SlotHasher::compute(const Network& network, const Palette& palette, std::vector<SlotId>& slots) {
  if (table_.size() < 2 * network.size()) table_.assign(std::bit_ceil(2 * network.size()), {});
  if (++stamp_ == 0) table_.assign(table_.size(), {}), stamp_ = 1;
  slots.resize(network.size());
  SlotTail tail;
  std::vector<SlotId> sorted;
  for (std::size_t call = 0; call < network.size(); ++call) {
    const std::span<const std::uint32_t> inputs = network.inputs(call);
    tail.begin(inputs.size());
    sorted.clear();
    for (const std::uint32_t input : inputs) sorted.push_back(slots[input]);
    if (palette.is_commutative(network.kind(call))) std::sort(sorted.begin(), sorted.end());
    for (const SlotId& slot : sorted) tail.append_input(slot);
    const crypto_generichash_state& prefix = palette.slot_prefix(network.kind(call));
    slots[call] = tail.hash(prefix, 0);
    const std::uint64_t k = count_seen(slots[call]);
    if (k != 0) slots[call] = tail.hash(prefix, k);
  }
}

Result<std::shared_ptr<const Architecture>> to_architecture(const Network& network, const Palette& palette,
                                                            const std::string& name) {
  Architecture::Parts parts{.name = name};
  for (std::size_t call = 0; call < network.size(); ++call) {
    const LayerKind& kind = palette[network.kind(call)];
    Layer layer{
        .name = format("{}_{}", lower(kind.class_name), call), .class_name = kind.class_name, .config = kind.config};
    for (const std::uint32_t input : network.inputs(call)) layer.inputs.push_back({.layer = input});
    for (const KindTensor& tensor : kind.tensors) {
      layer.tensors.push_back({.name = tensor.name, .tensor = static_cast<std::uint32_t>(parts.tensors.size())});
      parts.tensors.push_back(
          {.name = format("{}.{}", layer.name, tensor.name), .dtype = tensor.dtype, .shape = tensor.shape});
    }
    parts.layers.push_back(std::move(layer));
  }
  if (network.size() != 0) parts.outputs.push_back({.layer = static_cast<std::uint32_t>(network.size() - 1)});
  return Architecture::build(std::move(parts));
}

std::uint64_t tensor_bytes(const Network& network, const Palette& palette) {
  std::uint64_t bytes = 0;
  for (std::size_t call = 0; call < network.size(); ++call) bytes += palette.bytes(network.kind(call));
  return bytes;
}

}  // namespace freshet::nas
