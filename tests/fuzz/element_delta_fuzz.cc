// SPDX-License-Identifier: Apache-2.0
#include "core/delta/element_delta.h"

#include <cstring>

#include "core/base/check.h"
#include "core/base/digest.h"
#include "core/delta/raw_delta.h"
#include "core/gpu/kernels/delta_payload.h"
#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {
namespace {

constexpr std::size_t kSealBytes = 16;
constexpr std::uint64_t kMemoryBytesMax = std::uint64_t{1} << 16;

/// The base of every seed, and what every input is applied to.
Input memory_of(std::size_t bytes) {
  Input memory(bytes);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>((i * i + (i >> 3)) & 0xff);
  return memory;
}

/// Whatever is accepted can be undone, changes no more than it says, and can be cut for a device.
void apply_and_revert(Bytes payload) {
  const Result<DeltaInfo> info = read_delta_info(payload);
  if (!info || info->elements > kMemoryBytesMax / word_bytes_of(info->dtype)) return;
  const DeltaSpec spec{.dtype = info->dtype, .base = info->base, .target = info->target};
  const Input base = memory_of(info->elements * word_bytes_of(info->dtype));
  Input memory = base;
  const Result<DeltaInfo> applied = apply_delta(spec, payload, memory);
  Input on_other_path = base;
  FRESHET_CHECK(apply_delta(spec, payload, on_other_path, VectorLevel::portable).has_value() == applied.has_value());
  if (!applied) return;
  FRESHET_CHECK(on_other_path == memory);
  FRESHET_CHECK(count_changed_elements(info->dtype, base, memory) <= applied->changed_elements);
  for (const std::uint32_t elements_max : {1, 100, 8192}) {
    const auto raw = raw_delta(payload, elements_max);
    Input by_raw = base;
    FRESHET_CHECK(raw && apply_delta(spec, *raw, by_raw).has_value() && by_raw == memory);
    FRESHET_CHECK(elements_max < 8192 || gpu::find_places(spec, info->elements, *raw).has_value());
  }
  FRESHET_CHECK(revert_delta(spec, payload, memory).has_value());
  FRESHET_CHECK(memory == base);
}

/// The input with the right digest behind it.
Input sealed(Bytes content) {
  const Digest digest = digest_of(content);
  Input payload(content.begin(), content.end());
  payload.resize(content.size() + kSealBytes);
  std::memcpy(payload.data() + content.size(), &digest.low, 8);
  std::memcpy(payload.data() + content.size() + 8, &digest.high, 8);
  return payload;
}

/// Every third, thirtieth or thousandth element changed.
Input seed_of(DType dtype, std::size_t elements, std::size_t stride) {
  const Input base = memory_of(elements * word_bytes_of(dtype));
  Input target = base;
  for (std::size_t i = stride / 2; i < elements; i += stride) {
    target[i * word_bytes_of(dtype)] ^= static_cast<std::byte>(1 + i % 7);
  }
  SegmentName to;
  to.tensor = 1;
  Input payload = encode_delta({.dtype = dtype, .base = {}, .target = to}, base, target, ~std::uint64_t{0}).value();
  payload.resize(payload.size() - kSealBytes);
  return payload;
}

}  // namespace

std::vector<Input> seeds() {
  return {seed_of(DType::bf16, 600, 3), seed_of(DType::f32, 3000, 30), seed_of(DType::u8, 5000, 1000),
          seed_of(DType::f64, 100, 3), seed_of(DType::i16, 0, 1)};
}

}  // namespace freshet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const freshet::Bytes bytes = freshet::fuzz::bytes_of_input(data, size);
  freshet::fuzz::apply_and_revert(bytes);
  freshet::fuzz::apply_and_revert(freshet::fuzz::sealed(bytes));
  return 0;
}
