// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which version a job goes on from, and who brings which shard: decided at rank 0 from what all ranks hold, without
/// I/O. It is tried; what turned out damaged is crossed off, and the next plan is made. Each round crosses off
/// something, so there is an end.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/result.h"
#include "repo/levels/level_board.h"
#include "repo/levels/shard.h"

namespace freshet::levels {

/// A shard that a rank can read: in its folders, or in its memory.
struct OfferedShard {
  ShardKey key;
  std::uint64_t step = 0;
  bool in_memory = false;
  bool bytes_only = false;  ///< For others that need them; as a version it was let go.
  ShardKind kind = ShardKind::own;
  std::vector<Version> needs;          ///< Shards of the same rank and kind that have some of its bytes.
  std::vector<std::uint32_t> members;  ///< Of parity: whose shares it stands for,
  std::uint32_t losses = 0;            ///< and how many of them may be lost.
};

/// What one rank brings to a restart.
struct Inventory {
  std::vector<OfferedShard> held;
  VersionNumber number_max = 0;
  std::uint64_t incarnation_max = 0;
  std::vector<VersionNumber> acknowledged = std::vector<VersionNumber>(kLevels);
  std::optional<Error> error;  ///< It cannot begin.
};
std::vector<std::byte> encode(const Inventory& inventory);
Result<Inventory> decode_inventory(Bytes bytes);

/// Where a shard of the version, or one that it needs, is to be read.
struct Holder {
  Version version;
  std::uint32_t shard_rank = 0;
  std::uint32_t holder = 0;
  bool in_memory = false;
  ShardKind kind = ShardKind::own;
  auto operator<=>(const Holder&) const = default;
};

/// The rank `by` of the job that restarts computes that rank's shard, and keeps it.
struct RebuildTask {
  std::uint32_t shard_rank = 0;
  std::uint32_t by = 0;
  auto operator<=>(const RebuildTask&) const = default;
};

struct RestartPlan {
  /// rebuild: what is missing is computed from parity; then the next plan.
  enum class Source : std::uint8_t { nothing = 0, shards = 1, repository = 2, rebuild = 3 };
  bool final = false;  ///< All did it; the job goes on.
  Source source = Source::nothing;
  Version version;
  std::uint64_t step = 0;
  std::uint32_t ranks = 0;      ///< Of the version.
  std::vector<Holder> holders;  ///< For a shard all who have it.
  std::vector<RebuildTask> rebuilds;
  bool each_has_its_own = false;  ///< Within a running job, not on the wire: each rank has what its shard needs.
  RunId run;                      ///< Of the final plan: how the job's next versions are called.
  std::uint64_t incarnation = 0;
  VersionNumber next_number = 0;
  VersionNumber group_number = 0;  ///< Of the final plan: the newest version that was acknowledged at `group`.
  std::vector<std::string> notes;  ///< What was passed over, and why.
};
std::vector<std::byte> encode(const RestartPlan& plan);
Result<RestartPlan> decode_plan(Bytes bytes);

/// What a rank found wrong while it carried a plan out.
struct BadShard {
  Holder where;  ///< Of the repository: shard_rank and holder are 0.
  std::string why;
};
struct RestartOutcome {
  std::vector<BadShard> bad;
  std::optional<Error> error;  ///< Nothing that another plan would mend.
};
std::vector<std::byte> encode(const RestartOutcome& outcome);
Result<RestartOutcome> decode_outcome(Bytes bytes);

/// A version in the repository.
struct StoredVersion {
  Version version;
  std::uint64_t step = 0;
  std::uint32_t ranks = 0;  ///< 0: it was not said.
};

struct RestartChoice {
  bool from_nothing = false;             ///< Begin anew, whatever is there.
  bool same_history = false;             ///< With from_nothing: what is there stays as long as if it had been restored.
  std::optional<VersionNumber> version;  ///< That one alone.
  std::uint64_t step_min = 0;            ///< The newest of those whose step is neither smaller
  std::uint64_t step_max = UINT64_MAX;   ///< nor greater.
};

/// One thread at a time, rank 0's.
class RestartPlanner {
 public:
  RestartPlanner(std::vector<Inventory> inventories, std::vector<StoredVersion> stored, RestartChoice choice);

  /// The newest version that can still be completed. Of one that is whole in folders and in the repository, first the
  /// folders'; what can be rebuilt comes before the repository, too. nothing: begin anew. corrupt when something was
  /// acknowledged and nothing can be completed: the message says what is missing; not_found for a choice that is not
  /// there.
  Result<RestartPlan> next() const;
  /// Not to be tried again; the reason is for people. A copy at a rank: that rank is not asked to rebuild it, either.
  void cross_off(Version version, const std::vector<BadShard>& bad, RestartPlan::Source source);
  /// What a plan with rebuilds asked for is there now.
  void add_rebuilt(const Version& version, const std::vector<RebuildTask>& rebuilt);
  VersionNumber number_max() const;
  std::uint64_t incarnation_max() const;
  VersionNumber acknowledged_max(Level level) const;

 private:
  /// By whom, and what.
  using Offer = std::pair<Holder, OfferedShard>;
  using Offers = std::map<std::uint32_t, std::vector<Offer>>;  ///< By the shard's rank.
  struct Candidate {
    std::uint64_t step = 0;
    std::set<std::uint32_t> ranks;  ///< Numbers of ranks that shards of it name; more than one is damage.
    Offers shards;
    Offers parity;
  };
  using Holders = std::map<std::pair<Version, std::uint32_t>, std::set<Holder>>;  ///< By version and shard's rank.
  struct Found {
    std::vector<Holder> holders;  ///< Of the shard, and of those that it needs.
    std::string missing;          ///< Empty: it is whole.
  };
  void add(const OfferedShard& shard, std::uint32_t at);
  bool is_chosen(std::uint64_t step) const { return step >= choice_.step_min && step <= choice_.step_max; }
  Found find(const Version& version, const Offers& offers, std::uint32_t rank, const Holders& all) const;
  bool add_group_of(const Version& version, const Candidate& candidate, std::uint32_t rank,
                    std::set<Holder>& holders) const;
  std::optional<RestartPlan> plan_for(const Version& version, const Candidate& candidate, std::string& missing) const;

  const std::vector<Inventory> inventories_;
  const std::vector<StoredVersion> stored_;
  const RestartChoice choice_;
  std::map<Version, Candidate> candidates_;
  Holders holders_;
  Holders parity_holders_;
  std::set<std::tuple<Version, std::uint32_t, std::uint32_t>> cannot_rebuild_;  ///< Version, shard's rank, by whom.
  std::set<Version> crossed_in_repository_;
  std::vector<std::string> notes_;  ///< What was crossed off, and why.
};

}  // namespace freshet::levels
