// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One restore() of all ranks: rank 0 makes a plan, all try it, and rank 0 makes it anew without what turned out
/// damaged, until one holds.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/rank/answers.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/version_book.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/restart/restart_plan.h"

namespace freshet::levels {

/// For one call.
class Restore {
 public:
  Restore(const Job& job, const VersionBook& book, Answers& answers, std::span<const MutableBytes> held,
          RestartChoice choice)
      : job_(job), book_(book), answers_(answers), held_(held), choice_(choice) {}

  struct Decided {
    RestartPlan plan;  ///< The final one.
    Checkpointer::Restored restored;
    Baseline baseline;
  };
  /// Collective. Errors as Checkpointer::restore().
  Result<Decided> run();

 private:
  Status check_held() const;
  Inventory inventory() const;
  // At rank 0.
  Result<RestartPlan> first_plan(std::vector<std::vector<std::byte>> parts);
  Result<RestartPlan> next_plan(std::vector<std::vector<std::byte>> parts, RestartPlan tried);
  // At each rank.
  RestartOutcome carry_out(const RestartPlan& plan);
  Status read_shards(RestartPlan plan, std::vector<BadShard>& bad);
  Status rebuild_shards(const RestartPlan& plan, std::vector<BadShard>& bad);
  Status nothing_is_filled() const;
  /// What this rank takes of a version's tensors; `found`: their indices in `table`, by own tensor, or -1.
  Result<std::vector<WantedPiece>> wanted_of(const TensorTable& table, std::vector<std::int64_t>& found);
  /// Of the chunks of this rank's pieces, as far as they were found.
  std::vector<Digest> digests_of(const std::vector<std::int64_t>& found) const;
  /// Pieces of tensors that were not found are not known.
  void set_baseline(std::vector<Digest> digests, const std::vector<std::int64_t>& found,
                    const std::vector<Version>& writers);

  const Job& job_;
  const VersionBook& book_;
  Answers& answers_;
  const std::span<const MutableBytes> held_;
  const RestartChoice choice_;
  std::optional<RestartPlanner> planner_;  ///< Rank 0's.
  /// Tensors that were filled so far, by index, and from which version.
  std::map<std::size_t, VersionNumber> filled_;
  // Of the plan that is tried.
  Checkpointer::Restored restored_;
  Baseline baseline_;
};

}  // namespace freshet::levels
