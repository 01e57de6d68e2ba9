// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/delta_elements.h"
#include "core/gpu/kernels/delta_kernels.h"
#include "core/gpu/kernels/digest_blocks.h"
#include "core/gpu/kernels/words.h"

namespace freshet::gpu {

constexpr std::uint32_t kVectorBytes = 16;
constexpr std::uint32_t kVectorsMax = kChunkBytesMax / kVectorBytes;

struct PackRoom {
  BlockRoom block;
  std::uint64_t tile;
  std::uint64_t offset;
  std::uint32_t changes_of_warps[kDeltaThreadsMax / 32];
  std::uint16_t changed[kVectorsMax];       ///< For each vector, which of its elements changed.
  std::uint16_t places[kChunkElementsMax];  ///< Of the changes, in order.
};

struct Chunk {
  const std::uint8_t* base;
  const std::uint8_t* target;
  std::uint8_t* fresh;
  std::uint32_t bytes;
  bool is_aligned;
};

/// 16 bytes, or as many as the chunk has left; zeros behind them.
FRESHET_DEVICE Words load_vector(const std::uint8_t* from, std::uint32_t bytes, bool is_aligned) {
  if (is_aligned && bytes >= kVectorBytes) return load<Words>(from);
  std::uint32_t words[4];
  FRESHET_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t left = bytes > 4 * i ? bytes - 4 * i : 0;
    words[i] = static_cast<std::uint32_t>(load_bytes(from + 4 * i, left < 4 ? left : 4));
  }
  return {words[0], words[1], words[2], words[3]};
}

FRESHET_DEVICE void store_vector(std::uint8_t* to, std::uint32_t bytes, bool is_aligned, const Words& vector) {
  if (is_aligned && bytes >= kVectorBytes) {
    store(to, vector);
    return;
  }
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  FRESHET_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t left = bytes > 4 * i ? bytes - 4 * i : 0;
    for (std::uint32_t byte = 0; byte < 4 && byte < left; ++byte) {
      to[4 * i + byte] = static_cast<std::uint8_t>(words[i] >> (8 * byte));
    }
  }
}

/// Bit i: element i of the vectors differs.
FRESHET_DEVICE std::uint32_t changes_of(const Words& a, const Words& b, std::uint32_t width) {
  const std::uint32_t apart[4] = {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w};
  std::uint32_t changes = 0;
  FRESHET_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t word = apart[i];
    if (width == 1) {
      const std::uint32_t bits = ((word & 0xFF) != 0 ? 1 : 0) | ((word & 0xFF00) != 0 ? 2 : 0) |
                                 ((word & 0xFF0000) != 0 ? 4 : 0) | ((word & 0xFF000000) != 0 ? 8 : 0);
      changes |= bits << (4 * i);
    } else if (width == 2) {
      changes |= (((word & 0xFFFF) != 0 ? 1U : 0U) | ((word & 0xFFFF0000) != 0 ? 2U : 0U)) << (2 * i);
    } else if (width == 4) {
      changes |= (word != 0 ? 1U : 0U) << i;
    } else {
      changes |= (word != 0 ? 1U : 0U) << (i / 2);
    }
  }
  return changes;
}

/// The vectors of a warp's rows, of which each has 32. Rows follow each other, and so do warps.
struct Rows {
  std::uint32_t begin, end;
};
FRESHET_DEVICE Rows rows_of_warp(std::uint32_t chunk_bytes) {
  const std::uint32_t rows = (chunk_bytes + 32 * kVectorBytes - 1) / (32 * kVectorBytes);
  const std::uint32_t each = (rows + warps() - 1) / warps();
  const std::uint32_t begin = warp() * each;
  return {begin < rows ? begin : rows, begin + each < rows ? begin + each : rows};
}

