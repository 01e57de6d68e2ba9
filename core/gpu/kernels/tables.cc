// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/tables.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"

namespace freshet::gpu {
namespace {

template <typename Row, typename TilesOfRow>
std::uint64_t number_rows(std::span<Row> rows, TilesOfRow tiles_of_row) {
  std::uint64_t tiles = 0;
  for (Row& row : rows) {
    row.first_tile = tiles;
    tiles += tiles_of_row(row);
  }
  return tiles;
}

static_assert(kDigestPartSize == kDigestPartBytes);

std::uint64_t tiles_of(std::uint64_t size, std::uint64_t tile) { return size / tile + (size % tile != 0 ? 1 : 0); }

}  // namespace

std::uint64_t number_tiles(std::span<CopyTensor> tensors) {
  return number_rows(tensors, [](const CopyTensor& tensor) { return tiles_of(tensor.bytes, kCopyTileBytes); });
}

std::uint64_t number_tiles(std::span<DigestPart> parts) {
  return number_rows(parts, [](const DigestPart& part) { return tiles_of(part.length, kDigestBlockBytes); });
}

std::uint64_t number_tiles(std::span<PackTensor> tensors) {
  return number_rows(tensors, [](const PackTensor& tensor) {
    return tiles_of(tensor.elements.count, chunk_elements(tensor.elements.width));
  });
}

std::uint64_t number_tiles(std::span<ApplyTensor> tensors, std::span<const std::uint64_t> blocks) {
  FRESHET_CHECK(tensors.size() == blocks.size());
  const std::uint64_t* next = blocks.data();
  return number_rows(tensors, [&next](const ApplyTensor&) { return *next++; });
}

void DigestPlan::add(const std::uint8_t* bytes, std::uint64_t length) {
  first_parts_.push_back(parts_.size());
  first_tiles_.push_back(tiles_);
  std::uint64_t at = 0;
  do {
    const std::uint64_t part = std::min(length - at, kDigestPartBytes);
    if (part > kDigestHostBytesMax) {
      parts_.push_back({.is_device = true, .index = device_parts_.size()});
      device_parts_.push_back({.bytes = bytes + at, .length = part, .first_tile = tiles_});
      tiles_ += tiles_of(part, kDigestBlockBytes);
    } else {
      parts_.push_back({.is_device = false, .index = host_parts_.size()});
      host_parts_.push_back({.bytes = bytes + at, .length = part});
    }
    at += part;
  } while (at < length);
}

Digest DigestPlan::digest_of(std::uint64_t tensor, std::span<const std::uint64_t> device_digests,
                             std::span<const Digest> host_digests) const {
  FRESHET_CHECK(tensor < tensors() && device_digests.size() == 2 * device_parts_.size() &&
                host_digests.size() == host_parts_.size());
  const std::uint64_t begin = first_parts_[tensor];
  const std::uint64_t end = tensor + 1 < tensors() ? first_parts_[tensor + 1] : parts_.size();
  std::vector<std::byte> digests;
  Digest digest;
  for (std::uint64_t i = begin; i < end; ++i) {
    const Part& part = parts_[i];
    digest = part.is_device ? Digest{device_digests[2 * part.index], device_digests[2 * part.index + 1]}
                            : host_digests[part.index];
    append_little_endian(digests, digest.low);
    append_little_endian(digests, digest.high);
  }
  return end - begin == 1 ? digest : plain_xxh3_of(digests);
}

}  // namespace freshet::gpu
