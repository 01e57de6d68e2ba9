// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/erasure.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>

#include "core/base/check.h"

namespace freshet::levels {
namespace {

constexpr std::size_t kBlocksMax = 255;
constexpr std::size_t kTableBytes = 32;  ///< ISA-L's, of one factor.

}  // namespace

Erasure::Erasure(std::uint32_t data, std::uint32_t parity) : data_(data), rows_(std::size_t{data} * (data + parity)) {
  FRESHET_CHECK(data >= 1 && parity >= 1 && data + parity <= kBlocksMax);
  ::gf_gen_cauchy1_matrix(rows_.data(), static_cast<int>(data + parity), static_cast<int>(data));
  if (parity == 1) std::fill(rows_.end() - data, rows_.end(), static_cast<unsigned char>(1));
}

void Erasure::combine(std::span<const unsigned char> factors, std::span<const Bytes> blocks, MutableBytes out) const {
  FRESHET_CHECK(blocks.size() == data_);
  std::array<unsigned char*, kBlocksMax> sources{};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    FRESHET_CHECK(blocks[i].size() == out.size());
    // ISA-L reads them only, and does not say so.
    sources[i] = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(blocks[i].data()));
  }
  std::array<unsigned char, kTableBytes * kBlocksMax> tables{};
  std::vector<unsigned char> copied(factors.begin(), factors.end());
  ::ec_init_tables(static_cast<int>(data_), 1, copied.data(), tables.data());
  auto* into = reinterpret_cast<unsigned char*>(out.data());
  ::ec_encode_data(static_cast<int>(out.size()), static_cast<int>(data_), 1, tables.data(), sources.data(), &into);
}

void Erasure::encode(std::uint32_t row, std::span<const Bytes> data, MutableBytes out) const {
  combine(std::span(rows_).subspan(std::size_t{data_} * (data_ + row), data_), data, out);
}

void Erasure::rebuild(std::span<const std::uint32_t> have, std::span<const Bytes> blocks, std::uint32_t wanted,
                      MutableBytes out) const {
  FRESHET_CHECK(have.size() == data_ && wanted < data_);
  std::vector<unsigned char> matrix;
  for (const std::uint32_t block : have) {
    const auto row = std::span(rows_).subspan(std::size_t{data_} * block, data_);
    matrix.insert(matrix.end(), row.begin(), row.end());
  }
  std::vector<unsigned char> inverse(matrix.size());
  FRESHET_CHECK(::gf_invert_matrix(matrix.data(), inverse.data(), static_cast<int>(data_)) == 0);
  combine(std::span(inverse).subspan(std::size_t{data_} * wanted, data_), blocks, out);
}

}  // namespace freshet::levels
