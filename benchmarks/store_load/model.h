// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The models that are stored and loaded: a caller's tensors, touched, in memory of his own.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/model/manifest.h"
#include "repo/repository.h"

namespace freshet::benchmarks {

/// The bytes of each tensor.
using Sizes = std::vector<std::uint64_t>;

Sizes even_sizes(std::uint64_t bytes, std::size_t layers);
/// Each layer is larger than the one before, the last one about 20 times the mean of the first tenth.
Sizes uneven_sizes(std::uint64_t bytes, std::size_t layers);
Sizes vgg19_sizes();       ///< Simonyan and Zisserman's, f32: 38 tensors, 575 MB, most of it in one.
Sizes bert_large_sizes();  ///< Devlin's, f32: 391 tensors, 1.34 GB.

/// One thread at a time.
class Model {
 public:
  explicit Model(const Sizes& sizes);

  std::uint64_t bytes() const { return manifest_.architecture->bytes(); }
  const Sizes& sizes() const { return sizes_; }
  /// Tensors that together have about `percent` of the bytes, spread over the model.
  std::vector<std::uint32_t> share(unsigned percent) const;
  std::uint64_t bytes_of(std::span<const std::uint32_t> tensors) const;

  /// A version that inherits all but `changed` from the one before. Digests are those of the bytes.
  const Manifest& next(std::span<const std::uint32_t> changed);
  const Manifest& manifest() const { return manifest_; }
  Bytes tensor(std::uint32_t index) const { return tensors_[index]; }

  /// A second set of tensors, touched, to load into.
  std::vector<Repository::TensorRead> reads(std::span<const std::uint32_t> tensors);
  /// invalid when what was loaded is not what was stored.
  Status check_loaded(std::span<const std::uint32_t> tensors) const;

 private:
  Sizes sizes_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> loaded_;
  std::vector<MutableBytes> tensors_;
  std::vector<MutableBytes> rooms_;
  Manifest manifest_;
};

}  // namespace freshet::benchmarks
