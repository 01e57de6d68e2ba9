// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Memory for blobs that was touched beforehand (DStore's staging buffers, without the network adapter): the kernel
/// clears a page when it is first written, which costs several times a copy. Private to this room.

#include <cstdint>
#include <memory>
#include <optional>

#include "core/arena/arena.h"
#include "core/arena/slab.h"
#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet {

/// A fixed amount, given out and taken back. Any thread.
class TouchedMemory {
 public:
  /// out_of_space when the machine has not so much.
  static Result<std::shared_ptr<TouchedMemory>> create(std::uint64_t bytes);

  struct Piece {
    SegmentIndex segment;
    MutableBytes memory;
  };
  /// Nothing when there is no room for so many bytes in one piece.
  std::optional<Piece> take(std::uint64_t bytes);
  void give_back(SegmentIndex segment);
  /// All of it, so that a fabric can be told.
  Bytes memory() const { return slab_.memory(); }

 private:
  explicit TouchedMemory(Slab slab);

  Mutex mutex_;
  SegmentPool pool_ FRESHET_GUARDED_BY(mutex_);
  Slab slab_;
};

/// A blob's bytes: touched memory while there is some, the heap's otherwise. Written by its maker, then immutable.
class BlobMemory {
 public:
  /// `touched` may be null. out_of_space when there is no memory at all.
  static Result<std::shared_ptr<BlobMemory>> take(const std::shared_ptr<TouchedMemory>& touched, std::uint64_t bytes);
  ~BlobMemory();
  BlobMemory(const BlobMemory&) = delete;
  BlobMemory& operator=(const BlobMemory&) = delete;

  MutableBytes memory() { return memory_; }
  Bytes bytes() const { return memory_; }

 private:
  BlobMemory() = default;

  std::shared_ptr<TouchedMemory> touched_;  ///< Null when the memory is the heap's.
  SegmentIndex segment_{};
  std::unique_ptr<std::byte[]> heap_;
  MutableBytes memory_;
};

}  // namespace freshet
