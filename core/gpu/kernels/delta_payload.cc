// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/delta_payload.h"

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/format.h"
#include "core/delta/payload.h"

namespace freshet::gpu {
namespace {

bool is_float_with_ranks(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// A block's planes, behind its head, each as it is. Moves `in` behind them.
Status skip_raw_planes(Bytes& in, const delta::BlockHead& block, std::uint64_t width) {
  constexpr std::size_t kPlaneHead = 5;
  for (std::uint64_t plane = 0; plane <= width; ++plane) {
    if (in.size() < kPlaneHead) return fail(Code::corrupt, "an element delta's plane is cut off");
    if (in[0] != std::byte{0}) {
      return fail(Code::unsupported, "an element delta has packed planes, which a device does not unpack");
    }
    const std::uint32_t wanted = plane == 0 ? block.gap_bytes : block.changed;
    const auto bytes = load_little_endian<std::uint32_t>(in.data() + 1);
    if (bytes != wanted || in.size() - kPlaneHead < bytes) {
      return fail(Code::corrupt, format("an element delta's plane claims {} bytes instead of {}", bytes, wanted));
    }
    in = in.subspan(kPlaneHead + bytes);
  }
  return {};
}

}  // namespace

DeltaElements delta_elements(const DeltaSpec& spec, std::uint64_t elements) {
  const delta::DeltaSum key = delta::sum_key(spec, elements);
  return {.count = elements,
          .width = static_cast<std::uint32_t>(word_bytes_of(spec.dtype)),
          .is_ordered = is_float_with_ranks(spec.dtype) ? 1U : 0U,
          .key_low = key.low,
          .key_high = key.high};
}

std::vector<std::byte> sealed_payload(const DeltaSpec& spec, std::uint64_t elements, const PackResult& result,
                                      Bytes blocks) {
  FRESHET_CHECK(blocks.size() == result.bytes);
  std::vector<std::byte> payload;
  payload.reserve(delta::kHeadBytes + blocks.size() + delta::kSealBytes);
  payload.resize(delta::kHeadBytes);
  const DeltaInfo info{.base = spec.base,
                       .target = spec.target,
                       .dtype = spec.dtype,
                       .elements = elements,
                       .changed_elements = result.changed};
  delta::store_head({.info = info, .sum = {.low = result.sum_low, .high = result.sum_high}}, payload.data());
  payload.insert(payload.end(), blocks.begin(), blocks.end());
  delta::append_seal(payload);
  return payload;
}

Result<PayloadPlaces> find_places(const DeltaSpec& spec, std::uint64_t elements, Bytes payload) {
  FRESHET_ASSIGN(const delta::OpenedPayload opened, delta::open_payload(payload));
  const DeltaInfo& info = opened.head.info;
  if (info.base != spec.base || info.target != spec.target || info.dtype != spec.dtype || info.elements != elements) {
    return fail(Code::failed_precondition,
                format("the element delta leads {} elements of {} from {} to {}; wanted: {} of {} from {} to {}",
                       info.elements, name_of(info.dtype), to_string(info.base), to_string(info.target), elements,
                       name_of(spec.dtype), to_string(spec.base), to_string(spec.target)));
  }
  PayloadPlaces found{.info = info,
                      .blocks_offset = delta::kHeadBytes,
                      .blocks_bytes = opened.blocks.size(),
                      .places = {},
                      .sum_low = opened.head.sum.low,
                      .sum_high = opened.head.sum.high};
  Bytes in = opened.blocks;
  std::uint64_t first_element = 0;
  while (first_element < elements) {
    found.places.push_back({.offset = opened.blocks.size() - in.size(), .first_element = first_element});
    FRESHET_ASSIGN(const delta::BlockHead block, delta::take_block_head(in, elements - first_element));
    if (block.elements > kChunkElementsMax) {
      return fail(Code::unsupported, format("an element delta has a block of {} elements; a device takes {}",
                                            block.elements, kChunkElementsMax));
    }
    if (block.changed > 0) FRESHET_TRY(skip_raw_planes(in, block, word_bytes_of(spec.dtype)));
    first_element += block.elements;
  }
  if (!in.empty()) return fail(Code::corrupt, format("an element delta has {} bytes behind its end", in.size()));
  return found;
}

Status check_applied(const PayloadPlaces& payload, const ApplyResult& result) {
  switch (static_cast<ApplyError>(result.error)) {
    case ApplyError::kNone: break;
    case ApplyError::kForm:
      return fail(Code::unsupported, "an element delta has planes or blocks that a device does not apply");
    case ApplyError::kTable: return fail(Code::corrupt, "an element delta's table of blocks does not fit its blocks");
    case ApplyError::kHead: return fail(Code::corrupt, "the numbers of an element delta's block do not fit each other");
    case ApplyError::kPlaces:
      return fail(Code::corrupt, "an element delta's gaps do not lead to as many places inside of their block");
    default: return fail(Code::corrupt, format("applying an element delta gave the error word {}", result.error));
  }
  if (result.changed != payload.info.changed_elements) {
    return fail(Code::corrupt, format("an element delta's blocks change {} elements, its head says {}", result.changed,
                                      payload.info.changed_elements));
  }
  if (result.sum_low != payload.sum_low || result.sum_high != payload.sum_high) {
    return fail(Code::corrupt, format("an element delta's {} changes do not lead from {} to {}", result.changed,
                                      to_string(payload.info.base), to_string(payload.info.target)));
  }
  return {};
}

}  // namespace freshet::gpu
