// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Slabs: large pieces of shared memory that an arena cuts into segments. A slab is a memfd, sealed against growing,
/// shrinking, further seals and new writable mappings. So a process that receives its descriptor can read the slab, and
/// only its creator can write it. The kernel frees a slab when the last process that has it is gone. A forked child of
/// the creator does not have it.
///
/// A slab of device memory (core/gpu/device.h) has the same life, and its descriptor is passed on alike. It has no
/// seals: its receiver maps it read-only by its own will. So only processes of the same user may get it.

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/fork_guard.h"
#include "core/base/result.h"
#include "core/gpu/device.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"

namespace freshet {

/// A slab of somebody's, for passing on.
struct SlabReference {
  int descriptor = -1;  ///< Borrowed.
  std::uint64_t bytes = 0;
  MemoryKind memory = MemoryKind::host;
};

/// One thread at a time; the memory itself is the owner's business.
class Slab {
 public:
  struct Options {
    std::uint64_t bytes = 0;                   ///< Rounded up to whole pages, of a device to its granularity.
    std::shared_ptr<gpu::Device> device = {};  ///< Not null: in this device's memory. The rest is then not looked at.
    bool lock = true;                          ///< mlock as much as the limits allow; locked_bytes() has the amount.
    bool huge_pages = false;  ///< From the reserved pool, when there are enough; ordinary pages otherwise.
  };

  /// Creates, maps writable, touches every page, locks, seals. out_of_space when the memory is not there; unsupported
  /// where the device exports none.
  static Result<Slab> create(const std::string& name, const Options& options);

  /// Maps a received descriptor read-only, with its pages present. Takes the descriptor in every case. corrupt when it
  /// is not a memfd of exactly `bytes` with the seals named above.
  static Result<Slab> adopt(int descriptor, std::uint64_t bytes);

  /// Maps a received descriptor of device memory read-only, with the errors of gpu::Device::import_slab().
  static Result<Slab> import(gpu::Device& device, FileDescriptor descriptor, std::uint64_t bytes);

  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&& other) noexcept;
  ~Slab();

  /// Of device memory: addresses of the device. REQUIRES: created, not adopted.
  MutableBytes memory();
  Bytes memory() const;
  std::uint64_t bytes() const { return bytes_; }
  MemoryKind memory_kind() const { return on_device_.bytes() == 0 ? MemoryKind::host : MemoryKind::device; }
  std::uint64_t locked_bytes() const { return locked_bytes_; }
  bool writable() const { return writable_; }
  bool huge_pages() const { return huge_pages_; }
  /// For passing on; stays the slab's.
  int descriptor() const { return descriptor_.get(); }

 private:
  Slab() = default;
  static Result<Slab> create_on(gpu::Device& device, std::uint64_t bytes);

  ParentsDescriptor descriptor_;
  ForkMark mark_;
  void* mapping_ = nullptr;
  gpu::Memory on_device_;  ///< Where `mapping_` lies, of device memory; otherwise empty.
  std::uint64_t bytes_ = 0;
  std::uint64_t locked_bytes_ = 0;
  bool writable_ = false;
  bool huge_pages_ = false;
};

}  // namespace freshet
