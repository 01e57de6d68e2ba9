// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The part of a publisher's arena that lies in a GPU's memory, on request (PublisherOptions::device_memory). A version
/// has its copy in host memory always, and another one here where there is room. A tensor is copied here first, within
/// the device; the copy to host memory is made from here. So the trainer's stream waits for a copy within the device
/// alone, and neighbours on the same GPU read without the bus.
///
/// A version finds room for all that it captures, or all of it goes to host memory alone, and why_not() has the reason.
/// Such a version keeps what it did not capture here. All slabs lie on one device: that of the first tensors.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "transport/arena/slab_arena.h"
#include "transport/publish/tensor_copier.h"
#include "transport/publisher.h"

namespace freshet {

/// prepare() and acquire(): one thread at a time. The rest: any thread.
class DeviceArena {
 public:
  using Want = SlabArena::Want;
  /// By want; nothing where the tensor lies in host memory, has no bytes, or found no room.
  using Segments = std::vector<std::optional<SegmentIndex>>;

  DeviceArena(const std::string& name, const DeviceMemory& limit)
      : limit_(limit), slabs_({.name = name, .memory = MemoryKind::device}) {}

  void prepare(std::span<const std::uint64_t> tensor_bytes);

  /// Segments for the wants whose tensors lie in a GPU's memory: for all of them, or none. `copier` knows the GPUs; an
  /// error of it is told by its issue().
  Segments acquire(std::span<const TensorView> tensors, std::span<const Want> wants, TensorCopier* copier)
      FRESHET_EXCLUDES(mutex_);

  SlabArena& slabs() { return slabs_; }
  const SlabArena& slabs() const { return slabs_; }
  /// Why the last captured version went to host memory; empty where it did not.
  std::string why_not() const FRESHET_EXCLUDES(mutex_);

 private:
  Status find(std::span<const TensorView> tensors, std::span<Want> wants, TensorCopier& copier);
  std::uint64_t limit_bytes(std::uint64_t granularity) const;

  const DeviceMemory limit_;
  SlabArena slabs_;
  std::uint64_t model_bytes_ = 0;  ///< As segments take it.

  mutable Mutex mutex_;
  std::string why_not_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
