// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Erasure codes of a stripe: k blocks of data and m of parity, of which any m may be lost. XOR for m = 1, Reed-Solomon
/// over GF(2^8) with Cauchy's matrix for more; both by ISA-L.

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/tensor.h"

namespace freshet::levels {

/// Immutable: any thread.
class Erasure {
 public:
  /// REQUIRES: data >= 1, parity >= 1, data + parity <= 255.
  Erasure(std::uint32_t data, std::uint32_t parity);

  /// Parity block `row` of the data blocks, in order. REQUIRES: all are as long as `out`.
  void encode(std::uint32_t row, std::span<const Bytes> data, MutableBytes out) const;
  /// Data block `wanted` from `data` others: have[i] says which blocks[i] is, data blocks counting from 0 and parity
  /// blocks from `data`. REQUIRES: they differ; all are as long as `out`.
  void rebuild(std::span<const std::uint32_t> have, std::span<const Bytes> blocks, std::uint32_t wanted,
               MutableBytes out) const;

 private:
  void combine(std::span<const unsigned char> factors, std::span<const Bytes> blocks, MutableBytes out) const;

  std::uint32_t data_;
  std::vector<unsigned char> rows_;  ///< A row of `data_` factors for each block, data first.
};

}  // namespace freshet::levels
