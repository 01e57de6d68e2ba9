// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/door_frame.h"

#include "core/base/check.h"

namespace freshet::shm {
namespace {

constexpr std::uint64_t kKnockMagic = 0x31304B434F4E4B46;   // "FKNOCK01", first byte lowest.
constexpr std::uint64_t kSlabMagic = 0x313042414C535246;    // "FRSLAB01".
constexpr std::uint64_t kDeviceMagic = 0x3130435644535246;  // "FRSDVC01".

void put_word(std::vector<std::byte>& to, std::uint64_t word) {
  for (int i = 0; i < 8; ++i) to.push_back(static_cast<std::byte>(word >> (8 * i)));
}

std::uint64_t word_at(Bytes bytes, std::size_t index) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i) word |= static_cast<std::uint64_t>(bytes[8 * index + i]) << (8 * i);
  return word;
}

}  // namespace

std::vector<std::byte> encode(const Knock& knock) {
  std::vector<std::byte> bytes;
  bytes.reserve(kKnockBytes);
  put_word(bytes, kKnockMagic);
  put_word(bytes, knock.session);
  put_word(bytes, knock.token);
  return bytes;
}

std::vector<std::byte> encode(const SlabFrame& frame) {
  FRESHET_CHECK(frame.slab_bytes.size() <= kSlabsPerFrameMax);
  std::vector<std::byte> bytes;
  bytes.reserve((3 + frame.slab_bytes.size()) * 8);
  put_word(bytes, frame.is_on_device ? kDeviceMagic : kSlabMagic);
  put_word(bytes, frame.first_slab);
  put_word(bytes, frame.slab_bytes.size());
  for (const std::uint64_t slab : frame.slab_bytes) put_word(bytes, slab);
  return bytes;
}

Result<Knock> decode_knock(Bytes bytes) {
  if (bytes.size() != kKnockBytes || word_at(bytes, 0) != kKnockMagic) {
    return fail(Code::corrupt, "a door's handshake is malformed");
  }
  return Knock{.session = word_at(bytes, 1), .token = word_at(bytes, 2)};
}

Result<SlabFrame> decode_slab_frame(Bytes bytes) {
  const auto bad = [] { return fail(Code::corrupt, "a door's frame is malformed"); };
  if (bytes.size() < 3 * 8 || bytes.size() > kSlabFrameBytesMax || bytes.size() % 8 != 0) return bad();
  const std::uint64_t count = word_at(bytes, 2);
  const bool is_on_device = word_at(bytes, 0) == kDeviceMagic;
  if (!is_on_device && word_at(bytes, 0) != kSlabMagic) return bad();
  if (count != bytes.size() / 8 - 3) return bad();
  SlabFrame frame{.first_slab = word_at(bytes, 1), .slab_bytes = {}, .is_on_device = is_on_device};
  if (frame.first_slab > kDoorSlabsMax || frame.first_slab + count > kDoorSlabsMax) return bad();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t slab = word_at(bytes, 3 + i);
    if (slab == 0 || slab > std::uint64_t{1} << 50) return bad();
    frame.slab_bytes.push_back(slab);
  }
  return frame;
}

}  // namespace freshet::shm
