// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One repository that several providers keep together. A hash of a version's identity chooses the provider that keeps
/// the version's record and the tensors that it wrote: its home. Inherited tensors stay where they are, and the record
/// names their places. So a read takes the record, then one bulk read from each provider with a part of the version.
/// These reads run at the same time, directly into the caller's memory.
///
/// The client does everything: it asks the providers, and they need nothing of each other. The steps that must survive
/// a client's death are in repo/cluster/protocol.h.
///
/// PutOptions::dedup and deltas have no effect here. Equal content is found, and differences are made, within one
/// store, and a version may inherit from another store.
///
/// If a provider is away, the others go on. A call that needs it is unavailable, and the error names it. When it is
/// back, calls use it again. A match goes on without it, and says so. A put goes on too: a version with a drawn id
/// (PutOptions::drawn_id) gets another one, whose home answers; and put() asks the caller for the tensors that it would
/// inherit from the absent provider. Only these calls wait for the provider: versions with their own identity (a
/// publisher's) whose home it is, puts of models that it numbers, and puts whose caller lacks bytes that the provider
/// keeps (docs/cli/providers.md, "While a provider is away").

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "repo/cluster/member.h"
#include "repo/cluster/protocol.h"
#include "repo/part_puts.h"
#include "repo/records/placement.h"
#include "repo/repository.h"

namespace freshet {

/// Any thread. Writes of different versions go on at the same time.
class ClusterRepository final : public Repository, private PartPuts {
 public:
  using Connect = cluster::Connect;

  /// `known` is a placement that any of the providers told (cluster::placement_at); a newer one is learned from them.
  static Result<std::unique_ptr<ClusterRepository>> open(const Placement& known, Connect connect);
  ~ClusterRepository() override;

  Placement placement() const;

  Result<VersionName> put(const Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                          PutOptions options) override;
  /// The version's home collects the parts. A token names this provider.
  PartPuts& part_puts() override { return *this; }
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
  Result<std::vector<ModelRow>> model_rows() const override;
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

  // In parts.cc.
  Result<PutToken> begin_put(const std::string& model, const VersionId& id,
                             std::shared_ptr<const Architecture> architecture) override;
  Status put_parts(const PutToken& token, std::span<const TensorPart> parts) override;
  Result<std::vector<std::optional<Digest>>> part_digests(const PutToken& token) override;
  Result<VersionName> commit_put(const PutToken& token, const Manifest& manifest, PutOptions options) override;
  Status abort_put(const PutToken& token) override;

  const std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