/// Copies, compares, and writes down which elements changed. Returns how many did.
FRESHET_DEVICE std::uint32_t find_changes(PackRoom& room, const Chunk& chunk, std::uint32_t width) {
  constexpr std::uint32_t kAtOnce = 4;
  const Rows rows = rows_of_warp(chunk.bytes);
  std::uint32_t count = 0;
  for (std::uint32_t first = rows.begin; first < rows.end; first += kAtOnce) {
    Words old_vectors[kAtOnce];
    Words new_vectors[kAtOnce];
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      const std::uint32_t at = ((first + i) * 32 + lane()) * kVectorBytes;
      old_vectors[i] = new_vectors[i] = Words{0, 0, 0, 0};
      if (first + i >= rows.end || at >= chunk.bytes) continue;
      old_vectors[i] = load_vector(chunk.base + at, chunk.bytes - at, chunk.is_aligned);
      new_vectors[i] = load_vector(chunk.target + at, chunk.bytes - at, chunk.is_aligned);
    }
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      const std::uint32_t vector = (first + i) * 32 + lane();
      if (first + i >= rows.end) continue;
      const std::uint32_t at = vector * kVectorBytes;
      if (chunk.fresh != nullptr && at < chunk.bytes) {
        store_vector(chunk.fresh + at, chunk.bytes - at, chunk.is_aligned, new_vectors[i]);
      }
      const std::uint32_t changes = changes_of(old_vectors[i], new_vectors[i], width);
      room.changed[vector] = static_cast<std::uint16_t>(changes);
      count += count_bits(changes);
    }
  }
  const std::uint32_t of_warp = sum_of_warp(count);
  if (lane() == 0) room.changes_of_warps[warp()] = of_warp;
  sync_block();
  std::uint32_t all = 0;
  for (std::uint32_t i = 0; i < warps(); ++i) all += room.changes_of_warps[i];
  return all;
}

/// Writes the vectors that changed over those of the base. All threads of the block call it, behind a barrier that is
/// behind the last look at the base.
FRESHET_DEVICE void store_changes(const PackRoom& room, const Chunk& chunk, std::uint8_t* base) {
  for (std::uint32_t vector = thread(); vector * kVectorBytes < chunk.bytes; vector += threads()) {
    if (room.changed[vector] == 0) continue;
    const std::uint32_t at = vector * kVectorBytes;
    const std::uint32_t left = chunk.bytes - at;
    store_vector(base + at, left, chunk.is_aligned, load_vector(chunk.target + at, left, chunk.is_aligned));
  }
}

/// Writes the places of all changes, in order.
FRESHET_DEVICE void write_places(PackRoom& room, std::uint32_t chunk_bytes, std::uint32_t width) {
  const Rows rows = rows_of_warp(chunk_bytes);
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < warp(); ++i) next += room.changes_of_warps[i];
  for (std::uint32_t row = rows.begin; row < rows.end; ++row) {
    const std::uint32_t vector = row * 32 + lane();
    std::uint32_t changes = room.changed[vector];
    if (ballot(changes != 0) == 0) continue;
    const std::uint32_t count = count_bits(changes);
    const std::uint32_t up_to_lane = sum_up_to_lane(count);
    for (std::uint32_t at = next + up_to_lane - count; changes != 0; ++at) {
      room.places[at] = static_cast<std::uint16_t>(vector * (kVectorBytes / width) + lowest_bit(changes));
      changes &= changes - 1;
    }
    next += from_lane(up_to_lane, 31);
  }
}

// A tile's word: nothing yet, its own size, or the size of all of its tensor's tiles up to it. One word that is stored
// whole, so no order of memory is needed beside it.
constexpr std::uint64_t kOwnSize = std::uint64_t{1} << 62;
constexpr std::uint64_t kSizeSoFar = std::uint64_t{2} << 62;
constexpr std::uint64_t kSizeMask = kOwnSize - 1;

/// The size of the tensor's tiles before `tile`; one warp calls it. Each lane waits for one tile. Tiles are begun in
/// their order, so those before this one are done, or another block is at them.
FRESHET_DEVICE std::uint64_t size_before(std::uint64_t* states, std::uint64_t first_tile, std::uint64_t tile) {
  std::uint64_t before = 0;
  while (tile > first_tile) {
    const std::uint64_t back = lane() + 1;
    const bool is_there = tile - first_tile >= back;
    std::uint64_t state = kSizeSoFar;  // Before the first tile lies nothing.
    bool is_known = !is_there;
    while (ballot(!is_known) != 0) {
      if (!is_known) {
        state = atomic_load(states + tile - back);
        is_known = state != 0;
      }
      if (ballot(!is_known) != 0) pause_warp();
    }
    const std::uint32_t ends = ballot((state & kSizeSoFar) != 0);
    const std::uint32_t last = ends == 0 ? 31 : lowest_bit(ends);
    before += sum_of_warp(lane() <= last ? state & kSizeMask : std::uint64_t{0});
    if (ends != 0) return before;
    tile -= 32;
  }
  return before;
}

