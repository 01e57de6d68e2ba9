// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Digests of tensors in a device's memory (core/FORMAT.md, "Digests"), formed there: a tensor has the same identity
/// wherever it was made, and its bytes stay where they are. Any number of tensors is one copy of a table to the device,
/// at most three launches, and one copy of the results back. A part of 240 bytes or less has other formulas: it comes
/// back whole, and the host digests it.
///
/// The sums of all blocks need a sixteenth of the tensors' bytes in the device's memory. Where that is more than
/// kSumsBytesMax, the tensors are done in groups, two launches each.
///
///     gpu::Digester digester(device);
///     gpu::Digester::Job job;
///     FRESHET_TRY(digester.queue(stream, ranges, job));   // Queued; then an event is recorded, and waited for.
///     const std::vector<Digest> digests = job.digests();
///     digester.give_back(std::move(job));

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/digest.h"
#include "core/gpu/device.h"
#include "core/gpu/host_pages.h"
#include "core/gpu/kernels/tables.h"

namespace freshet::gpu {

/// queue(): one thread at a time, and all of it on one stream. give_back(): any thread.
class Digester {
 public:
  static constexpr std::uint64_t kSumsBytesMax = std::uint64_t{256} << 20;

  /// What was queued, and what the queued work uses. Movable.
  class Job {
   public:
    /// All of it was queued.
    bool is_whole() const { return is_whole_; }
    /// Of the ranges, in their order. REQUIRES: whole, and done.
    std::vector<Digest> digests() const;

   private:
    friend class Digester;
    DigestPlan plan_;
    std::unique_ptr<HostPages> pages_;
    std::uint64_t results_offset_ = 0;  ///< In the pages: two words for each device part, then the host parts' bytes.
    Memory retired_;                    ///< Earlier work may use it.
    bool is_whole_ = false;
  };

  /// `sums_bytes_max`: a part that needs more gets it.
  explicit Digester(std::shared_ptr<Device> device, std::uint64_t sums_bytes_max = kSumsBytesMax);

  /// Queues the digests of `ranges`, as they are when the stream comes to it. `job` is a new one; it keeps what was
  /// queued, also where an error is returned, until an event after it is done. REQUIRES: a range; each lies in the
  /// device's memory, or is empty.
  ///   unsupported   this build or device has no kernels, or registers no host memory.
  ///   out_of_space  the device, or the host, has no memory for it.
  /// Other errors are those of Device::copy() and Device::launch().
  Status queue(StreamHandle stream, std::span<const Bytes> ranges, Job& job);

  /// REQUIRES: an event after the job's queue() is done.
  void give_back(Job job) { pool_.give_back(std::move(job.pages_)); }

 private:
  /// Where things lie in the device's memory.
  struct Layout {
    std::uint64_t parts = 0;  ///< Offsets of tables, and of what they make.
    std::uint64_t small = 0;
    std::uint64_t results = 0;
    std::uint64_t small_bytes = 0;
    std::uint64_t sums = 0;
  };
  static Layout lay_out(const DigestPlan& plan);
  Status make_room(const Layout& layout, Job& job);
  /// Returns the rows of the small parts.
  std::span<CopyTensor> write_tables(const Layout& layout, Job& job) const;
  Status launch_all(StreamHandle stream, const Layout& layout, const Job& job);

  const std::shared_ptr<Device> device_;
  const std::uint64_t sums_bytes_max_;
  HostPagePool pool_;
  Memory memory_;
};

}  // namespace freshet::gpu
