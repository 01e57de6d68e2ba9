// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Slabs: large pieces of shared host memory that an arena cuts into segments. A slab is a memfd, sealed against growing,
/// shrinking, further seals and new writable mappings. So a process that receives its descriptor can read the slab, and
/// only its creator can write it. The kernel frees a slab when the last process that has it is gone. A forked child of
/// the creator does not have it.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/fork_guard.h"
#include "core/base/result.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"

namespace freshet {

/// A slab of somebody's, for passing on.
struct SlabReference {
  int descriptor = -1;  ///< Borrowed.
  std::uint64_t bytes = 0;
};

/// One thread at a time; the memory itself is the owner's business.
class Slab {
 public:
  struct Options {
    std::uint64_t bytes = 0;  ///< Rounded up to whole pages.
    MemoryKind memory = MemoryKind::host;
    bool lock = true;         ///< mlock as much as the limits allow; locked_bytes() has the amount.
    bool huge_pages = false;  ///< From the reserved pool, when there are enough; ordinary pages otherwise.
  };

  /// Creates, maps writable, touches every page, locks, seals. out_of_space when the memory is not there; unsupported
  /// for another kind of memory than the host's.
  static Result<Slab> create(const std::string& name, const Options& options);

  /// Maps a received descriptor read-only, with its pages present. Takes the descriptor in every case. corrupt when it
  /// is not a memfd of exactly `bytes` with the seals named above.
  static Result<Slab> adopt(int descriptor, std::uint64_t bytes);

  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&& other) noexcept;
  ~Slab();

  /// REQUIRES: created, not adopted.
  MutableBytes memory();
  Bytes memory() const;
  std::uint64_t bytes() const { return bytes_; }
  MemoryKind memory_kind() const { return MemoryKind::host; }
  std::uint64_t locked_bytes() const { return locked_bytes_; }
  bool writable() const { return writable_; }
  bool huge_pages() const { return huge_pages_; }
  /// For passing on; stays the slab's.
  int descriptor() const { return descriptor_.get(); }

 private:
  Slab() = default;

  ParentsDescriptor descriptor_;
  ForkMark mark_;
  void* mapping_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t locked_bytes_ = 0;
  bool writable_ = false;
  bool huge_pages_ = false;
};

}  // namespace freshet
