// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/delta/peers.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/delta/kernels.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kScanElements = 8192;
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
constexpr std::uint16_t kGapEscape = 0xffff;

std::uint16_t load16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, 2);
  return value;
}

/// Calls `take(index, old, new)` for each element that changed.
template <typename Take>
void for_each_change(Bytes base, Bytes target, Take take) {
  const delta::Kernels& kernels = delta::kernels_of(DType::bf16, vector_level());
  std::vector<std::uint32_t> places(kScanElements + delta::kPlacesSlack);
  for (std::size_t at = 0; at < base.size() / 2; at += kScanElements) {
    const std::size_t count = std::min(kScanElements, base.size() / 2 - at);
    const std::byte* const from = base.data() + 2 * at;
    const std::byte* const to = target.data() + 2 * at;
    const std::size_t found = kernels.find(from, to, count, 0, places.data());
    for (std::size_t i = 0; i < found; ++i) {
      take(at + places[i], load16(from + 2 * places[i]), load16(to + 2 * places[i]));
    }
  }
}

template <typename T>
void append(std::vector<std::byte>& out, const std::vector<T>& values) {
  const Bytes bytes = bytes_of(values.data(), values.size());
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// A u64 length, then the frame.
void append_compressed(std::vector<std::byte>& out, Bytes bytes) {
  const std::size_t at = out.size();
  out.resize(at + 8 + ZSTD_compressBound(bytes.size()));
  const std::uint64_t size =
      ZSTD_compress(out.data() + at + 8, out.size() - at - 8, bytes.data(), bytes.size(), /*level=*/1);
  FRESHET_CHECK(ZSTD_isError(size) == 0);
  std::memcpy(out.data() + at, &size, 8);
  out.resize(at + 8 + size);
}

std::size_t take_compressed(Bytes& in, std::vector<std::byte>& out) {
  std::uint64_t size = 0;
  std::memcpy(&size, in.data(), 8);
  const std::size_t bytes = ZSTD_decompress(out.data(), out.size(), in.data() + 8, size);
  FRESHET_CHECK(ZSTD_isError(bytes) == 0);
  in = in.subspan(8 + size);
  return bytes;
}

class IndexAndValue final : public Peer {
 public:
  std::string name() const override { return "int32_index_value"; }

  std::vector<std::byte> encode(Bytes base, Bytes target) override {
    indices_.clear();
    values_.clear();
    for_each_change(base, target, [this](std::size_t index, std::uint16_t, std::uint16_t now) {
      indices_.push_back(static_cast<std::uint32_t>(index));
      values_.push_back(now);
    });
    std::vector<std::byte> payload;
    payload.reserve(6 * indices_.size());
    append(payload, indices_);
    append(payload, values_);
    return payload;
  }

  Status apply(Bytes payload, MutableBytes memory) override {
    const std::size_t count = payload.size() / 6;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t index;
      std::memcpy(&index, payload.data() + 4 * i, 4);
      std::memcpy(memory.data() + std::size_t{2} * index, payload.data() + 4 * count + 2 * i, 2);
    }
    return {};
  }

 private:
  std::vector<std::uint32_t> indices_;
  std::vector<std::uint16_t> values_;
};

class XorZstd final : public Peer {
 public:
  std::string name() const override { return "xor_zstd1"; }

  std::vector<std::byte> encode(Bytes base, Bytes target) override {
    std::vector<std::byte> payload;
    std::vector<std::byte> mixed(kChunkBytes);
    for (std::size_t at = 0; at < base.size(); at += kChunkBytes) {
      const std::size_t bytes = std::min(kChunkBytes, base.size() - at);
      for (std::size_t i = 0; i < bytes; ++i) mixed[i] = base[at + i] ^ target[at + i];
      append_compressed(payload, Bytes(mixed).first(bytes));
    }
    return payload;
  }

  Status apply(Bytes payload, MutableBytes memory) override {
    std::vector<std::byte> mixed(kChunkBytes);
    for (std::size_t at = 0; at < memory.size();) {
      const std::size_t bytes = take_compressed(payload, mixed);
      for (std::size_t i = 0; i < bytes; ++i) memory[at + i] ^= mixed[i];
      at += bytes;
    }
    return {};
  }
};

class GapXorZstd final : public Peer {
 public:
  std::string name() const override { return "gap16_xor_zstd1"; }

  std::vector<std::byte> encode(Bytes base, Bytes target) override {
    gaps_.clear();
    values_.clear();
    std::size_t next = 0;
    for_each_change(base, target, [this, &next](std::size_t index, std::uint16_t before, std::uint16_t now) {
      for (; index - next >= kGapEscape; next += kGapEscape) gaps_.push_back(kGapEscape);
      gaps_.push_back(static_cast<std::uint16_t>(index - next));
      values_.push_back(before ^ now);
      next = index + 1;
    });
    std::vector<std::byte> payload(16);
    const std::uint64_t counts[] = {gaps_.size(), values_.size()};
    std::memcpy(payload.data(), counts, 16);
    append_compressed(payload, bytes_of(gaps_.data(), gaps_.size()));
    append_compressed(payload, bytes_of(values_.data(), values_.size()));
    return payload;
  }

  Status apply(Bytes payload, MutableBytes memory) override {
    std::uint64_t counts[2];
    std::memcpy(counts, payload.data(), 16);
    payload = payload.subspan(16);
    std::vector<std::byte> gaps(2 * counts[0]);
    std::vector<std::byte> values(2 * counts[1]);
    take_compressed(payload, gaps);
    take_compressed(payload, values);
    std::size_t next = 0;
    std::size_t changed = 0;
    for (std::size_t i = 0; i < counts[0]; ++i) {
      const std::uint16_t gap = load16(gaps.data() + 2 * i);
      next += gap;
      if (gap == kGapEscape) continue;
      const auto value =
          static_cast<std::uint16_t>(load16(memory.data() + 2 * next) ^ load16(values.data() + 2 * changed++));
      std::memcpy(memory.data() + 2 * next++, &value, 2);
    }
    return {};
  }

 private:
  std::vector<std::uint16_t> gaps_;
  std::vector<std::uint16_t> values_;
};

}  // namespace

std::unique_ptr<Peer> make_index_and_value() { return std::make_unique<IndexAndValue>(); }
std::unique_ptr<Peer> make_xor_zstd() { return std::make_unique<XorZstd>(); }
std::unique_ptr<Peer> make_gap_xor_zstd() { return std::make_unique<GapXorZstd>(); }

}  // namespace freshet::benchmarks
