// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kinds of layers that a space's networks are made of. A network names a layer's kind by a small number; class,
/// config, tensors, and the part of a slot id's hash that they make up, are worked out once for each kind.

#include <sodium.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/model/graph.h"

namespace freshet::nas {

struct KindTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};

struct LayerKind {
  std::string class_name;
  std::string config = "{}";  ///< Canonical JSON, as Layer has it.
  std::vector<KindTensor> tensors;
  std::uint32_t ordinal = 0;  ///< Of an Input: which of the network's inputs it is.
};

/// Grows; any thread may read while nobody adds.
class Palette {
 public:
  /// The number of that kind, a new one if need be. Tensors belong to the identity of a kind, as they do to that of a
  /// layer.
  std::uint32_t add(LayerKind kind);

  const LayerKind& operator[](std::uint32_t kind) const { return entries_[kind].kind; }
  std::size_t size() const { return entries_.size(); }
  bool is_input(std::uint32_t kind) const { return entries_[kind].input; }
  bool is_commutative(std::uint32_t kind) const { return entries_[kind].commutative; }
  std::uint64_t bytes(std::uint32_t kind) const { return entries_[kind].bytes; }
  /// BLAKE2b over all of a slot id's text that comes before the inputs.
  const crypto_generichash_state& slot_prefix(std::uint32_t kind) const { return entries_[kind].slot_prefix; }

 private:
  struct Entry {
    LayerKind kind;
    crypto_generichash_state slot_prefix;
    std::uint64_t bytes = 0;
    bool input = false;
    bool commutative = false;
  };
  std::vector<Entry> entries_;
  std::map<std::string, std::uint32_t> by_text_;  ///< By the config text that slot ids hash.
};

}  // namespace freshet::nas
