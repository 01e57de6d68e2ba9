// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Pairs of versions to take the difference of.

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/model/dtype.h"

namespace freshet::benchmarks {

/// One tensor before and after.
struct TensorPair {
  DType dtype = DType::bf16;
  std::vector<std::byte> base;
  std::vector<std::byte> target;
};

/// Round to nearest, ties to even, as processors and frameworks cast.
std::uint16_t bf16_of(float value);

/// A master copy in fp32, normally distributed with a deviation of 0.02, and the direction of an Adam step (mean over
/// deviation of the gradient, also normal). What is published is the master's bf16 cast. Follows from the seed alone.
class SyntheticTrace {
 public:
  SyntheticTrace(std::size_t elements, std::uint64_t seed);

  /// The cast before and after a step whose rate is such that a share of about `density` of the elements changes.
  TensorPair pair(double density) const;

 private:
  double rate_for(double density) const;
  std::vector<float> master_;
  std::vector<float> direction_;
};

/// The tensors of the example's model (examples/live_run) that changed between two publishes, a few steps apart, after
/// some hundred steps of its real training: in fp32 as it publishes them, and cast to bf16.
struct RecordedTrace {
  std::vector<TensorPair> f32;
  std::vector<TensorPair> bf16;
};
Result<RecordedTrace> record_trace();

}  // namespace freshet::benchmarks
