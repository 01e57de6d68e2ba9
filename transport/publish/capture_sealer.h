// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The end of a capture, behind the loop. In ticket order, a complete capture is settled: tensors that equal those of
/// the version before are dropped. Of copies in a GPU's memory, the others are brought to host memory first, so equal
/// tensors cross no bus. Then a thread puts the others in their places, makes the new segments live, and
/// hands the whole over. Where the copies are complete when they are pushed, and nothing older is unsettled, the
/// capturing thread settles, so the dropped segments are free for its next capture.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/mutex.h"
#include "transport/arena/slab_arena.h"
#include "transport/publish/segment_pairs.h"
#include "transport/publish/tensor_copier.h"
#include "transport/publisher.h"

namespace freshet {

/// What came of a capture, by tensor index of its architecture.
struct SealedCapture {
  std::uint64_t ticket = 0;
  std::vector<std::uint32_t> changed;  ///< Ascending: the tensors that this version owns.
  std::uint64_t changed_bytes = 0;
  /// Of every tensor: this capture's, or that of the version before. Then those in device memory, in any order.
  std::vector<SegmentIndex> segments;
  std::vector<SegmentPlace> places;         ///< Of every tensor's segment in host memory.
  std::vector<SegmentPlace> device_places;  ///< Of every tensor, or none; of no bytes where the tensor is not there.
  std::vector<Digest> digests;              ///< Of every tensor.
  std::vector<std::uint64_t> slab_bytes;    ///< Of every slab that existed when it was sealed, by slab index.
  std::vector<std::uint64_t> device_slab_bytes;
};

/// A tensor of a capture, and the segment that its copy goes into.
struct CapturedTensor {
  std::uint32_t index = 0;
  SegmentIndex segment = 0;
  std::optional<SegmentIndex> on_device = {};  ///< The one in device memory that has the same bytes.
  bool is_paired = false;                      ///< As TensorCopy::is_paired.
  std::shared_ptr<const gpu::PackedDelta> delta = nullptr;
  Digest digest;
  bool changed = true;  ///< False when a resumed version had the same bytes.
};

/// Copies that were issued together. Shared with the copier, which completes them.
class IssuedCopies {
 public:
  explicit IssuedCopies(std::vector<CapturedTensor> of, bool lacks = false)
      : tensors(std::move(of)), lack_bytes(lacks) {}
  /// Once.
  void complete(TensorCopier::Copied copied);
  bool is_complete() const { return complete_.load(std::memory_order_acquire); }
  /// For the sealer. This wait ends: a copier completes all its copies, at the latest when the copier itself ends.
  void wait() const FRESHET_EXCLUDES(mutex_);
  /// False: the copies are not complete then.
  bool wait_until(Time deadline) const FRESHET_EXCLUDES(mutex_);

  std::vector<CapturedTensor> tensors;
  /// They end in device memory where a tensor has a segment there, and its segment in host memory is still empty.
  const bool lack_bytes;
  /// REQUIRES: complete.
  const TensorCopier::Copied& copied() const { return copied_; }

 private:
  TensorCopier::Copied copied_;
  std::atomic<bool> complete_{false};
  mutable Mutex mutex_;
  mutable CondVar completed_;
};

class CaptureSealer {
 public:
  using Copies = std::vector<std::shared_ptr<IssuedCopies>>;
  struct Job {
    std::uint64_t ticket = 0;
    Changed::Kind kind = Changed::Kind::find;
    std::vector<std::uint32_t> named;  ///< For `only`.
    Copies copies;                     ///< In the order in which they were issued.
    bool is_given_up = false;          ///< Its segments go back when the copies are complete; nothing is sealed.

    // The sealer's.
    bool lacks_bytes = false;  ///< As IssuedCopies::lack_bytes.
    bool is_settled = false;
    bool is_first = false;                ///< Of an architecture: has every tensor.
    std::vector<CapturedTensor> tensors;  ///< Ascending by index, once the copies are complete.
    Status copied;
  };

  using OnSealed = std::function<bool(SealedCapture)>;
  using OnFailed = std::function<void(std::uint64_t ticket, const Error& error)>;
  /// `bringer`: of copies that lack bytes; may be null where there are none.
  /// `pairs`: gets the segments of sealed captures.
  CaptureSealer(SlabArena& arena, SlabArena& on_device, SegmentPairs& pairs, TensorCopier* bringer, OnSealed on_sealed,
                OnFailed on_failed);
  ~CaptureSealer() { finish(); }

  /// Seals what was pushed and not dropped, then ends. Nothing is pushed afterwards.
  void finish();

  /// Forgets the versions: what comes next are captures of another architecture. REQUIRES: idle.
  void begin_architecture(std::size_t tensors);
  /// The digests that the first capture is compared with. REQUIRES: nothing was pushed since begin_architecture().
  void resume_from(const std::vector<Digest>& digests);

  /// Waits while two jobs are unfinished. False: they are so at the end of that time.
  bool wait_for_turn(Duration at_most);
  void push(Job job);
  /// The tensors of which a copy failed, ascending. Captures that do not have all of them fail as well.
  std::vector<std::uint32_t> lost() const;
  Status wait_idle(Duration at_most);
  /// Drops all jobs but the one that is being worked on, and returns their tickets, ascending. Their segments are
  /// nobody's any more: for the end of the arena.
  std::vector<std::uint64_t> drop_unbegun();

 private:
  /// The last capture that was settled, by tensor.
  struct Last {
    std::optional<Digest> digest;
    bool has_segment = false;

    /// Whether the next capture keeps its copy of the tensor. `told`: the caller said that it changed.
    bool keeps(const Digest& of_copy, bool told) const { return !has_segment || told || digest != of_copy; }
  };

  void work();
  void gather(Job& job);
  Status bring(std::span<const CapturedTensor> tensors);
  void bring_kept(Job& job) FRESHET_EXCLUDES(mutex_);
  std::vector<bool> told_by(const Job& job) const FRESHET_REQUIRES(mutex_);
  bool has_lost(const Job& job) const FRESHET_REQUIRES(mutex_);
  void settle(Job& job) FRESHET_REQUIRES(mutex_);
  void lose(Job& job, Error error) FRESHET_REQUIRES(mutex_);
  void release(const Job& job);
  void finish(Job& job);
  void seal(Job& job);
  void merge_refused(const Job& job, std::vector<std::uint32_t>& changed);

  void release(std::span<const SegmentIndex> segments);

  SlabArena& arena_;
  SlabArena& on_device_;
  SegmentPairs& pairs_;
  TensorCopier* const bringer_;
  const OnSealed on_sealed_;
  const OnFailed on_failed_;

  // The worker's own: the last version sealed, by tensor.
  std::vector<SegmentIndex> segments_;
  std::vector<std::optional<SegmentIndex>> device_segments_;
  std::vector<Digest> digests_;
  std::vector<CapturedTensor> refused_;  ///< Of captures that on_sealed refused; ours until a later one takes them.

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ FRESHET_GUARDED_BY(mutex_);  ///< The first is being worked on.
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::vector<Last> last_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> lost_ FRESHET_GUARDED_BY(mutex_);
  bool first_ FRESHET_GUARDED_BY(mutex_) = true;  ///< Nothing was settled of this architecture yet.
  std::thread thread_;
};

}  // namespace freshet
