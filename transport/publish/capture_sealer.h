// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The end of a capture, behind the loop: a thread that keeps what the last version is made of, puts each capture's
/// tensors in their places, makes the new segments live, and hands the whole over.

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/digest.h"
#include "core/base/mutex.h"
#include "transport/arena/slab_arena.h"
#include "transport/publish/capture.h"

namespace freshet {

class CaptureSealer {
 public:
  struct Tensor {
    std::uint32_t index = 0;
    SegmentIndex segment = 0;
    Digest digest;
    bool changed = true;  ///< False when a resumed version had the same bytes.
  };
  struct Job {
    std::uint64_t ticket = 0;
    std::size_t tensors_total = 0;
    bool fresh = false;           ///< The first of an architecture: has every tensor.
    std::vector<Tensor> tensors;  ///< Ascending by index.
  };

  CaptureSealer(SlabArena& arena, std::function<bool(SealedCapture)> on_sealed);
  /// Seals what was pushed and not dropped, then ends.
  ~CaptureSealer();

  /// Waits while two jobs are unfinished.
  void wait_for_turn();
  void push(Job job);
  Status wait_idle(Duration at_most);
  /// Drops all jobs but the one that is being worked on, and returns their tickets, ascending. Their segments are
  /// nobody's any more: for the end of the arena.
  std::vector<std::uint64_t> drop_unbegun();
  void wait_idle();

 private:
  void work();
  void seal(const Job& job);
  void merge_refused(const Job& job, std::vector<std::uint32_t>& changed);

  SlabArena& arena_;
  const std::function<bool(SealedCapture)> on_sealed_;

  // The worker's own: the last version sealed, by tensor.
  std::vector<SegmentIndex> segments_;
  std::vector<Digest> digests_;
  std::vector<Tensor> refused_;  ///< Of captures that on_sealed refused; ours until a later one takes them along.

  Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ FRESHET_GUARDED_BY(mutex_);  ///< The first is being worked on.
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace freshet
