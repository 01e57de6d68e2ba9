// SPDX-License-Identifier: Apache-2.0
#include "core/delta/payload.h"

#include <array>

#include "core/base/bytes.h"
#include "core/base/digest.h"
#include "core/base/format.h"

namespace freshet::delta {
namespace {

constexpr std::uint32_t kMagic = 0x44455246;  // "FRED"
constexpr std::uint8_t kFormat = 1;

constexpr std::size_t kNameBytes = 36;
constexpr std::size_t kBaseAt = 8;
constexpr std::size_t kTargetAt = kBaseAt + kNameBytes;
constexpr std::size_t kElementsAt = kTargetAt + kNameBytes;
constexpr std::size_t kChangedAt = kElementsAt + 8;
constexpr std::size_t kSumAt = kChangedAt + 8;
static_assert(kSumAt + 16 == kHeadBytes);

void store_name(const SegmentName& name, std::byte* to) {
  store_little_endian(to, name.writer.run.high);
  store_little_endian(to + 8, name.writer.run.low);
  store_little_endian(to + 16, name.writer.incarnation);
  store_little_endian(to + 24, name.writer.sequence);
  store_little_endian(to + 32, name.tensor);
}

SegmentName load_name(const std::byte* from) {
  const VersionId writer{
      .run = {.high = load_little_endian<std::uint64_t>(from), .low = load_little_endian<std::uint64_t>(from + 8)},
      .incarnation = load_little_endian<std::uint64_t>(from + 16),
      .sequence = load_little_endian<std::uint64_t>(from + 24)};
  return {.writer = writer, .tensor = load_little_endian<std::uint32_t>(from + 32)};
}

Result<Head> load_head(const std::byte* from) {
  if (load_little_endian<std::uint32_t>(from) != kMagic)
    return fail(Code::corrupt, "these bytes are not an element delta");
  const auto format_version = static_cast<std::uint8_t>(from[4]);
  if (format_version != kFormat) {
    return fail(Code::unsupported,
                format("the element delta has format version {}; this build reads {}", format_version, kFormat));
  }
  const auto dtype = static_cast<std::uint8_t>(from[5]);
  if (from[6] != std::byte{0} || from[7] != std::byte{0}) {
    return fail(Code::corrupt, "an element delta's head has unknown flags");
  }
  if (dtype >= kDTypeCount) {
    return fail(Code::unsupported, format("an element delta has dtype {}, which a newer Freshet may know", dtype));
  }
  Head head{.info = {.base = load_name(from + kBaseAt),
                     .target = load_name(from + kTargetAt),
                     .dtype = static_cast<DType>(dtype),
                     .elements = load_little_endian<std::uint64_t>(from + kElementsAt),
                     .changed_elements = load_little_endian<std::uint64_t>(from + kChangedAt)},
            .sum = {.low = load_little_endian<std::uint64_t>(from + kSumAt),
                    .high = load_little_endian<std::uint64_t>(from + kSumAt + 8)}};
  if (head.info.changed_elements > head.info.elements) {
    return fail(Code::corrupt,
                format("an element delta changes {} of {} elements", head.info.changed_elements, head.info.elements));
  }
  return head;
}

}  // namespace

void store_head(const Head& head, std::byte* to) {
  store_little_endian(to, kMagic);
  to[4] = static_cast<std::byte>(kFormat);
  to[5] = static_cast<std::byte>(head.info.dtype);
  to[6] = to[7] = std::byte{0};
  store_name(head.info.base, to + kBaseAt);
  store_name(head.info.target, to + kTargetAt);
  store_little_endian(to + kElementsAt, head.info.elements);
  store_little_endian(to + kChangedAt, head.info.changed_elements);
  store_little_endian(to + kSumAt, head.sum.low);
  store_little_endian(to + kSumAt + 8, head.sum.high);
}

void append_seal(std::vector<std::byte>& payload) {
  const Digest digest = digest_of(payload);
  append_little_endian(payload, digest.low);
  append_little_endian(payload, digest.high);
}

Result<OpenedPayload> open_payload(Bytes payload) {
  if (payload.size() < kHeadBytes + kSealBytes) {
    return fail(Code::corrupt, format("an element delta is truncated: {} bytes", payload.size()));
  }
  const Bytes content = payload.first(payload.size() - kSealBytes);
  const std::byte* const seal = payload.data() + content.size();
  const Digest digest{.low = load_little_endian<std::uint64_t>(seal),
                      .high = load_little_endian<std::uint64_t>(seal + 8)};
  if (digest_of(content) != digest) {
    return fail(Code::corrupt, format("an element delta of {} bytes does not match its own digest", payload.size()));
  }
  FRESHET_ASSIGN(const Head head, load_head(content.data()));
  return OpenedPayload{.head = head, .blocks = content.subspan(kHeadBytes)};
}

void append_block_head(const BlockHead& block, std::vector<std::byte>& out) {
  append_little_endian(out, block.elements);
  append_little_endian(out, block.changed);
  append_little_endian(out, block.gap_bytes);
}

Result<BlockHead> take_block_head(Bytes& in, std::uint64_t elements_left) {
  if (in.size() < kBlockHeadBytes) return fail(Code::corrupt, "an element delta's block is cut off");
  const BlockHead block{.elements = load_little_endian<std::uint32_t>(in.data()),
                        .changed = load_little_endian<std::uint32_t>(in.data() + 4),
                        .gap_bytes = load_little_endian<std::uint32_t>(in.data() + 8)};
  in = in.subspan(kBlockHeadBytes);
  const bool has_size = block.elements > 0 && block.elements <= kBlockElementsMax && block.elements <= elements_left;
  const bool has_changes = block.changed <= kBlockChangesMax && block.changed <= block.elements;
  const std::uint32_t gap_bytes_max = block.changed == 0 ? 0 : block.changed + block.elements / kGapEscape;
  if (!has_size || !has_changes || block.gap_bytes < block.changed || block.gap_bytes > gap_bytes_max) {
    return fail(Code::corrupt, format("an element delta's block of {} elements ({} left) has {} changes in {} gaps",
                                      block.elements, elements_left, block.changed, block.gap_bytes));
  }
  return block;
}

DeltaSum sum_key(const DeltaSpec& spec, std::uint64_t elements) {
  std::array<std::byte, kHeadBytes> head{};
  store_head({.info = {.base = spec.base, .target = spec.target, .dtype = spec.dtype, .elements = elements}, .sum = {}},
             head.data());
  const Digest digest = digest_of(head);
  return {.low = digest.low, .high = digest.high};
}

}  // namespace freshet::delta
