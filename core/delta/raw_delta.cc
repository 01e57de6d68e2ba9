// SPDX-License-Identifier: Apache-2.0
#include "core/delta/raw_delta.h"

#include <algorithm>
#include <new>

#include "core/base/bytes.h"
#include "core/base/format.h"
#include "core/delta/payload.h"
#include "core/delta/planes.h"

namespace freshet {
namespace delta {
namespace {

/// The changes of one block of the payload, as bytes.
struct RawBlock {
  BlockHead head;
  std::vector<std::byte> gaps;
  std::vector<std::vector<std::byte>> planes;

  Status read(Bytes& in, PlaneUnpacker& unpacker, std::uint64_t elements_left) {
    FRESHET_ASSIGN(head, take_block_head(in, elements_left));
    if (head.changed == 0) return {};
    gaps.resize(head.gap_bytes);
    FRESHET_TRY(unpacker.unpack(in, gaps));
    for (auto& plane : planes) {
      plane.resize(head.changed);
      FRESHET_TRY(unpacker.unpack(in, plane));
    }
    return {};
  }
};

void append_raw_plane(std::vector<std::byte>& out, Bytes plane) {
  out.push_back(std::byte{0});
  append_little_endian(out, static_cast<std::uint32_t>(plane.size()));
  out.insert(out.end(), plane.begin(), plane.end());
}

/// Cuts a block of changes into blocks of fewer elements.
class BlockCutter {
 public:
  BlockCutter(const RawBlock& from, std::uint32_t elements_max, std::vector<std::byte>& out)
      : from_(from), elements_max_(elements_max), out_(out) {}

  Status cut() {
    const std::uint32_t elements = from_.head.elements;
    std::uint64_t next = 0;  // The first element that no gap has passed yet.
    for (std::uint32_t i = 0; i < (from_.head.changed == 0 ? 0 : from_.head.gap_bytes); ++i) {
      const auto gap = static_cast<std::uint32_t>(from_.gaps[i]);
      next += gap;
      if (gap == kGapEscape) continue;
      if (next >= elements || taken_ == from_.head.changed) return fail_gaps();
      while (next >= begin_ + elements_max_) end_block(elements_max_);
      for (; next - behind_ >= kGapEscape; behind_ += kGapEscape) gaps_.push_back(std::byte{kGapEscape});
      gaps_.push_back(static_cast<std::byte>(next - behind_));
      behind_ = ++next;
      ++taken_;
    }
    const bool ends_amid = from_.head.changed > 0 && from_.gaps.back() == std::byte{kGapEscape};
    if (taken_ != from_.head.changed || ends_amid) return fail_gaps();
    while (begin_ < elements) {
      end_block(static_cast<std::uint32_t>(std::min<std::uint64_t>(elements_max_, elements - begin_)));
    }
    return {};
  }

 private:
  Status fail_gaps() const {
    return fail(Code::corrupt, format("an element delta's gaps do not lead to {} changes in {} elements",
                                      from_.head.changed, from_.head.elements));
  }

  void end_block(std::uint32_t elements) {
    const std::uint32_t changed = taken_ - ended_;
    append_block_head({.elements = elements, .changed = changed, .gap_bytes = static_cast<std::uint32_t>(gaps_.size())},
                      out_);
    if (changed > 0) {
      append_raw_plane(out_, gaps_);
      for (const auto& plane : from_.planes) append_raw_plane(out_, Bytes(plane).subspan(ended_, changed));
    }
    gaps_.clear();
    ended_ = taken_;
    begin_ += elements;
    behind_ = begin_;
  }

  const RawBlock& from_;
  const std::uint32_t elements_max_;
  std::vector<std::byte>& out_;
  std::vector<std::byte> gaps_;  ///< Of the block that is made.
  std::uint64_t begin_ = 0;      ///< Where it begins.
  std::uint64_t behind_ = 0;     ///< Behind its last change.
  std::uint32_t taken_ = 0;      ///< Changes, of all blocks.
  std::uint32_t ended_ = 0;      ///< Of the blocks before.
};

Result<std::vector<std::byte>> make_raw(Bytes payload, std::uint32_t elements_max) {
  FRESHET_ASSIGN(const OpenedPayload opened, open_payload(payload));
  const DeltaInfo& info = opened.head.info;
  std::vector<std::byte> out(kHeadBytes);
  store_head(opened.head, out.data());
  PlaneUnpacker unpacker;
  RawBlock block;
  block.planes.resize(word_bytes_of(info.dtype));
  Bytes in = opened.blocks;
  for (std::uint64_t element = 0; element < info.elements; element += block.head.elements) {
    FRESHET_TRY(block.read(in, unpacker, info.elements - element));
    FRESHET_TRY(BlockCutter(block, elements_max, out).cut());
  }
  if (!in.empty()) return fail(Code::corrupt, format("an element delta has {} bytes behind its end", in.size()));
  append_seal(out);
  return out;
}

}  // namespace
}  // namespace delta

Result<std::vector<std::byte>> raw_delta(Bytes payload, std::uint32_t block_elements_max) {
  try {
    return delta::make_raw(payload, block_elements_max);
  } catch (const std::bad_alloc&) {
    return fail(Code::out_of_space, "no memory to unpack an element delta");
  }
}

}  // namespace freshet
