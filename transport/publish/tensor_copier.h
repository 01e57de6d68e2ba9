// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Copies tensors into segments. issue() begins copies, and an event completes them: at once where the processor
/// copies, later where a device does.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"

namespace freshet {

namespace gpu {
class Device;
class PackedDelta;
}  // namespace gpu

/// One tensor's copy.
struct TensorCopy {
  MutableBytes to;                     ///< Host memory.
  Bytes from;                          ///< As long as `to`, in memory that the copier takes.
  const TensorView* tensor = nullptr;  ///< Whose bytes `from` are; good until issue() returns. Null for bring().
  /// Not empty: memory of the device that `from` lies in, as long as `to`. issue() copies the bytes there, and leaves
  /// `to` to bring().
  MutableBytes via = {};
  /// `via` and `to` have the same bytes before: so what changes in the one can be made in the other by a delta.
  bool is_paired = false;
  /// For bring(): leads from the bytes that `to` has to those of `from`; or null.
  std::shared_ptr<const gpu::PackedDelta> delta = nullptr;
};

/// What a copier formed beside the copies: for each copy, in their order; or none.
struct FormedWithCopies {
  FormedWithCopies(std::vector<Digest> of_copies = {}) : digests(std::move(of_copies)) {}
  std::vector<Digest> digests;  ///< None: they are still to be computed from the copied bytes.
  /// Those of copies that ended in device memory and were paired; null where there is none.
  std::vector<std::shared_ptr<const gpu::PackedDelta>> deltas;
};

/// One thread at a time calls issue(). bring() may run beside it.
///
/// A tensor may be written again when its copy is complete. A copier that completes before issue() returns leaves the
/// caller nothing to wait for. Any other copier makes the tensors' next writer wait by the means of their memory (the
/// stream that writes them waits for the event), so no thread of the host waits at the training step's barrier.
class TensorCopier {
 public:
  /// An error: bytes may be missing.
  using Copied = Result<FormedWithCopies>;
  /// Called once for each issue(), on any thread, also before issue() returns. From then on the copier does not touch
  /// the bytes, and what it wrote is visible to the thread that made the call.
  using Done = std::function<void(Copied)>;

  /// Completes what was issued, with an error if nothing else is possible.
  virtual ~TensorCopier() = default;
  /// Where `from` lies.
  virtual MemoryKind memory_kind() const = 0;
  /// The device that TensorPlace::device numbers, as this copier has opened it.
  virtual Result<std::shared_ptr<gpu::Device>> device_of(std::int32_t /*ordinal*/) {
    return fail(Code::unsupported, "this copier has no GPU");
  }
  /// Told of all memory that `to` lies in, before copies go there. `owner` keeps it: so the memory stays also where a
  /// device's copies still run when the copier ends.
  virtual void add_slab(Bytes /*memory*/, std::shared_ptr<const void> /*owner*/) {}
  /// Nothing is issued any more, and what stays incomplete for long fails. Any thread.
  virtual void end() {}
  /// Copies to one place run in the order of the calls. An error: these copies come to nothing, and `done` is called
  /// all the same, at the latest when the last of them that was begun has ended.
  virtual Status issue(std::vector<TensorCopy> copies, Done done) = 0;
  /// Copies from device memory that issue() has filled (`via`, now `from`) to host memory, or applies deltas there
  /// where that costs less, and waits. REQUIRES: all of it lies on one device; the issue() that filled it is complete.
  /// One thread at a time; the copier lives.
  virtual Status bring(std::span<const TensorCopy> /*copies*/) {
    return fail(Code::unsupported, "this copier has no GPU");
  }
};

}  // namespace freshet
