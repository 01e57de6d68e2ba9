// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A network in little memory: for each layer call its kind and the calls that it reads, in topological order. From it
/// come slot ids, the same that an Architecture has, and the Architecture itself where one is needed.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/graph.h"
#include "examples/nas_spaces/palette.h"

namespace freshet::nas {

/// A value; made anew in place by clear() and add().
class Network {
 public:
  void clear();
  /// The new call's number. REQUIRES: inputs are earlier calls.
  std::uint32_t add(std::uint32_t kind, std::span<const std::uint32_t> inputs);
  std::uint32_t add(std::uint32_t kind, std::initializer_list<std::uint32_t> inputs) {
    return add(kind, std::span<const std::uint32_t>(inputs.begin(), inputs.size()));
  }

  std::size_t size() const { return kinds_.size(); }
  std::uint32_t kind(std::size_t call) const { return kinds_[call]; }
  std::span<const std::uint32_t> inputs(std::size_t call) const {
    return std::span(inputs_).subspan(ends_[call], ends_[call + 1] - ends_[call]);
  }

 private:
  std::vector<std::uint32_t> kinds_;
  std::vector<std::uint32_t> inputs_;      ///< Of all calls, one after the other.
  std::vector<std::uint32_t> ends_ = {0};  ///< Where each call's inputs begin; one more than there are calls.
};

/// Slot ids without an Architecture: about half a microsecond a call. One thread at a time; keeps its memory.
class SlotHasher {
 public:
  /// One id per call. REQUIRES: `network` is of `palette`.
  void compute(const Network& network, const Palette& palette, std::vector<SlotId>& slots);

 private:
  /// How often the id was seen in this network before.
  std::uint64_t count_seen(const SlotId& id);

  struct Seen {
    SlotId id;
    std::uint32_t stamp = 0;  ///< Of the network that it was seen in.
    std::uint32_t count = 0;
  };
  std::vector<Seen> table_;
  std::uint32_t stamp_ = 0;
};

/// The architecture, with layers named after class and place ("dense_3") and the last call as the output.
Result<std::shared_ptr<const Architecture>> to_architecture(const Network& network, const Palette& palette,
                                                            const std::string& name);

/// Of the tensors of all calls.
std::uint64_t tensor_bytes(const Network& network, const Palette& palette);

}  // namespace freshet::nas
