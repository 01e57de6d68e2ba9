// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One pass over tensors in a device's memory, each with a segment there that has earlier values of it, or anything:
/// compares, writes what changed over the segment's bytes, forms the sums of the digests, and packs the changes as an
/// element delta where that is wanted. So the segment has the tensor's bytes afterwards, and whoever has the segment's
/// earlier bytes elsewhere needs the delta alone.
///
///     const auto job = std::make_shared<gpu::Packer::Job>();
///     FRESHET_TRY(packer.queue(stream, tensors, *job));   // The tensors' next writer waits for this alone.
///     FRESHET_TRY(packer.finish(stream, *job));           // Then an event is recorded, and waited for.
///     const std::vector<Digest> digests = job->digests();
///     if (job->has_delta(0)) … gpu::PackedDelta(job, 0);

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/digest.h"
#include "core/base/mutex.h"
#include "core/delta/element_delta.h"
#include "core/gpu/device.h"
#include "core/gpu/host_pages.h"
#include "core/gpu/kernels/tables.h"

namespace freshet::gpu {

/// queue() and finish(): one thread at a time. What a job has stays its own until the job ends; any thread may end it.
class Packer {
  class Rooms;

 public:
  struct Tensor {
    Bytes from;               ///< In the device's memory; of a size that takes() takes.
    std::byte* to = nullptr;  ///< The segment there.
    DType dtype = DType::u8;
    bool is_packed = false;  ///< Whether a delta is wanted.
  };

  class Job {
   public:
    Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    /// REQUIRES: an event after its last call is done.
    ~Job();

    /// queue() and finish() have queued all of it.
    bool is_whole() const { return is_whole_; }
    /// The rest is of whole jobs that are done. By tensor.
    std::vector<Digest> digests() const;
    /// False: none was wanted, or the changes found no room.
    bool has_delta(std::size_t tensor) const;

   private:
    friend class Packer;
    friend class PackedDelta;
    struct Row {
      DType dtype = DType::u8;
      std::uint64_t elements = 0;
      std::uint64_t blocks_offset = 0;  ///< In the device's memory.
      std::uint64_t blocks_bytes_max = 0;
    };
    /// Where things lie in the device's memory.
    struct Layout {
      std::uint64_t parts = 0;
      std::uint64_t states = 0;   ///< Behind the tables, which come from the host. Zeros, up to `digests`.
      std::uint64_t results = 0;  ///< From here to `places` it goes back to the host.
      std::uint64_t digests = 0;
      std::uint64_t places = 0;
      std::uint64_t sums = 0;
      std::uint64_t blocks = 0;
    };
    void lay_out();
    const PackResult& result(std::size_t tensor) const;
    const std::byte* results() const { return pages_->begin() + layout_.states; }

    std::shared_ptr<Rooms> rooms_;
    std::vector<Row> rows_;
    DigestPlan plan_;
    std::uint64_t tiles_ = 0;
    Layout layout_;
    Memory memory_;
    std::vector<Memory> retired_;  ///< Too small; its end would wait for the device, and ends with the job.
    std::unique_ptr<HostPages> pages_;
    bool is_whole_ = false;
  };

  explicit Packer(std::shared_ptr<Device> device);

  /// False: the host digests a part of so many bytes (a Digester does that), or they are no whole elements.
  static bool takes(std::uint64_t bytes, DType dtype);
  /// Of the device's memory, for such a tensor.
  static std::uint64_t room_for(const Tensor& tensor);

  /// Queues the pass. `job` is a new one, and keeps what was queued, also where an error is returned; the segments may
  /// be written then. REQUIRES: a tensor.
  ///   unsupported   this build or device has no kernels, or registers no host memory; nothing was written.
  ///   out_of_space  the device, or the host, has no memory for it; nothing was written.
  /// Other errors are those of Device::copy() and Device::launch().
  Status queue(StreamHandle stream, std::span<const Tensor> tensors, Job& job);
  /// Queues the digests of what queue() wrote, and the way of all results to the host.
  Status finish(StreamHandle stream, Job& job);

 private:
  std::vector<PackTensor> table_of(std::span<const Tensor> tensors, const Job& job) const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Rooms> rooms_;
};

/// A tensor's delta in a device's memory. Immutable.
class PackedDelta {
 public:
  /// REQUIRES: job->has_delta(tensor).
  PackedDelta(std::shared_ptr<const Packer::Job> job, std::size_t tensor) : job_(std::move(job)), tensor_(tensor) {}

  /// In the device's memory, as long as this lives.
  Bytes blocks() const;
  /// `memory` has the segment's earlier bytes, afterwards the tensor's. This is proved for the elements that change; of
  /// the others the caller knows that they were the earlier ones. `blocks`: a copy of blocks(). corrupt: an element
  /// that changes was another one, and the memory's content is undefined.
  Status apply(Bytes blocks, MutableBytes memory) const;

 private:
  std::shared_ptr<const Packer::Job> job_;
  std::size_t tensor_ = 0;
};

}  // namespace freshet::gpu