/// The sums of the chunk's blocks for the target's digest: a warp has every so-manyth block. A chunk lies in one part,
/// and begins with a block. What the host digests has no place for sums.
FRESHET_DEVICE void sum_chunk(const PackTensor& tensor, std::uint64_t first_byte, std::uint32_t chunk_bytes) {
  const std::uint64_t bytes = tensor.elements.count * tensor.elements.width;
  const std::uint64_t part_begin = first_byte / kDigestPartSize * kDigestPartSize;
  const std::uint64_t part = bytes - part_begin < kDigestPartSize ? bytes - part_begin : kDigestPartSize;
  if (part <= kDigestHostBytesMax) return;
  const LaneSecret secret = lane_secret();
  for (std::uint64_t at = warp() * kDigestBlockBytes; at < chunk_bytes; at += warps() * kDigestBlockBytes) {
    const std::uint64_t begin = first_byte + at;
    sum_digest_block(tensor.target + part_begin, part, begin - part_begin, secret,
                     tensor.sums + begin / kDigestBlockBytes * kDigestSumsOfBlock);
  }
}
static_assert(kDigestPartSize % kChunkBytesMax == 0 && kChunkElementsMax % kDigestBlockBytes == 0);

FRESHET_DEVICE void write_number(std::uint8_t* to, std::uint32_t value) {
  for (std::uint32_t i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

/// The gap plane: each thread has changes that follow each other.
struct Gaps {
  std::uint32_t begin, end;  ///< Changes.
  std::uint32_t at;          ///< Where the first one's bytes go in the plane.
  std::uint32_t bytes;       ///< Of the plane.
};

FRESHET_DEVICE std::uint32_t gap_before(const PackRoom& room, std::uint32_t change) {
  return change == 0 ? room.places[0] : room.places[change] - room.places[change - 1] - 1U;
}

FRESHET_DEVICE Gaps measure_gaps(PackRoom& room, std::uint32_t changed) {
  const std::uint32_t each = (changed + threads() - 1) / threads();
  const std::uint32_t begin = thread() * each < changed ? thread() * each : changed;
  const std::uint32_t end = begin + each < changed ? begin + each : changed;
  std::uint32_t escapes = 0;
  for (std::uint32_t i = begin; i < end; ++i) escapes += gap_before(room, i) / kGapEscapeByte;
  const Prefix prefix = prefix_of_block(room.block, escapes);
  return {begin, end, begin + static_cast<std::uint32_t>(prefix.before),
          changed + static_cast<std::uint32_t>(prefix.all)};
}

FRESHET_DEVICE void write_gaps(const PackRoom& room, const Gaps& gaps, std::uint8_t* plane) {
  std::uint32_t at = gaps.at;
  for (std::uint32_t i = gaps.begin; i < gaps.end; ++i) {
    std::uint32_t gap = gap_before(room, i);
    for (; gap >= kGapEscapeByte; gap -= kGapEscapeByte) plane[at++] = static_cast<std::uint8_t>(kGapEscapeByte);
    plane[at++] = static_cast<std::uint8_t>(gap);
  }
}

FRESHET_DEVICE void write_plane_head(std::uint8_t* to, std::uint32_t bytes) {
  to[0] = 0;  // The plane as it is.
  write_number(to + 1, bytes);
}

/// No barrier stands at a tile's end: what the next tile writes first, its number, nobody reads any more, and barriers lie
/// before everything else that it writes.
FRESHET_KERNEL(pack, kDeltaThreadsMax, 4, PackArguments) {
  FRESHET_SHARED(PackRoom, room);
  std::uint64_t* const begun = arguments.states + arguments.tiles;
  while (true) {
    if (thread() == 0) room.tile = atomic_add(begun, 1);
    sync_block();
    const std::uint64_t tile = room.tile;
    if (tile >= arguments.tiles) return;
    const std::uint64_t row = row_of(arguments.tensors, arguments.tensor_count, tile);
    const PackTensor tensor = arguments.tensors[row];
    const std::uint32_t width = tensor.elements.width;
    const std::uint64_t first_element = (tile - tensor.first_tile) * chunk_elements(width);
    const std::uint64_t left = tensor.elements.count - first_element;
    const bool is_last = left <= chunk_elements(width);
    const std::uint32_t elements = is_last ? static_cast<std::uint32_t>(left) : chunk_elements(width);
    const std::uint64_t first_byte = first_element * width;
    const bool is_in_place = tensor.fresh == tensor.base;
    const Chunk chunk{tensor.base + first_byte, tensor.target + first_byte,
                      tensor.fresh == nullptr || is_in_place ? nullptr : tensor.fresh + first_byte, elements * width,
                      is_aligned(tensor.base, 16) && is_aligned(tensor.target, 16) && is_aligned(tensor.fresh, 16)};

    const std::uint32_t changed = find_changes(room, chunk, width);
    if (tensor.blocks == nullptr) {
      if (thread() == 0) atomic_add(&arguments.results[row].changed, changed);
      if (tensor.sums != nullptr) sum_chunk(tensor, first_byte, chunk.bytes);
      if (is_in_place) store_changes(room, chunk, tensor.fresh + first_byte);
      continue;
    }
    write_places(room, chunk.bytes, width);
    sync_block();
    const Gaps gaps = measure_gaps(room, changed);
    const std::uint32_t size = changed == 0
                                   ? kBlockHeadSize
                                   : kBlockHeadSize + kPlaneHeadSize + gaps.bytes + width * (kPlaneHeadSize + changed);
    if (warp() == 0) {
      if (lane() == 0 && tile > tensor.first_tile) atomic_store(arguments.states + tile, kOwnSize | size);
      const std::uint64_t before = size_before(arguments.states, tensor.first_tile, tile);
      if (lane() == 0) {
        atomic_store(arguments.states + tile, kSizeSoFar | (before + size));
        room.offset = before;
        arguments.places[tile] = {before, first_element};
        if (is_last) arguments.results[row].bytes = before + size;
      }
    }
    if (tensor.sums != nullptr) sum_chunk(tensor, first_byte, chunk.bytes);
    sync_block();
    const std::uint64_t offset = room.offset;
    const bool has_room = offset + size <= tensor.blocks_bytes_max;
    std::uint8_t* const out = tensor.blocks + offset;
    if (has_room && thread() == 0) {
      write_number(out, elements);
      write_number(out + 4, changed);
      write_number(out + 8, changed == 0 ? 0 : gaps.bytes);
    }
    PackResult& result = arguments.results[row];
    if (thread() == 0) atomic_add(&result.changed, changed);
    if (changed > 0 && has_room) {
      std::uint8_t* const gap_plane = out + kBlockHeadSize + kPlaneHeadSize;
      std::uint8_t* const planes = gap_plane + gaps.bytes;
      if (thread() == 0) write_plane_head(gap_plane - kPlaneHeadSize, gaps.bytes);
      if (lane() < width && warp() == warps() - 1) {
        write_plane_head(planes + lane() * (kPlaneHeadSize + changed), changed);
      }
      write_gaps(room, gaps, gap_plane);
      const ElementWords words(tensor.elements);
      LaneSums sums{0, 0};
      for (std::uint32_t i = thread(); i < changed; i += threads()) {
        const std::uint32_t place = room.places[i];
        const std::uint64_t old_bits = load_element(chunk.base + place * width, width);
        const std::uint64_t new_bits = load_element(chunk.target + place * width, width);
        const std::uint64_t difference = words.difference(old_bits, new_bits);
        add_change(sums, tensor.elements, first_element + place, old_bits, new_bits);
        for (std::uint32_t plane = 0; plane < width; ++plane) {
          planes[plane * (kPlaneHeadSize + changed) + kPlaneHeadSize + i] =
              static_cast<std::uint8_t>(difference >> (8 * plane));
        }
      }
      add_sums_of_block(room.block, sums, &result.sum_low, &result.sum_high);  // Its barrier is behind these loads.
    }
    if (is_in_place) store_changes(room, chunk, tensor.fresh + first_byte);
  }
}

}  // namespace freshet::gpu
