// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One repository that several providers keep together. A version rests with the provider that its identity hashes to,
/// its home: its record, and the tensors that it wrote. Tensors that it inherits stay where they are, and its record
/// leads there; so reading a version takes its record and one bulk read of each provider that has a part of it, all at
/// the same time, straight into the caller's memory.
///
/// Everything is done by the client: it asks the providers, which need nothing of each other. What must survive a
/// client's death half-way is the business of repo/cluster/protocol.h.
///
/// PutOptions::dedup and deltas do not count here: equal content is found, and differences are made, within one store,
/// and what a version inherits may rest in another.
///
/// A provider that is away takes nothing from the others. What cannot be answered without it is unavailable, and the
/// error names it; when it is back, it is used again. A match goes on without it, and says so. So does a put: a version
/// whose identity was drawn for it (PutOptions::drawn_id) gets one whose home answers, and what it inherits from one
/// that is away is asked of the caller. What waits for a provider, and only that: versions with identities of their own
/// (a publisher's) whose home it is, models whose versions it numbers, and puts whose caller has not got the bytes that
/// rest there (docs/cli/providers.md, "While a provider is away").

#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "repo/cluster/member.h"
#include "repo/cluster/protocol.h"
#include "repo/records/placement.h"
#include "repo/repository.h"

namespace freshet {

/// Any thread. Writes of different versions go on at the same time.
class ClusterRepository final : public Repository {
 public:
  using Connect = cluster::Connect;

  /// `known` is a placement that any of the providers told (cluster::placement_at); a newer one is learned from them.
  static Result<std::unique_ptr<ClusterRepository>> open(const Placement& known, Connect connect);
  ~ClusterRepository() override;

  Placement placement() const;

  Result<VersionName> put(const Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                          PutOptions options) override;
  Result<VersionRecord> get(const VersionName& name) const override;
  Status annotate(const VersionName& name, const Annotations& annotations) override;
  Result<VersionNumber> latest(const std::string& model) const override;
  Result<std::optional<VersionName>> find(const VersionId& id) const override;
  Status read(const VersionRecord& record, std::span<const TensorRead> reads) const override;
  Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                    MutableBytes out) const override;
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override;
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override;
  Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const override;
  Result<std::vector<LineageRow>> descendants(const VersionName& name) const override;
  Result<std::vector<ContributorRow>> contributors(const VersionName& name) const override;
  Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const override;
  Result<MatchAnswer> match(const MatchQuery& query) override;
  Result<std::vector<std::string>> models() const override;
  Result<std::vector<LineageRow>> versions(const std::string& model) const override;
  Status pin(const VersionName& name, const std::string& by, const PinTerms& terms = {}) override;
  Status unpin(const VersionName& name, const std::string& by, const PinTerms& terms = {}) override;
  Result<std::vector<std::string>> pins(const VersionName& name) const override;
  Result<std::vector<PinnedVersion>> all_pins() const override;
  Result<RetireReport> retire(const VersionName& name, const RetireOptions& options) override;
  Result<GcReport> gc(const GcOptions& options, const Progress& progress) override;
  Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                   VersionNumber desired) override;
  Result<std::vector<Alias>> aliases(const std::string& model) const override;
  Result<RepositoryStat> stat() const override;
  Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const override;
  Result<RepairReport> repair() override;

  class Impl;

 private:
  explicit ClusterRepository(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
