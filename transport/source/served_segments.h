// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One model's segments by name, for those who read them outside of the books: a fetch that is answered with a delta
/// needs the bytes of a segment that no lease covers, and needs them to stay while it reads. A pin keeps them: a
/// segment that is freed while it is pinned is handed on as free only when its last pin goes.
///
/// Invariants:
///   1. A name is found if and only if a version that names it was added, and its segment was not freed since.
///   2. Every segment given to free() reaches on_free exactly once, never while it is pinned.
/// Any thread. Pins keep the object alive.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/arena/arena.h"
#include "core/base/mutex.h"
#include "core/model/ids.h"
#include "core/model/tensor.h"
#include "transport/arena/segment_names.h"

namespace freshet::source {

class ServedSegments : public std::enable_shared_from_this<ServedSegments> {
 public:
  /// `on_free` is called by whichever thread lets go last, never under a lock.
  using OnFree = std::function<void(std::span<const SegmentIndex>)>;
  static std::shared_ptr<ServedSegments> make(OnFree on_free) {
    return std::shared_ptr<ServedSegments>(new ServedSegments(std::move(on_free)));
  }

  /// The segments of a version, by tensor index, and their memory.
  void add(std::span<const SegmentName> names, std::span<const SegmentIndex> segments, std::span<const Bytes> memory);
  void free(std::span<const SegmentIndex> segments);

  /// Movable; keeps the segment's bytes as they are.
  class Pin {
   public:
    Pin(Pin&& other) noexcept = default;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { release(); }
    Bytes bytes() const { return bytes_; }

   private:
    friend class ServedSegments;
    Pin(std::shared_ptr<ServedSegments> owner, SegmentIndex segment, Bytes bytes)
        : owner_(std::move(owner)), segment_(segment), bytes_(bytes) {}
    void release();
    std::shared_ptr<ServedSegments> owner_;
    SegmentIndex segment_ = 0;
    Bytes bytes_;
  };
  /// Nothing when no segment of that name is here.
  std::optional<Pin> pin(const SegmentName& name);

  /// No pin and no name from now on; waits until the last pin is gone. Pins are short: whoever holds one was cut off.
  void close();

 private:
  explicit ServedSegments(OnFree on_free) : on_free_(std::move(on_free)) {}
  void unpin(SegmentIndex segment);

  struct Segment {
    Bytes memory;
    std::uint32_t pins = 0;
    bool freed = false;  ///< Not named any more, and read.
  };

  const OnFree on_free_;
  Mutex mutex_;
  CondVar unpinned_;
  SegmentNames names_ FRESHET_GUARDED_BY(mutex_);
  std::vector<Segment> segments_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t pins_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool closed_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::source
