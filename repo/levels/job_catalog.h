// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The checkpoints in the folders of a job's ranks, as the versions of a catalog. A version's ancestor is the version
/// before it there, as in the repository that a job brings its versions to. A tensor's owner is the version that last
/// changed a piece of it. A version that the job let go of is a retired one, as long as newer ones need bytes of it.

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/repository.h"

namespace freshet::levels {

/// Any thread. What the folders had when they were opened, as far as the descriptions of the shards tell it; verify()
/// reads them again.
class JobCatalog final : public VersionCatalog {
 public:
  /// not_found: one of these is not a folder, or none of them holds a checkpoint, not even a damaged one.
  static Result<std::unique_ptr<JobCatalog>> open(std::vector<std::string> folders);

  Result<std::vector<ModelRow>> model_rows() const override;
  Result<std::vector<LineageRow>> versions(const std::string& model) const override;
  /// corrupt where no shard of the version can be read.
  Result<VersionRecord> get(const VersionName& name) const override;
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override;
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override;
  Result<std::vector<std::string>> pins(const VersionName&) const override { return std::vector<std::string>(); }
  Result<std::vector<Alias>> aliases(const std::string&) const override { return std::vector<Alias>(); }
  /// RestingCheckpoints::verify(): of own shards, copies and parity.
  Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const override;

 private:
  struct Entry {
    LineageRow row;
    VersionRecord record;
    std::vector<OwnerRow> owners;
    std::optional<Error> damage;  ///< No shard of it could be read: there is no record.
  };
  using Entries = std::map<VersionNumber, Entry>;
  explicit JobCatalog(std::vector<std::string> folders) : folders_(std::move(folders)) {}
  static Entry entry_of(const ShardFolders& folders, std::span<const HeldShard> shards);
  Result<const Entries*> entries_of(const std::string& model) const;
  /// Number 0: the newest that is not retired.
  Result<Entries::const_iterator> find(const VersionName& name) const;

  const std::vector<std::string> folders_;
  std::map<std::string, Entries> models_;
};

}  // namespace freshet::levels
