// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/delta_elements.h"
#include "core/gpu/kernels/delta_kernels.h"
#include "core/gpu/kernels/words.h"

namespace freshet::gpu {

struct ApplyRoom {
  BlockRoom block;
  std::uint16_t places[kChunkElementsMax];
};

/// A block of the payload whose table and head were found to fit each other.
struct CheckedBlock {
  ApplyError error;
  std::uint64_t first_element;
  std::uint32_t elements;
  std::uint32_t changed;
  std::uint32_t gap_bytes;
  const std::uint8_t* gaps;
  const std::uint8_t* planes;  ///< With their heads.
};

FRESHET_DEVICE std::uint32_t read_number(const std::uint8_t* from) {
  return static_cast<std::uint32_t>(load_bytes(from, 4));
}

FRESHET_DEVICE CheckedBlock refused(ApplyError error) { return {error, 0, 0, 0, 0, nullptr, nullptr}; }

/// Reads nothing outside of the payload. The chain over all tiles of a tensor says that its blocks cover the payload
/// and the elements, each once: a block begins where the one before ends, the first at 0, and the last ends at the end.
FRESHET_DEVICE CheckedBlock check_block(const ApplyArguments& arguments, std::uint64_t row, std::uint64_t tile) {
  const ApplyTensor& tensor = arguments.tensors[row];
  const std::uint64_t end_tile =
      row + 1 < arguments.tensor_count ? arguments.tensors[row + 1].first_tile : arguments.tiles;
  const BlockPlace place = arguments.places[tile];
  const BlockPlace next =
      tile + 1 < end_tile ? arguments.places[tile + 1] : BlockPlace{tensor.blocks_bytes, tensor.elements.count};
  const bool begins_right = tile > tensor.first_tile || (place.offset == 0 && place.first_element == 0);
  if (!begins_right || next.offset > tensor.blocks_bytes || place.offset >= next.offset ||
      next.first_element > tensor.elements.count || place.first_element >= next.first_element ||
      next.offset - place.offset < kBlockHeadSize) {
    return refused(ApplyError::kTable);
  }
  const std::uint8_t* const block = tensor.blocks + place.offset;
  const std::uint64_t bytes = next.offset - place.offset;
  const std::uint32_t width = tensor.elements.width;
  const std::uint32_t elements = read_number(block);
  const std::uint32_t changed = read_number(block + 4);
  const std::uint32_t gap_bytes = read_number(block + 8);
  if (elements != next.first_element - place.first_element) return refused(ApplyError::kTable);
  if (elements > kChunkElementsMax) return refused(ApplyError::kForm);
  if (changed > elements || gap_bytes < changed ||
      gap_bytes > (changed == 0 ? 0 : changed + elements / kGapEscapeByte)) {
    return refused(ApplyError::kHead);
  }
  CheckedBlock checked{ApplyError::kNone, place.first_element, elements, changed, gap_bytes, nullptr, nullptr};
  if (changed == 0) return bytes == kBlockHeadSize ? checked : refused(ApplyError::kTable);
  // A plane of another form has another size, too; so its size is no reason to call it damaged.
  if (bytes <= kBlockHeadSize + kPlaneHeadSize) return refused(ApplyError::kHead);
  if (block[kBlockHeadSize] != 0) return refused(ApplyError::kForm);
  checked.gaps = block + kBlockHeadSize + kPlaneHeadSize;
  checked.planes = checked.gaps + gap_bytes;
  std::uint64_t end = kBlockHeadSize + kPlaneHeadSize + std::uint64_t{gap_bytes};
  if (read_number(block + kBlockHeadSize + 1) != gap_bytes) return refused(ApplyError::kHead);
  for (std::uint32_t plane = 0; plane < width; ++plane) {
    if (bytes < end + kPlaneHeadSize) return refused(ApplyError::kHead);
    if (block[end] != 0) return refused(ApplyError::kForm);
    if (read_number(block + end + 1) != changed) return refused(ApplyError::kHead);
    end += kPlaneHeadSize + std::uint64_t{changed};
  }
  return bytes == end ? checked : refused(ApplyError::kHead);
}

/// Adds the gaps up. Returns whether they lead to as many places inside of the block as its head says; only then are
/// the places written. All threads of the block call it, and get the same answer. The gaps are read twice. Where a
/// sender changes them meanwhile, some places stay unwritten, so the caller compares each with the block's elements.
FRESHET_DEVICE bool take_places(ApplyRoom& room, const CheckedBlock& checked) {
  const std::uint32_t bytes = checked.gap_bytes;
  const std::uint32_t each = (bytes + threads() - 1) / threads();
  const std::uint32_t begin = thread() * each < bytes ? thread() * each : bytes;
  const std::uint32_t end = begin + each < bytes ? begin + each : bytes;
  // Changes in the high half, unchanged elements in the low one: 8,224 times 255 of them at most.
  std::uint64_t own = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t gap = checked.gaps[i];
    own += (static_cast<std::uint64_t>(gap != kGapEscapeByte ? 1 : 0) << 32) + gap;
  }
  const Prefix prefix = prefix_of_block(room.block, own);
  const std::uint64_t changed = prefix.all >> 32;
  const std::uint64_t covered = changed + (prefix.all & 0xFFFFFFFF);
  if (changed != checked.changed || covered > checked.elements || checked.gaps[bytes - 1] == kGapEscapeByte) {
    return false;
  }
  std::uint32_t change = static_cast<std::uint32_t>(prefix.before >> 32);
  std::uint32_t place = change + static_cast<std::uint32_t>(prefix.before & 0xFFFFFFFF);
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t gap = checked.gaps[i];
    place += gap;
    if (gap == kGapEscapeByte) continue;
    if (change >= checked.changed || place >= checked.elements) break;
    room.places[change++] = static_cast<std::uint16_t>(place++);
  }
  return true;
}

