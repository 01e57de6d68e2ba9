// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `memory`: copies what this rank stores of a version into a share, tensor by tensor. Tensors in a GPU's
/// memory are copied behind the loop (DeviceCopies); ShareSealer ends a capture.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/teller.h"
#include "repo/levels/rank/version_book.h"
#include "repo/levels/shards/copy_thread.h"
#include "repo/levels/shards/device_copies.h"
#include "repo/levels/shards/share.h"
#include "repo/levels/shards/share_sealer.h"
#include "repo/levels/terms/checkpoint_copies.h"

namespace freshet::levels {

/// One thread at a time. The functions are those of Checkpointer.
class Capture {
 public:
  Capture(const Job& job, VersionBook& book, Teller& teller) : job_(job), book_(book), teller_(teller) {}

  /// Of this life's first version.
  void set_first_number(VersionNumber number) { next_number_ = number; }
  /// What the next version is compared with, from now on. REQUIRES: wait_sealed() returned.
  void set_baseline(Baseline baseline);
  /// Returns when each version that was ended is in memory, or failed. timed_out; cancelled by an Interruption.
  Status wait_sealed(Duration at_most) const { return sealer_ ? sealer_->wait_idle(at_most) : Status(); }
  bool is_under_way() const { return share_ != nullptr; }
  VersionNumber last_number() const { return next_number_ - 1; }
  /// Of the last version that end() returned; 0: none.
  VersionNumber last_captured() const { return last_captured_; }

  Result<VersionNumber> begin(std::uint64_t step);
  Status capture(std::size_t tensor, Bytes held, bool beside);
  Status capture(std::span<const Checkpointer::Held> held);
  std::shared_ptr<const CheckpointCopies> copies() const { return queued_; }
  Status wait_for_copy(std::size_t tensor);
  Result<Checkpointer::Captured> end();
  /// No memory of the program is read afterwards. Waits for copies from GPUs as ~DeviceCopier() does.
  void stop_copies();

 private:
  Status check_all(std::span<const Checkpointer::Held> held);
  Status copy(std::span<const Checkpointer::Held> held);
  /// What this rank stores of what it holds. REQUIRES: it stores a piece.
  Bytes stored(const OwnTensor& own, Bytes held) const;
  /// The share is the book's.
  void give_to_book(const ShareSealer::Ended& ended);
  void tell(const ShareSealer::Ended& ended) const;
  Status check(std::size_t tensor, Bytes held) const;
  Status check_index(std::size_t tensor) const;
  std::optional<Error> first_missing() const;

  const Job& job_;
  VersionBook& book_;
  Teller& teller_;
  VersionNumber next_number_ = 1;
  VersionNumber last_captured_ = 0;
  std::optional<ShareSealer> sealer_;  ///< From the first set_baseline() on, which comes before begin().
  // Of the version under way.
  std::shared_ptr<Share> share_;
  std::shared_ptr<CheckpointCopies> queued_;  ///< From the first tensor in a GPU's memory on; until the next begin().
  std::vector<bool> captured_;
  std::optional<Error> error_;
  Duration blocked_{};
  std::optional<CopyThread> copies_;  ///< From the first capture beside the loop on.
  /// From the first capture of a tensor in a GPU's memory on. Before sealer_ it ends, so that the copies do.
  std::optional<DeviceCopies> device_;
};

}  // namespace freshet::levels
