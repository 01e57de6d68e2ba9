// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The choice of the version that a job goes on from, and of the rank that brings each shard. Rank 0 decides from the
/// inventories of all ranks, without I/O. The ranks try the plan. Rank 0 crosses damaged shards off, and makes the next
/// plan. Each round crosses something off, so there is an end.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/shards/shard.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/levels/terms/terms.h"

namespace freshet::levels {

/// A shard that a rank can read: in its folders, or in its memory.
struct OfferedShard {
  ShardKey key;
  std::uint64_t step = 0;
  bool in_memory = false;
  bool bytes_only = false;  ///< True: kept only for other shards that need its bytes; its version was released.
  ShardKind kind = ShardKind::own;
  std::vector<Version> needs;          ///< Versions with shards of the same rank and kind that have some of its bytes.
  std::vector<std::uint32_t> members;  ///< For parity: the ranks that it has parity of.
  std::uint32_t losses = 0;            ///< For parity: the number of these ranks that may be lost.
};
OfferedShard offered(const HeldShard& shard);

/// The shards and facts that one rank brings to a restart.
struct Inventory {
  std::vector<OfferedShard> held;
  VersionNumber number_max = 0;
  std::uint64_t incarnation_max = 0;
  std::vector<VersionNumber> acknowledged = std::vector<VersionNumber>(kLevels);
  std::optional<Error> error;  ///< The reason why this rank cannot begin.
};
std::vector<std::byte> encode(const Inventory& inventory);
Result<Inventory> decode_inventory(Bytes bytes);

/// The place of a shard of the version, or of a shard that it needs.
struct Holder {
  Version version;
  std::uint32_t shard_rank = 0;
  std::uint32_t holder = 0;
  bool in_memory = false;
  ShardKind kind = ShardKind::own;
  ShardKey key(std::uint32_t ranks) const { return {.version = version, .rank = shard_rank, .ranks = ranks}; }
  auto operator<=>(const Holder&) const = default;
};

/// Rank `by` of the restarting job computes the shard of rank `shard_rank`, and keeps it.
struct RebuildTask {
  std::uint32_t shard_rank = 0;
  std::uint32_t by = 0;
  auto operator<=>(const RebuildTask&) const = default;
};

struct RestartPlan {
  /// rebuild: ranks compute the missing shards from parity; then comes the next plan.
  enum class Source : std::uint8_t { nothing = 0, shards = 1, repository = 2, rebuild = 3 };
  bool final = false;  ///< True: all ranks carried the plan out, and the job goes on.
  Source source = Source::nothing;
  Version version;
  std::uint64_t step = 0;
  std::uint32_t ranks = 0;      ///< The version's number of ranks; 1 in the repository.
  std::vector<Holder> holders;  ///< For each shard, all its holders. In the repository: one, any rank that can read it.
  std::vector<RebuildTask> rebuilds;
  bool each_has_its_own = false;  ///< Only within a running job, not on the wire: each rank has its shard's bytes.
  RunId run;                      ///< For the final plan: the run of the job's next versions.
  std::uint64_t incarnation = 0;
  VersionNumber next_number = 0;
  VersionNumber group_number = 0;  ///< For the final plan: the newest version that was acknowledged at `group`.
  std::vector<std::string> notes;  ///< Skipped versions and shards, and why.
};
std::vector<std::byte> encode(const RestartPlan& plan);
Result<RestartPlan> decode_plan(Bytes bytes);

/// A fault that a rank found while it carried a plan out.
struct BadShard {
  Holder where;
  std::string why;
};
struct RestartOutcome {
  std::vector<BadShard> bad;
  std::optional<Error> error;  ///< An error that no other plan would avoid.
};
std::vector<std::byte> encode(const RestartOutcome& outcome);
Result<RestartOutcome> decode_outcome(Bytes bytes);

/// A version in the repository.
struct StoredVersion {
  Version version;
  std::uint64_t step = 0;
  std::uint32_t ranks = 0;  ///< 0: not recorded.
};

/// One thread at a time, rank 0's.
class RestartPlanner {
 public:
  RestartPlanner(std::vector<Inventory> inventories, std::vector<StoredVersion> stored, RestartChoice choice);

  /// A plan for the newest version that can still be completed. If the version is whole in folders and in the
  /// repository, the folders come first. A rebuild comes before the repository, too. Source::nothing: begin anew.
  /// corrupt: a version was acknowledged, and no version can be completed; the message names the missing shards.
  /// not_found: the chosen version does not exist.
  Result<RestartPlan> next() const;
  /// The repository, or a version in it, is damaged. The job then goes on from no version that is older than the newest
  /// one that was acknowledged there, unless the choice names it: next() fails with corrupt in its place.
  void pass_over_repository(std::string why);
  /// These shards are not tried again; the reasons are for people. If a bad shard is a copy at a rank, that rank does
  /// not rebuild it, either.
  void cross_off(Version version, const std::vector<BadShard>& bad, RestartPlan::Source source);
  /// The shards of a plan with rebuilds exist now.
  void add_rebuilt(const Version& version, const std::vector<RebuildTask>& rebuilt);
  VersionNumber number_max() const;
  std::uint64_t incarnation_max() const;
  VersionNumber acknowledged_max(Level level) const;

 private:
  /// The holder, and the shard that it offers.
  using Offer = std::pair<Holder, OfferedShard>;
  using Offers = std::map<std::uint32_t, std::vector<Offer>>;  ///< By the shard's rank.
  struct Candidate {
    std::uint64_t step = 0;
    std::set<std::uint32_t> ranks;  ///< The numbers of ranks in the version's shards; more than one number is damage.
    Offers shards;
    Offers parity;
  };
  using Holders = std::map<std::pair<Version, std::uint32_t>, std::set<Holder>>;  ///< By version and shard's rank.
  struct Found {
    std::vector<Holder> holders;  ///< Of the shard, and of the shards that it needs.
    std::string missing;          ///< Empty: the shard is whole.
  };
  void add(const OfferedShard& shard, std::uint32_t at);
  bool is_chosen(std::uint64_t step) const { return step >= choice_.step_min && step <= choice_.step_max; }
  Result<RestartPlan> newest_plan() const;
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
  /// Version, shard's rank, computing rank.
  std::set<std::tuple<Version, std::uint32_t, std::uint32_t>> cannot_rebuild_;
  std::set<Version> crossed_in_repository_;
  bool repository_is_damaged_ = false;
  std::vector<std::string> notes_;  ///< The crossed-off shards, and why.
};

}  // namespace freshet::levels
