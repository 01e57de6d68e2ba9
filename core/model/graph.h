// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The architecture of a model: a directed graph of leaf-layer calls, the tensors that the layers own, and a slot id
/// for every call. Immutable once built; shared by every version that has it.
///
/// A graph file (docs/graph-file.md) is the textual form. A slot id identifies a vertex's computation and its
/// parameters: equal ids mean that the calls are equal, and that all calls before them, up to the inputs, are equal.
/// core/FORMAT.md, "Slot ids", has the definition.

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet {

/// A cryptographic 128-bit hash (BLAKE2b) of a layer call's class, config, tensors and inputs (core/FORMAT.md).
struct SlotId {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const SlotId&) const = default;
};
std::string to_hex(const SlotId& id);

/// One output of an earlier layer call.
struct LayerInput {
  std::uint32_t layer = 0;
  std::uint32_t port = 0;
  auto operator<=>(const LayerInput&) const = default;
};

/// A tensor that a layer owns: its local name ("kernel") and its index among the architecture's tensors.
struct LayerTensor {
  std::string name;
  std::uint32_t tensor = 0;
  bool operator==(const LayerTensor&) const = default;
};

/// One call of a leaf layer.
struct Layer {
  std::string name;
  std::string class_name;
  std::string config = "{}";                ///< Structural hyper-parameters, canonical JSON (RFC 8785).
  std::string framework_config;             ///< The framework's own, verbatim; not part of identity.
  std::vector<LayerInput> inputs;           ///< Earlier layers only.
  std::vector<LayerTensor> tensors;         ///< Empty if the call uses another layer's tensors (tensors_of).
  std::optional<std::uint32_t> tensors_of;  ///< The first call that uses these parameters; this call uses them again.
  bool commutative = false;
  bool operator==(const Layer&) const = default;
};

/// An input placeholder: a call of class "Input", with any framework's prefix, that has no inputs itself.
bool is_input(const Layer& layer);

/// True if the order of the inputs does not matter: Add, Multiply, Average, Maximum and Minimum with any framework's
/// prefix, and layers with the flag `commutative`.
bool is_commutative(const Layer& layer);

class Architecture {
 public:
  struct Parts {
    std::string name;
    std::vector<TensorSpec> tensors;
    std::vector<Layer> layers;  ///< In topological order.
    std::vector<LayerInput> outputs;
    std::string framework_config;  ///< The framework's own, of the whole model (Keras JSON, a module's path), verbatim.
    std::string extra;             ///< Unknown keys of the graph file, a JSON object; kept, not interpreted.
    bool guessed = false;          ///< True: the layers were guessed from tensor names.
  };

  /// Checks the parts (names unique, inputs earlier, every tensor owned by exactly one layer, limits below) and
  /// computes slot ids and the digest. The message of invalid_argument names the wrong layer or tensor.
  static Result<std::shared_ptr<const Architecture>> build(Parts parts);

  /// A chain with one layer per tensor-name prefix (the part before the last '.', or the whole name), in order of first
  /// appearance, marked guessed. The tensor with the empty name is ".." of layer ".".
  static Result<std::shared_ptr<const Architecture>> guess_chain(std::vector<TensorSpec> tensors);

  const std::string& name() const { return parts_.name; }
  std::span<const TensorSpec> tensors() const { return parts_.tensors; }
  std::span<const Layer> layers() const { return parts_.layers; }
  const Parts& parts() const { return parts_; }
  std::span<const SlotId> slots() const { return slots_; }

  /// Index of the tensor of that name.
  std::optional<std::uint32_t> tensor_named(std::string_view name) const;
  /// Sum of the tensors' bytes.
  std::uint64_t bytes() const { return bytes_; }
  /// Digest of the encoded form (core/model/manifest.h): equal architectures, equal digests.
  const Digest& digest() const { return digest_; }
  /// The encoded form, for the wire and the disk.
  Bytes encoded() const { return encoded_; }

 private:
  friend struct ArchitectureBuilder;
  Architecture() = default;

  // Constant after construction.
  Parts parts_;
  std::vector<SlotId> slots_;
  std::unordered_map<std::string_view, std::uint32_t> tensor_by_name_;  ///< Keys point into parts_.
  std::uint64_t bytes_ = 0;
  std::vector<std::byte> encoded_;
  Digest digest_;
};

inline constexpr std::size_t kTensorsMax = std::size_t{1} << 18;  ///< Per model.
inline constexpr std::size_t kLayersMax = std::size_t{1} << 18;
inline constexpr std::size_t kLayerInputsMax = std::size_t{1} << 16;
inline constexpr std::size_t kGraphFileBytesMax = std::size_t{64} << 20;

/// The verified inverse of encoded(); keeps the received bytes. corrupt if build() would refuse or change anything.
Result<std::shared_ptr<const Architecture>> decode_architecture(Bytes bytes);

/// Reads a graph file's text. The message of invalid_argument names the layer and its fault.
Result<std::shared_ptr<const Architecture>> parse_graph_json(std::string_view json);

/// Writes a graph file that parse_graph_json reads back to an equal architecture. One line.
std::string to_graph_json(const Architecture& architecture);

}  // namespace freshet

template <>
struct std::hash<freshet::SlotId> {
  std::size_t operator()(const freshet::SlotId& id) const noexcept {
    std::size_t value = 0;  // Any eight bytes of a cryptographic hash are a good hash themselves.
    std::memcpy(&value, id.bytes.data(), sizeof(value));
    return value;
  }
};
