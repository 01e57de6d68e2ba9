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
  bool bytes_only = false;     ///< For others that need them; as a version it was let go.
  bool copy = false;           ///< Another rank's, kept for its host's end (level `group`).
  std::vector<Version> needs;  ///< Shards of the same rank that have some of its bytes.
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
  bool copy = false;
  auto operator<=>(const Holder&) const = default;
};

struct RestartPlan {
  enum class Source : std::uint8_t { nothing = 0, shards = 1, repository = 2 };
  bool final = false;  ///< All did it; the job goes on.
  Source source = Source::nothing;
  Version version;
  std::uint64_t step = 0;
  std::uint32_t ranks = 0;        ///< Of the version.
  std::vector<Holder> holders;    ///< For a shard all who have it.
  bool each_has_its_own = false;  ///< Within a running job, not on the wire: each rank has what its shard needs.
  RunId run;                      ///< Of the final plan: how the job's next versions are called.
  std::uint64_t incarnation = 0;
  VersionNumber next_number = 0;
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
  std::optional<VersionNumber> version;  ///< That one alone.
};

/// One thread at a time, rank 0's.
class RestartPlanner {
 public:
  RestartPlanner(std::vector<Inventory> inventories, std::vector<StoredVersion> stored, RestartChoice choice);

  /// The newest version that can still be completed. Of one that is whole in folders and in the repository, first the
  /// folders'. nothing: begin anew. corrupt when something was acknowledged and nothing can be completed: the message
  /// says what is missing; not_found for a choice that is not there.
  Result<RestartPlan> next() const;
  /// Not to be tried again; the reason is for people.
  void cross_off(Version version, const std::vector<BadShard>& bad, RestartPlan::Source source);
  VersionNumber number_max() const;
  std::uint64_t incarnation_max() const;

 private:
  struct Candidate {
    std::uint64_t step = 0;
    std::set<std::uint32_t> ranks;  ///< Numbers of ranks that shards of it name; more than one is damage.
    std::map<std::uint32_t, const OfferedShard*> shards;
  };
  std::optional<std::vector<Holder>> holders_for(const Version& version, const Candidate& candidate,
                                                 std::string& missing) const;

  const std::vector<Inventory> inventories_;
  const std::vector<StoredVersion> stored_;
  const RestartChoice choice_;
  std::map<Version, Candidate> candidates_;
  std::map<std::pair<Version, std::uint32_t>, std::set<Holder>> holders_;
  std::set<Version> crossed_in_repository_;
  std::vector<std::string> notes_;  ///< What was crossed off, and why.
};

}  // namespace freshet::levels
