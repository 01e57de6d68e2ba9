// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <new>

#include "core/base/format.h"
#include "core/delta/element_delta.h"
#include "core/delta/kernels.h"
#include "core/delta/payload.h"
#include "core/delta/planes.h"

namespace freshet {
namespace delta {
namespace {

/// One thread's working memory.
struct DecoderMemory {
  std::array<std::byte, kGapBytesMax> gaps;
  std::array<std::uint32_t, kGapBytesMax + kPlacesAhead> places;
  std::array<std::array<std::byte, kBlockChangesMax>, kWidthMax> planes;
  ChangeBatch batch;
  PlaneUnpacker unpacker;
};

DecoderMemory& decoder_memory() {
  thread_local const std::unique_ptr<DecoderMemory> memory(new DecoderMemory);
  return *memory;
}

class Decoder {
 public:
  Decoder(const DeltaSpec& spec, MutableBytes memory, bool reverse, VectorLevel level)
      : target_(memory),
        reverse_(reverse),
        width_(word_bytes_of(spec.dtype)),
        elements_(memory.size() / width_),
        kernels_(kernels_of(spec.dtype, level)),
        key_(sum_key(spec, elements_)),
        memory_(decoder_memory()) {}

  Status run(const OpenedPayload& payload) {
    Bytes in = payload.blocks;
    while (block_start_ < elements_) {
      FRESHET_ASSIGN(const BlockHead block, take_block_head(in, elements_ - block_start_));
      if (block.changed > 0) {
        FRESHET_TRY(take_places(in, block));
        FRESHET_TRY(take_planes(in, block));
        change(block);
      }
      block_start_ += block.elements;
      changed_ += block.changed;
    }
    if (!in.empty()) return fail(Code::corrupt, format("an element delta has {} bytes behind its end", in.size()));
    if (changed_ != payload.head.info.changed_elements) {
      return fail(Code::corrupt, format("an element delta's blocks change {} elements, its head says {}", changed_,
                                        payload.head.info.changed_elements));
    }
    return check_sum(payload.head.sum);
  }

 private:
  /// Reads the gaps and adds them up. Places grow, so that the last one lies in the block says it of all.
  Status take_places(Bytes& in, const BlockHead& block) {
    FRESHET_TRY(memory_.unpacker.unpack(in, MutableBytes(memory_.gaps.data(), block.gap_bytes)));
    std::uint32_t* const places = memory_.places.data();
    std::uint32_t next = 0;
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < block.gap_bytes; ++i) {
      const auto gap = static_cast<std::uint32_t>(memory_.gaps[i]);
      const bool is_change = gap != kGapEscape;
      places[count] = next + gap;
      count += is_change;
      next += gap + is_change;
    }
    if (count != block.changed || memory_.gaps[block.gap_bytes - 1] == std::byte{kGapEscape} ||
        places[count - 1] >= block.elements) {
      return fail(Code::corrupt, format("an element delta's gaps lead to {} changes up to {}, not {} in {} elements",
                                        count, next, block.changed, block.elements));
    }
    std::fill_n(places + count, kPlacesAhead, places[count - 1]);
    return {};
  }

  Status take_planes(Bytes& in, const BlockHead& block) {
    for (std::size_t plane = 0; plane < width_; ++plane) {
      FRESHET_TRY(memory_.unpacker.unpack(in, MutableBytes(memory_.planes[plane].data(), block.changed)));
    }
    return {};
  }

  void change(const BlockHead& block) {
    std::byte* const start = target_.data() + block_start_ * width_;
    for (std::size_t at = 0; at < block.changed; at += kBatch) {
      const std::size_t count = std::min<std::size_t>(kBatch, block.changed - at);
      const std::uint32_t* const places = memory_.places.data() + at;
      PlanesIn planes{};
      for (std::size_t plane = 0; plane < width_; ++plane) planes[plane] = memory_.planes[plane].data() + at;
      kernels_.change(start, places, count, planes, reverse_, memory_.batch);
      const DeltaSum sum = kernels_.sum(key_, block_start_, places, count, memory_.batch);
      sum_.low += sum.low;
      sum_.high += sum.high;
    }
  }

  /// Backwards, old and new change places, and the sum its sign.
  Status check_sum(const DeltaSum& promised) const {
    const DeltaSum seen = reverse_ ? DeltaSum{.low = 0 - sum_.low, .high = 0 - sum_.high} : sum_;
    if (seen == promised) return {};
    return fail(Code::corrupt, format("an element delta's {} changes do not lead from {} to {}", changed_,
                                      reverse_ ? "its target" : "its base", reverse_ ? "its base" : "its target"));
  }

  const MutableBytes target_;
  const bool reverse_;
  const std::size_t width_;
  const std::uint64_t elements_;
  const Kernels& kernels_;
  const DeltaSum key_;
  DecoderMemory& memory_;

  DeltaSum sum_;
  std::uint64_t changed_ = 0;
  std::uint64_t block_start_ = 0;
};

std::string describe(const DeltaSpec& spec) {
  return format("{} from {} to {}", name_of(spec.dtype), to_string(spec.base), to_string(spec.target));
}

Status check_fits(const DeltaSpec& spec, const DeltaInfo& info, std::uint64_t memory_bytes) {
  if (info.base != spec.base || info.target != spec.target || info.dtype != spec.dtype) {
    return fail(Code::failed_precondition,
                format("the element delta leads {}, wanted {}",
                       describe({.dtype = info.dtype, .base = info.base, .target = info.target}), describe(spec)));
  }
  const std::uint64_t width = word_bytes_of(spec.dtype);
  if (memory_bytes % width != 0 || memory_bytes / width != info.elements) {
    return fail(Code::failed_precondition,
                format("the element delta is for {} elements of {} bytes, the memory has {} bytes", info.elements,
                       width, memory_bytes));
  }
  return {};
}

Result<DeltaInfo> change_memory(const DeltaSpec& spec, Bytes payload, MutableBytes memory, bool reverse,
                                VectorLevel level) {
  FRESHET_ASSIGN(const OpenedPayload opened, open_payload(payload));
  FRESHET_TRY(check_fits(spec, opened.head.info, memory.size()));
  try {
    FRESHET_TRY(Decoder(spec, memory, reverse, level).run(opened));
  } catch (const std::bad_alloc&) {
    return fail(Code::out_of_space, "no memory to apply an element delta");
  }
  return opened.head.info;
}

}  // namespace
}  // namespace delta

Result<DeltaInfo> read_delta_info(Bytes payload) {
  FRESHET_ASSIGN(const delta::OpenedPayload opened, delta::open_payload(payload));
  return opened.head.info;
}

Result<DeltaInfo> apply_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory, VectorLevel level) {
  return delta::change_memory(spec, payload, memory, false, level);
}
Result<DeltaInfo> revert_delta(const DeltaSpec& spec, Bytes payload, MutableBytes memory, VectorLevel level) {
  return delta::change_memory(spec, payload, memory, true, level);
}

}  // namespace freshet
