// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The shape of the example's model, and its beginnings. A byte-level language model: the last 1, 2, … `orders` bytes
/// are hashed into one row each of a table per order; the rows, side by side, go through two hidden layers (ReLU) to a
/// softmax over the next byte.
///
/// Each table is cut into row blocks, and a block is a tensor of the model: what a step touched is told to the
/// publisher block by block. A row's block follows from the last byte of its n-gram, so the few dozen different bytes
/// of some hundred training positions touch a few dozen blocks, however large the table is. `--scale` adds rows, and
/// blocks with them; the compute of a step stays the same.
///
/// Every initial value follows from (seed, row) alone, so whoever checks rows needs no copy of the first version.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/tensor.h"

namespace freshet::live {

inline constexpr std::uint32_t kBytesPossible = 256;
inline constexpr std::uint64_t kModelBytesDefault = 8'000'000;
inline constexpr std::uint64_t kModelBytesMin = 1'000'000;
inline constexpr std::uint64_t kModelBytesMax = std::uint64_t{4} << 30;

/// Where a row is: its tensor, its index in that tensor, and its number among all rows of all tables.
struct RowPlace {
  std::uint32_t tensor = 0;
  std::uint32_t row_in_block = 0;
  std::uint32_t row = 0;
};

/// The tensors that every step changes, in the order in which they stand before the row blocks.
enum DenseTensor : std::uint32_t {
  kHidden1Weight,
  kHidden1Bias,
  kHidden2Weight,
  kHidden2Bias,
  kOutputWeight,
  kOutputBias
};
inline constexpr std::uint32_t kDenseTensors = 6;

/// Immutable.
class Layout {
 public:
  struct Options {
    std::uint64_t model_bytes = kModelBytesDefault;
    std::uint32_t orders = 5;
    std::uint32_t row_floats = 16;
    std::uint32_t hidden = 128;  ///< Units of each hidden layer.
    std::uint64_t seed = 1;
  };
  /// invalid_argument when model_bytes is outside the limits above.
  static Result<Layout> make(const Options& options);

  std::uint32_t orders() const { return options_.orders; }
  std::uint32_t row_floats() const { return options_.row_floats; }
  std::uint32_t hidden() const { return options_.hidden; }
  std::uint32_t input_floats() const { return options_.orders * options_.row_floats; }
  std::uint32_t rows() const { return rows_; }
  std::uint64_t bytes() const { return bytes_; }

  std::span<const TensorSpec> tensors() const { return tensors_; }
  /// Rows and columns of a dense tensor; a bias is one row.
  std::uint64_t rows_of(std::uint32_t tensor) const;
  std::uint64_t columns_of(std::uint32_t tensor) const;

  /// The row of the `order` bytes before `context_end`.
  RowPlace row_of(std::uint32_t order, const std::uint8_t* context_end) const;
  /// Writes a row's first value, row_floats() long.
  void initial_row(std::uint32_t row, float* out) const;
  void initial_dense(std::uint32_t tensor, std::span<float> out) const;

  /// The graph of layers that goes into every version.
  Result<std::shared_ptr<const Architecture>> architecture() const;

 private:
  struct Table {
    std::uint32_t first_tensor = 0;
    std::uint32_t blocks_per_byte = 0;  ///< 0: a table of one block, a row for each byte.
    std::uint32_t rows_per_block = 0;
    std::uint32_t first_row = 0;
  };
  explicit Layout(const Options& options) : options_(options) {}
  void add_dense(const char* layer, std::uint64_t inputs, std::uint64_t outputs);
  void add_table(std::uint32_t order, std::uint32_t blocks_per_byte, std::uint32_t rows_per_block);

  Options options_;
  std::vector<TensorSpec> tensors_;
  std::vector<Table> tables_;  ///< By order, from 1.
  std::uint32_t rows_ = 0;
  std::uint64_t bytes_ = 0;
};

/// Gives the tensors' values to the model's passes: the trainer's own memory, or a pinned version in the publisher's.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const float* tensor(std::uint32_t index) const = 0;
};

/// The trainer's copy of the model: one allocation, tensor after tensor. One thread at a time.
class Weights final : public TensorSource {
 public:
  /// All values as the layout's seed has them; out_of_space when the memory is not there.
  static Result<Weights> initial(const Layout& layout);
  /// For values that are read from elsewhere.
  static Result<Weights> uninitialised(const Layout& layout);

  const float* tensor(std::uint32_t index) const override { return values_.get() + offsets_[index]; }
  float* tensor(std::uint32_t index) { return values_.get() + offsets_[index]; }
  /// As Publisher::publish takes them; valid as long as this object stays where it is.
  std::vector<TensorView> views(const Layout& layout) const;

 private:
  struct Free {
    void operator()(float* values) const;
  };
  Weights() = default;
  std::unique_ptr<float[], Free> values_;
  std::vector<std::uint64_t> offsets_;  ///< In floats.
};

}  // namespace freshet::live