FRESHET_KERNEL(apply, kDeltaThreadsMax, 4, ApplyArguments) {
  FRESHET_SHARED(ApplyRoom, room);
  const TileRange range = tiles_of_block(arguments.tiles);
  if (range.begin == range.end) return;
  std::uint64_t row = row_of(arguments.tensors, arguments.tensor_count, range.begin);
  for (std::uint64_t tile = range.begin; tile < range.end; ++tile) {
    while (row + 1 < arguments.tensor_count && arguments.tensors[row + 1].first_tile <= tile) ++row;
    const ApplyTensor tensor = arguments.tensors[row];
    ApplyResult& result = arguments.results[row];
    const CheckedBlock checked = check_block(arguments, row, tile);
    if (checked.error != ApplyError::kNone) {
      if (thread() == 0) atomic_max(&result.error, static_cast<std::uint32_t>(checked.error));
      continue;
    }
    if (checked.changed == 0) continue;
    const bool fits = take_places(room, checked);
    sync_block();
    if (!fits) {
      if (thread() == 0) atomic_max(&result.error, static_cast<std::uint32_t>(ApplyError::kPlaces));
      continue;
    }
    const std::uint32_t width = tensor.elements.width;
    const ElementWords words(tensor.elements);
    LaneSums sums{0, 0};
    for (std::uint32_t i = thread(); i < checked.changed; i += threads()) {
      if (room.places[i] >= checked.elements) continue;
      std::uint64_t difference = 0;
      for (std::uint32_t plane = 0; plane < width; ++plane) {
        const std::uint8_t byte = checked.planes[plane * (kPlaneHeadSize + checked.changed) + kPlaneHeadSize + i];
        difference |= static_cast<std::uint64_t>(byte) << (8 * plane);
      }
      const std::uint64_t index = checked.first_element + room.places[i];
      std::uint8_t* const element = tensor.memory + index * width;
      const std::uint64_t old_bits = load_element(element, width);
      const std::uint64_t new_bits = words.changed(old_bits, difference);
      store_element(element, width, new_bits);
      add_change(sums, tensor.elements, index, old_bits, new_bits);
    }
    add_sums_of_block(room.block, sums, &result.sum_low, &result.sum_high);
    if (thread() == 0) atomic_add(&result.changed, checked.changed);
    sync_block();  // The room is the next tile's.
  }
}

}  // namespace freshet::gpu
