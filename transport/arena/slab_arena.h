// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The memory behind a SegmentPool: slabs, created when room is wanted and as far as the limit allows. Any thread, but
/// grow() one thread at a time; touching new memory happens outside the lock.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/arena/arena.h"
#include "core/arena/slab.h"
#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet {

/// The bytes of slabs that a copy of a model of tensors of these sizes takes.
std::uint64_t span_of_copy(std::span<const std::uint64_t> tensor_bytes);

class SlabArena {
 public:
  struct Options {
    std::string name;
    MemoryKind memory = MemoryKind::host;  ///< Of all slabs: `host`, or `device`, which needs use_device().
    bool lock_memory = true;
    bool huge_pages = false;
    /// Of a slab for many segments: large enough that a model has few, small enough that a machine short of memory can
    /// still give some. A larger segment has a slab of its own.
    std::uint64_t slab_bytes = std::uint64_t{1} << 30;
    /// Called with each new slab by the thread that lets the arena grow, with no lock held. May be empty.
    std::function<void(const std::shared_ptr<Slab>&)> on_slab = {};
  };
  explicit SlabArena(Options options) : options_(std::move(options)), pool_({.limit_bytes = 0}) {}

  /// A tensor that wants a segment.
  struct Want {
    std::uint32_t tensor = 0;
    std::uint64_t bytes = 0;
    std::optional<SegmentIndex> segment;  ///< In state writing, once it was acquired.
  };

  MemoryKind memory_kind() const { return options_.memory; }

  /// Of memory of the kind `device`: the slabs are made on this device. failed_precondition: on another one already.
  Status use_device(const std::shared_ptr<gpu::Device>& device);
  /// Its UUID; empty where there is none yet.
  std::string device() const;

  void raise_limit(std::uint64_t bytes);
  struct Room {
    std::uint64_t limit_bytes = 0;  ///< 0: four times the model, plus 64 MiB.
    std::size_t kept_versions = 1;  ///< Raise this default by a copy each, from the second on.
    double copies = 1;              ///< Touched.
  };
  /// Raises the limit, and creates and touches memory for copies of a model of tensors of these sizes; the last copy
  /// may be a part of one. An error if not even one copy finds room.
  Status prepare(std::span<const std::uint64_t> tensor_bytes, const Room& room);
  /// Creates and touches memory until the arena has `bytes`, in slabs that hold tensors of these sizes over and over;
  /// less where the limit or the machine has less.
  void touch_ahead(std::span<const std::uint64_t> tensor_bytes, std::uint64_t bytes);
  /// Acquires for each want that has no segment yet. Returns the bytes of those that found none; a want of 0 bytes
  /// counts as one byte, since an empty tensor needs a segment too. 0: each want has its segment.
  std::uint64_t acquire(std::span<Want> wants);
  /// Adds slabs of just the size for the wants that have no segment, and acquires from them. out_of_space when the
  /// limit or the machine's memory is reached; what was acquired by then stays.
  Status grow(std::span<Want> wants);

  /// A free segment, as it is; false when it is not free.
  bool take_this(SegmentIndex segment);
  bool is_free(SegmentIndex segment) const;

  /// seal() and release() pass over segments of the other kind of memory (kOnDevice).
  void seal(std::span<const SegmentIndex> segments);
  void release(std::span<const SegmentIndex> segments);
  /// Releases those that were acquired.
  void abandon(std::span<Want> wants);

  SegmentPlace place(SegmentIndex segment) const;
  std::vector<SegmentPlace> places(std::span<const SegmentIndex> segments) const;
  MutableBytes memory(const SegmentPlace& place);
  Bytes bytes(const SegmentPlace& place) const;
  std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const;

  std::vector<SlabReference> slabs() const;
  std::vector<Bytes> slab_memory() const;  ///< Of each slab, as slabs().
  struct Stat {
    std::uint64_t arena_bytes = 0;
    std::uint64_t arena_free_bytes = 0;
    std::uint64_t locked_bytes = 0;
    std::uint64_t arena_limit_bytes = 0;
  };
  Stat stat() const;

 private:
  std::uint64_t slab_bytes() const FRESHET_EXCLUDES(mutex_);
  std::uint64_t growth_for(std::uint64_t bytes) const FRESHET_EXCLUDES(mutex_);
  Status add_slab(std::uint64_t bytes);
  bool is_ours(SegmentIndex segment) const { return (segment & kOnDevice) == tag_; }
  SegmentIndex in_pool(SegmentIndex segment) const { return segment & ~tag_; }

  const Options options_;
  const SegmentIndex tag_ = options_.memory == MemoryKind::device ? kOnDevice : 0;
  mutable Mutex mutex_;
  SegmentPool pool_ FRESHET_GUARDED_BY(mutex_);
  std::shared_ptr<gpu::Device> device_ FRESHET_GUARDED_BY(mutex_);
  /// A slab never moves, so its memory may be used without the lock.
  std::vector<std::shared_ptr<Slab>> slabs_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
