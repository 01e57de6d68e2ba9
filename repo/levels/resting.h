// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Checkpoints of a job that does not run: what its folders and the repository can complete, read without the ranks.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/external_level.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/repository.h"

namespace freshet::levels {

/// How far a level can give a version back.
enum class Completeness : std::uint8_t { incomplete, rebuildable, complete };
std::string_view name_of(Completeness completeness);

struct RestingVersion {
  Version version;
  std::uint64_t step = 0;
  std::uint32_t ranks = 0;  ///< 0: the repository does not say.
  Completeness local = Completeness::incomplete;
  Completeness group = Completeness::incomplete;
  Completeness external = Completeness::incomplete;
  bool is_restorable() const;
};

/// All tensors of a version, in memory.
struct WholeVersion {
  Version version;
  std::uint64_t step = 0;
  Level from = Level::local;
  std::vector<std::string> notes;  ///< What was passed over, and why.
  std::vector<TensorSpec> specs;
  std::vector<std::vector<std::byte>> bytes;
};

/// One thread at a time.
class RestingCheckpoints {
 public:
  /// `repository` may be null. Folders that are not there are empty.
  /// A `repository` that is damaged (`corrupt`) is passed over: get() then takes no version that is older than what was
  /// acknowledged there, and verify() names the damage. Its other errors are those of this call.
  static Result<RestingCheckpoints> open(std::vector<std::string> folders,
                                         Result<std::shared_ptr<Repository>> repository, const std::string& model);

  /// Ascending. A version is complete at `local` when the heads of all that it needs are there; its bytes are not read.
  Result<std::vector<RestingVersion>> list() const;
  /// The one of that number, or the newest that can be completed. Every byte is proved. not_found; corrupt when it is
  /// there and cannot be completed.
  Result<WholeVersion> get(std::optional<VersionNumber> number) const;

  /// Reads every chunk that a version's shards name, and what the repository has: of all versions, or of that one. What
  /// is damaged and of no known version is told in each case; its record is the model. Adds to the report.
  Status verify(VerifyReport& report, std::optional<VersionNumber> number = {}) const;

  /// Brings what is complete in the folders and newer than the repository's newest there. What was brought, ascending.
  Result<std::vector<RestingVersion>> drain();

 private:
  using CheckedChunk = std::tuple<ShardKey, ShardKind, std::uint64_t>;  ///< Of a payload, by its offset.
  RestingCheckpoints() = default;
  using Kinds = std::set<ShardKind>;
  static Kinds all_kinds() { return {ShardKind::own, ShardKind::copy, ShardKind::parity}; }
  RestartPlanner planner(std::optional<VersionNumber> number, bool with_repository, const Kinds& kinds) const;
  bool has_all_parity(const RestingVersion& row) const;
  Result<WholeVersion> whole_from_shards(ShardSource& source, const RestartPlan& plan,
                                         std::vector<BadShard>& bad) const;
  Result<WholeVersion> whole_from_repository(const RestartPlan& plan, std::vector<BadShard>& bad) const;
  VerifyReport::Corrupt damage(const HeldShard& shard, std::string tensor, std::string reason) const;
  void verify_shard(const HeldShard& shard, VerifyReport& report, std::set<CheckedChunk>& checked) const;
  void verify_parity(const HeldShard& shard, VerifyReport& report, std::set<CheckedChunk>& checked) const;

  std::unique_ptr<ShardFolders> folders_;
  std::shared_ptr<Repository> repository_;
  std::unique_ptr<ExternalLevel> external_;
  std::vector<HeldShard> held_;
  std::vector<std::string> damaged_;
  std::vector<std::string> damage_of_repository_;
  std::vector<VersionNumber> acknowledged_;
  std::vector<StoredVersion> stored_;
};

}  // namespace freshet::levels
