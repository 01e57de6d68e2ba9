// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/copy_kernels.h"
#include "core/gpu/kernels/words.h"

namespace freshet::gpu {

/// Copies with the words that both addresses are aligned for, and the bytes before and behind them alone. All threads
/// of the block call it.
template <typename Word>
FRESHET_DEVICE void copy_by(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes) {
  constexpr std::uint32_t kWord = sizeof(Word);
  constexpr std::uint32_t kAtOnce = 4;  // So many loads of a thread are under way.
  const std::uint64_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kWord;
  std::uint64_t head = misaligned == 0 ? 0 : kWord - misaligned;
  if (head > bytes) head = bytes;
  const std::uint64_t words = (bytes - head) / kWord;
  for (std::uint64_t at = thread(); at < head; at += threads()) to[at] = from[at];
  std::uint64_t at = thread();
  for (; at + (kAtOnce - 1) * threads() < words; at += kAtOnce * threads()) {
    Word kept[kAtOnce];
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i) kept[i] = load<Word>(from + head + (at + i * threads()) * kWord);
    FRESHET_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i) store<Word>(to + head + (at + i * threads()) * kWord, kept[i]);
  }
  for (; at < words; at += threads()) store<Word>(to + head + at * kWord, load<Word>(from + head + at * kWord));
  for (std::uint64_t rest = head + words * kWord + thread(); rest < bytes; rest += threads()) to[rest] = from[rest];
}

FRESHET_DEVICE void copy_range(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes) {
  const std::uintptr_t apart = reinterpret_cast<std::uintptr_t>(to) ^ reinterpret_cast<std::uintptr_t>(from);
  if (apart % 16 == 0) {
    copy_by<Words>(to, from, bytes);
  } else if (apart % 8 == 0) {
    copy_by<std::uint64_t>(to, from, bytes);
  } else if (apart % 4 == 0) {
    copy_by<std::uint32_t>(to, from, bytes);
  } else if (apart % 2 == 0) {
    copy_by<std::uint16_t>(to, from, bytes);
  } else {
    copy_by<std::uint8_t>(to, from, bytes);
  }
}

FRESHET_KERNEL(fill, kFillThreadsMax, 1, FillArguments) {
  const std::uint64_t all = static_cast<std::uint64_t>(blocks()) * threads();
  for (std::uint64_t at = static_cast<std::uint64_t>(block()) * threads() + thread(); at < arguments.bytes; at += all) {
    arguments.to[at] = arguments.value;
  }
}

FRESHET_KERNEL(copy, kCopyThreadsMax, 4, CopyArguments) {
  const TileRange range = tiles_of_block(arguments.tiles);
  if (range.begin == range.end) return;
  std::uint64_t row = row_of(arguments.tensors, arguments.tensor_count, range.begin);
  for (std::uint64_t tile = range.begin; tile < range.end; ++tile) {
    while (row + 1 < arguments.tensor_count && arguments.tensors[row + 1].first_tile <= tile) ++row;
    const CopyTensor tensor = arguments.tensors[row];
    const std::uint64_t begin = (tile - tensor.first_tile) * kCopyTileBytes;
    if (begin >= tensor.bytes) continue;  // A table that lies copies nothing outside of its ranges.
    const std::uint64_t left = tensor.bytes - begin;
    copy_range(tensor.to + begin, tensor.from + begin, left < kCopyTileBytes ? left : kCopyTileBytes);
  }
}

}  // namespace freshet::gpu
