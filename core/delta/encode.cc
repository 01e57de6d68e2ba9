// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <new>

#include "core/base/check.h"
#include "core/delta/element_delta.h"
#include "core/delta/kernels.h"
#include "core/delta/payload.h"
#include "core/delta/planes.h"

namespace freshet {
namespace delta {
namespace {

/// The scan looks at so many bytes of each side at a time: both, and what is made of them, stay in the nearest caches
/// until the changes have been taken from them.
constexpr std::size_t kScanBytes = std::size_t{1} << 15;

/// One thread's working memory.
struct EncoderMemory {
  std::array<std::uint32_t, kScanBytes + kPlacesSlack> places;
  std::array<std::byte, kGapBytesMax> gaps;
  std::array<std::array<std::byte, kBlockChangesMax>, kWidthMax> planes;
  ChangeBatch batch;
  PlanePacker packer;
};

EncoderMemory& encoder_memory() {
  thread_local const std::unique_ptr<EncoderMemory> memory(new EncoderMemory);
  return *memory;
}

/// Goes over both sides from front to back, collects changes in a block, and appends the block to the payload when it
/// is full.
class Encoder {
 public:
  Encoder(const DeltaSpec& spec, Bytes base, Bytes target, std::uint64_t bytes_max, VectorLevel level)
      : spec_(spec),
        base_(base),
        target_(target),
        bytes_max_(bytes_max),
        width_(word_bytes_of(spec.dtype)),
        elements_(base.size() / width_),
        kernels_(kernels_of(spec.dtype, level)),
        key_(sum_key(spec, elements_)),
        memory_(encoder_memory()) {}

  std::optional<std::vector<std::byte>> run() {
    payload_.resize(kHeadBytes);
    const std::size_t scan_elements = kScanBytes / width_;
    for (std::uint64_t at = 0; at < elements_; at += scan_elements) {
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(scan_elements, elements_ - at));
      if (changed_ + count > kBlockChangesMax || block_elements_ + count > kBlockElementsMax) end_block();
      if (payload_.size() + kSealBytes > bytes_max_) return std::nullopt;
      scan(count);
    }
    if (block_elements_ > 0) end_block();
    const DeltaInfo info{.base = spec_.base,
                         .target = spec_.target,
                         .dtype = spec_.dtype,
                         .elements = elements_,
                         .changed_elements = changed_before_};
    store_head({.info = info, .sum = sum_}, payload_.data());
    append_seal(payload_);
    if (payload_.size() > bytes_max_) return std::nullopt;
    return std::move(payload_);
  }

 private:
  /// Takes the next `count` elements into the block.
  void scan(std::uint32_t count) {
    const std::byte* const base = base_.data() + block_start_ * width_;
    const std::byte* const target = target_.data() + block_start_ * width_;
    const std::size_t skipped = block_elements_ * width_;
    const std::size_t found =
        kernels_.find(base + skipped, target + skipped, count, block_elements_, memory_.places.data());
    block_elements_ += count;
    for (std::size_t at = 0; at < found; at += kBatch) {
      const std::size_t batch = std::min(kBatch, found - at);
      const std::uint32_t* const places = memory_.places.data() + at;
      append_gaps(places, batch);
      PlanesOut planes{};
      for (std::size_t plane = 0; plane < width_; ++plane) planes[plane] = memory_.planes[plane].data() + changed_;
      kernels_.difference(base, target, places, batch, planes, memory_.batch);
      const DeltaSum sum = kernels_.sum(key_, block_start_, places, batch, memory_.batch);
      sum_.low += sum.low;
      sum_.high += sum.high;
      changed_ += static_cast<std::uint32_t>(batch);
    }
  }

  void append_gaps(const std::uint32_t* places, std::size_t count) {
    std::byte* out = memory_.gaps.data() + gap_bytes_;
    std::uint32_t next = next_place_;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t gap = places[i] - next;
      for (; gap >= kGapEscape; gap -= kGapEscape) *out++ = static_cast<std::byte>(kGapEscape);
      *out++ = static_cast<std::byte>(gap);
      next = places[i] + 1;
    }
    next_place_ = next;
    gap_bytes_ = static_cast<std::uint32_t>(out - memory_.gaps.data());
  }

  void end_block() {
    append_block_head({.elements = block_elements_, .changed = changed_, .gap_bytes = gap_bytes_}, payload_);
    if (changed_ > 0) {
      memory_.packer.pack(Bytes(memory_.gaps.data(), gap_bytes_), payload_);
      for (std::size_t plane = 0; plane < width_; ++plane) {
        memory_.packer.pack(Bytes(memory_.planes[plane].data(), changed_), payload_);
      }
    }
    block_start_ += block_elements_;
    changed_before_ += changed_;
    block_elements_ = changed_ = gap_bytes_ = next_place_ = 0;
    reserve();
  }

  /// As much as the rest needs if it is like what was, and an eighth more, so that the payload is hardly ever moved.
  void reserve() {
    if (block_start_ == elements_ || payload_.capacity() > payload_.size() + kBlockChangesMax * (width_ + 1)) return;
    const double per_element = static_cast<double>(payload_.size()) / static_cast<double>(block_start_);
    const double whole = 1.125 * per_element * static_cast<double>(elements_) + kBlockChangesMax * (width_ + 1);
    payload_.reserve(static_cast<std::size_t>(std::min(whole, static_cast<double>(elements_ * width_ + kScanBytes))));
  }

  const DeltaSpec& spec_;
  const Bytes base_;
  const Bytes target_;
  const std::uint64_t bytes_max_;
  const std::size_t width_;
  const std::uint64_t elements_;
  const Kernels& kernels_;
  const DeltaSum key_;
  EncoderMemory& memory_;

  std::vector<std::byte> payload_;
  DeltaSum sum_;
  std::uint64_t changed_before_ = 0;  ///< In blocks that are done.
  std::uint64_t block_start_ = 0;
  std::uint32_t block_elements_ = 0;
  std::uint32_t changed_ = 0;  ///< In this block, as are those below.
  std::uint32_t gap_bytes_ = 0;
  std::uint32_t next_place_ = 0;  ///< Behind the last change.
};

}  // namespace
}  // namespace delta

std::optional<std::vector<std::byte>> encode_delta(const DeltaSpec& spec, Bytes base, Bytes target,
                                                   std::uint64_t bytes_max, VectorLevel level) {
  FRESHET_CHECK(base.size() == target.size() && base.size() % word_bytes_of(spec.dtype) == 0);
  try {
    return delta::Encoder(spec, base, target, bytes_max, level).run();
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace freshet
