// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `memory`: copies what this rank stores of a version into a share, tensor by tensor, and compares it with
/// the version before.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/teller.h"
#include "repo/levels/rank/version_book.h"
#include "repo/levels/shards/copy_thread.h"
#include "repo/levels/shards/share.h"

namespace freshet::levels {

/// One thread at a time. The functions are those of Checkpointer.
class Capture {
 public:
  Capture(const Job& job, VersionBook& book, Teller& teller) : job_(job), book_(book), teller_(teller) {}

  /// Of this life's first version.
  void set_first_number(VersionNumber number) { next_number_ = number; }
  /// What the next version is compared with, from now on.
  void set_baseline(Baseline baseline) { baseline_ = std::move(baseline); }
  const Baseline& baseline() const { return baseline_; }
  bool is_under_way() const { return share_ != nullptr; }
  VersionNumber last_number() const { return next_number_ - 1; }

  Result<VersionNumber> begin(std::uint64_t step);
  Status capture(std::size_t tensor, Bytes held, bool beside);
  Status wait_for_copy(std::size_t tensor);
  Result<Checkpointer::Captured> end();
  /// No memory of the program is read afterwards.
  void stop_copies() { copies_.reset(); }

 private:
  Status check(std::size_t tensor, Bytes held) const;
  Status check_index(std::size_t tensor) const;
  std::optional<Error> first_missing() const;
  /// Pieces that are equal to the baseline's keep its writer. Returns the bytes of the others.
  std::uint64_t inherit_equal(Share& share);

  const Job& job_;
  VersionBook& book_;
  Teller& teller_;
  VersionNumber next_number_ = 1;
  Baseline baseline_;
  // Of the version under way.
  std::shared_ptr<Share> share_;
  std::vector<bool> captured_;
  std::optional<Error> error_;
  Duration blocked_{};
  std::optional<CopyThread> copies_;  ///< From the first capture beside the loop on.
};

}  // namespace freshet::levels
