// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The steps between Architecture::Parts and an Architecture, shared by build, the codec and the graph file reader. For
/// core's own source files.

#include <array>
#include <string_view>

#include "core/model/graph.h"

namespace freshet {

/// Checks the parts and brings them into their one form: canonical configs, tensors_of resolved to the first call,
/// `extra` without white space. invalid_argument names the layer or tensor that is wrong.
Status check_and_normalize(Architecture::Parts& parts);

/// REQUIRES: normalized parts.
std::vector<std::byte> encode_architecture(const Architecture::Parts& parts);

struct ArchitectureBuilder {
  /// REQUIRES: normalized parts, and `encoded` is their encoded form.
  static std::shared_ptr<const Architecture> assemble(Architecture::Parts parts, std::vector<std::byte> encoded);
};

/// The keys of a graph file that mean something; all others are extra.
inline constexpr std::array<std::string_view, 7> kGraphFileKeys = {
    "freshet_graph", "name", "layers", "outputs", "tensor_order", "framework_config", "guessed"};

inline constexpr std::size_t kLayerNameBytesMax = kTensorNameBytesMax;
inline constexpr std::size_t kClassNameBytesMax = 256;
/// Of the encoded form, and of all texts, shapes and inputs together before encoding.
inline constexpr std::size_t kArchitectureBytesMax = std::size_t{256} << 20;
inline constexpr std::size_t kArchitecturePayloadBytesMax = std::size_t{96} << 20;

}  // namespace freshet
