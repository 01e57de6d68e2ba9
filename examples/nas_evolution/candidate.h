// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A candidate of the search: an architecture and its tensors, in memory of its own, as a framework would hold them.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/graph.h"
#include "core/model/tensor.h"
#include "examples/nas_spaces/genes.h"

namespace freshet::nas {

/// Bytes of tensors, some of which are frozen. One thread at a time.
class Candidate {
 public:
  /// All tensors get values that follow from `seed`, as before a training.
  Candidate(Genes genes, std::shared_ptr<const Architecture> architecture, std::uint64_t seed);
  /// As it was made: nothing is frozen.
  void start_over();

  const Genes& genes() const { return genes_; }
  const std::shared_ptr<const Architecture>& architecture() const { return architecture_; }
  std::size_t tensors() const { return bytes_.size(); }
  MutableBytes tensor(std::uint32_t index) { return bytes_[index]; }

  bool frozen(std::uint32_t index) const { return frozen_[index]; }
  void freeze(std::uint32_t index) { frozen_[index] = true; }
  void thaw(std::uint32_t index) { frozen_[index] = false; }
  /// Of the tensors' bytes, those that will be trained: 0 to 1.
  double trainable_share() const;

  /// Every tensor, or those that are not frozen.
  std::vector<TensorView> views(bool trainable_only) const;

  /// Stands for an epoch: every value of every tensor that is not frozen changes a little.
  void train(std::uint64_t seed);

 private:
  const Genes genes_;
  const std::shared_ptr<const Architecture> architecture_;
  const std::uint64_t seed_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<bool> frozen_;
};

/// A tensor that two architectures have at the same place of the same layer.
struct SharedTensor {
  std::uint32_t ours = 0;
  std::uint32_t theirs = 0;
};
/// The tensors of the longest common prefix: of our layers whose slot ids they have. In our layers' order.
std::vector<SharedTensor> shared_tensors(const Architecture& ours, const Architecture& theirs);

}  // namespace freshet::nas
