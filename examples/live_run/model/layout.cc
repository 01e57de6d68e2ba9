// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/model/layout.h"

#include <cmath>
#include <cstdlib>

#include "core/base/format.h"

namespace freshet::live {
namespace {

constexpr std::uint32_t kLastBytes = 128;  ///< Blocks are chosen by the last byte's lower seven bits.

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Uniform in [-1, 1), exact in a float, so that every compiler makes the same bits.
float uniform(std::uint64_t key) {
  const auto top = static_cast<std::int32_t>(mix(key) >> 40);  // 24 bits
  return static_cast<float>(top - (1 << 23)) * (1.0f / (1 << 23));
}

/// More rows want more blocks: a publish copies whole blocks for the few rows in them that changed.
std::uint32_t blocks_per_byte_for(std::uint64_t model_bytes) {
  if (model_bytes >= 1'500'000'000) return 16;
  if (model_bytes >= 256'000'000) return 8;
  return model_bytes >= 64'000'000 ? 2 : 1;
}

}  // namespace

Result<Layout> Layout::make(const Options& options) {
  if (options.model_bytes < kModelBytesMin || options.model_bytes > kModelBytesMax) {
    return fail(Code::invalid_argument, format("a model of {} bytes: {} to {} are possible", options.model_bytes,
                                               kModelBytesMin, kModelBytesMax));
  }
  Layout layout(options);
  layout.add_dense("hidden1", layout.input_floats(), options.hidden);
  layout.add_dense("hidden2", options.hidden, options.hidden);
  layout.add_dense("output", options.hidden, kBytesPossible);
  layout.add_table(1, 0, kBytesPossible);
  const std::uint32_t blocks_per_byte = blocks_per_byte_for(options.model_bytes);
  const std::uint64_t blocks = std::uint64_t{options.orders - 1} * kLastBytes * blocks_per_byte;
  const std::uint64_t block_bytes = (options.model_bytes - layout.bytes_) / blocks;
  const std::uint64_t rows = block_bytes / (options.row_floats * sizeof(float));
  for (std::uint32_t order = 2; order <= options.orders; ++order) {
    layout.add_table(order, blocks_per_byte, static_cast<std::uint32_t>(std::max<std::uint64_t>(rows, 1)));
  }
  return layout;
}

void Layout::add_dense(const char* layer, std::uint64_t inputs, std::uint64_t outputs) {
  tensors_.push_back({.name = format("{}.weight", layer), .shape = {inputs, outputs}});
  tensors_.push_back({.name = format("{}.bias", layer), .shape = {outputs}});
  bytes_ += tensors_[tensors_.size() - 2].bytes() + tensors_.back().bytes();
}

void Layout::add_table(std::uint32_t order, std::uint32_t blocks_per_byte, std::uint32_t rows_per_block) {
  tables_.push_back({.first_tensor = static_cast<std::uint32_t>(tensors_.size()),
                     .blocks_per_byte = blocks_per_byte,
                     .rows_per_block = rows_per_block,
                     .first_row = rows_});
  const std::uint32_t blocks = blocks_per_byte == 0 ? 1 : blocks_per_byte * kLastBytes;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    tensors_.push_back(
        {.name = format("order{}.block{:03}", order, block), .shape = {rows_per_block, options_.row_floats}});
  }
  rows_ += blocks * rows_per_block;
  bytes_ += blocks * tensors_.back().bytes();
}

std::uint64_t Layout::rows_of(std::uint32_t tensor) const {
  const Shape& shape = tensors_[tensor].shape;
  return shape.size() == 2 ? shape[0] : 1;
}

std::uint64_t Layout::columns_of(std::uint32_t tensor) const { return tensors_[tensor].shape.back(); }

RowPlace Layout::row_of(std::uint32_t order, const std::uint8_t* context_end) const {
  const Table& table = tables_[order - 1];
  const std::uint8_t last = context_end[-1];
  if (table.blocks_per_byte == 0) return {table.first_tensor, last, table.first_row + last};
  std::uint64_t gram = order;
  for (std::uint32_t i = 1; i <= order; ++i) gram = gram << 8 | *(context_end - i);
  const std::uint64_t hash = mix(gram);
  const auto part = static_cast<std::uint32_t>(hash >> 56) % table.blocks_per_byte;
  const std::uint32_t block = last % kLastBytes * table.blocks_per_byte + part;
  const auto row_in_block = static_cast<std::uint32_t>((hash & 0xFFFFFFFFFFULL) % table.rows_per_block);
  return {table.first_tensor + block, row_in_block, table.first_row + block * table.rows_per_block + row_in_block};
}

void Layout::initial_row(std::uint32_t row, float* out) const {
  const std::uint64_t key = mix(options_.seed) ^ (std::uint64_t{row} << 8);
  for (std::uint32_t i = 0; i < options_.row_floats; ++i) out[i] = uniform(key + i) * 0.25f;
}

void Layout::initial_dense(std::uint32_t tensor, std::span<float> out) const {
  const bool bias = tensors_[tensor].shape.size() == 1;
  const float bound = bias ? 0.0f : std::sqrt(3.0f / static_cast<float>(rows_of(tensor)));
  const std::uint64_t key = mix(~options_.seed) ^ (std::uint64_t{tensor} << 40);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = bias ? 0.0f : uniform(key + i) * bound;
}

Result<std::shared_ptr<const Architecture>> Layout::architecture() const {
  Architecture::Parts parts{.name = "byte-ngram-mlp", .tensors = tensors_};
  parts.layers.push_back({.name = "text", .class_name = "Input", .config = R"({"dtype":"u8","shape":[null]})"});
  Layer concatenated{.name = "rows", .class_name = "Concatenate"};
  for (std::uint32_t order = 1; order <= orders(); ++order) {
    const Table& table = tables_[order - 1];
    Layer layer{.name = format("order{}", order),
                .class_name = "HashedNgramEmbedding",
                .config = format(R"({{"order":{}}})", order),
                .inputs = {{.layer = 0}}};
    const std::uint32_t end = order < orders() ? tables_[order].first_tensor : tensors_.size();
    for (std::uint32_t tensor = table.first_tensor; tensor < end; ++tensor) {
      layer.tensors.push_back({.name = tensors_[tensor].name.substr(layer.name.size() + 1), .tensor = tensor});
    }
    concatenated.inputs.push_back({.layer = static_cast<std::uint32_t>(parts.layers.size())});
    parts.layers.push_back(std::move(layer));
  }
  parts.layers.push_back(std::move(concatenated));
  for (std::uint32_t dense = 0; dense < kDenseTensors; dense += 2) {
    const std::string& name = tensors_[dense].name;
    const char* activation = dense + 2 < kDenseTensors ? "relu" : "softmax";
    parts.layers.push_back({.name = name.substr(0, name.find('.')),
                            .class_name = "Dense",
                            .config = format(R"({{"activation":"{}","units":{}}})", activation, columns_of(dense)),
                            .inputs = {{.layer = static_cast<std::uint32_t>(parts.layers.size() - 1)}},
                            .tensors = {{.name = "weight", .tensor = dense}, {.name = "bias", .tensor = dense + 1}}});
  }
  parts.outputs = {{.layer = static_cast<std::uint32_t>(parts.layers.size() - 1)}};
  return Architecture::build(std::move(parts));
}

void Weights::Free::operator()(float* values) const { std::free(values); }

Result<Weights> Weights::uninitialised(const Layout& layout) {
  Weights weights;
  std::uint64_t floats = 0;
  for (const TensorSpec& spec : layout.tensors()) {
    weights.offsets_.push_back(floats);
    floats += spec.bytes() / sizeof(float);
  }
  const std::uint64_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
  weights.values_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
  if (!weights.values_) return fail(Code::out_of_space, format("no memory for a model of {} bytes", bytes));
  return weights;
}

Result<Weights> Weights::initial(const Layout& layout) {
  FRESHET_ASSIGN(Weights weights, uninitialised(layout));
  std::uint32_t row = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    float* values = weights.tensor(tensor);
    if (tensor < kDenseTensors) {
      layout.initial_dense(tensor, {values, layout.tensors()[tensor].bytes() / sizeof(float)});
      continue;
    }
    for (std::uint64_t i = 0; i < layout.rows_of(tensor); ++i) {
      layout.initial_row(row++, values + i * layout.row_floats());
    }
  }
  return weights;
}

std::vector<TensorView> Weights::views(const Layout& layout) const {
  std::vector<TensorView> views;
  for (std::uint32_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    const TensorSpec& spec = layout.tensors()[tensor];
    views.push_back({.spec = spec, .data = bytes_of(this->tensor(tensor), spec.bytes() / sizeof(float))});
  }
  return views;
}

}  // namespace freshet::live
