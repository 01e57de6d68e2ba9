// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Providers for tests: repositories in memory behind links that can be cut, before a call or before its answer.

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "repo/backend/backend_wrapper.h"
#include "repo/cluster/cluster_repository.h"
#include "repo/cluster/placement/membership.h"
#include "tests/repo/world.h"

namespace freshet {

/// What becomes of the next call over a link.
enum class Fate { done, lost, answer_lost };

/// A repository over a link. `fate` is asked before each call, `is_cut` before its answer. Any thread.
class LinkedRepository : public ProviderRepository, private PartPuts {
 public:
  LinkedRepository(ProviderRepository& inner, std::function<Fate()> fate, std::function<bool()> is_cut = nullptr)
      : inner_(inner), fate_(std::move(fate)), is_cut_(std::move(is_cut)) {}

  Result<VersionName> put(const Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t)>& bytes_of,
                          PutOptions options) override {
    return call([&] { return inner_.put(manifest, bytes_of, options); });
  }
  PartPuts& part_puts() override { return *this; }
  Result<VersionRecord> get(const VersionName& name) const override {
    return call([&] { return inner_.get(name); });
  }
  Result<VersionNumber> latest(const std::string& model) const override {
    return call([&] { return inner_.latest(model); });
  }
  Result<std::optional<VersionName>> find(const VersionId& id) const override {
    return call([&] { return inner_.find(id); });
  }
  Status read(const VersionRecord& record, std::span<const TensorRead> reads) const override {
    return call([&] { return inner_.read(record, reads); });
  }
  Result<std::vector<std::uint32_t>> wanted(const Manifest& manifest, const PutOptions& options) const override {
    return call([&] { return inner_.wanted(manifest, options); });
  }
  Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                    MutableBytes out) const override {
    return call([&] { return inner_.read_range(record, tensor, offset, out); });
  }
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override {
    return call([&] { return inner_.owners(name); });
  }
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override {
    return call([&] { return inner_.lineage(name); });
  }
  Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const override {
    return call([&] { return inner_.mrca(a, b); });
  }
  Result<std::vector<LineageRow>> descendants(const VersionName& name) const override {
    return call([&] { return inner_.descendants(name); });
  }
  Result<std::vector<ContributorRow>> contributors(const VersionName& name) const override {
    return call([&] { return inner_.contributors(name); });
  }
  Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const override {
    return call([&] { return inner_.diff(a, b); });
  }
  Result<MatchAnswer> match(const MatchQuery& query) override {
    return call([&] { return inner_.match(query); });
  }
  Result<std::vector<ModelRow>> model_rows() const override {
    return call([&] { return inner_.model_rows(); });
  }
  Result<std::vector<LineageRow>> versions(const std::string& model) const override {
    return call([&] { return inner_.versions(model); });
  }
  Status pin(const VersionName& name, const std::string& by, const PinTerms& terms) override {
    return call([&] { return inner_.pin(name, by, terms); });
  }
  Status unpin(const VersionName& name, const std::string& by, const PinTerms& terms) override {
    return call([&] { return inner_.unpin(name, by, terms); });
  }
  Status renew_pins(const PinLease& lease) override {
    return call([&] { return inner_.renew_pins(lease); });
  }
  Result<std::vector<std::string>> pins(const VersionName& name) const override {
    return call([&] { return inner_.pins(name); });
  }
  Result<std::vector<PinnedVersion>> all_pins() const override {
    return call([&] { return inner_.all_pins(); });
  }
  Status annotate(const VersionName& name, const Annotations& annotations) override {
    return call([&] { return inner_.annotate(name, annotations); });
  }
  Result<RetireReport> retire(const VersionName& name, const RetireOptions& options) override {
    return call([&] { return inner_.retire(name, options); });
  }
  Result<GcReport> gc(const GcOptions& options, const Progress& progress) override {
    return call([&] { return inner_.gc(options, progress); });
  }
  Status add_referrer(const ExternalReferrer& referrer) override {
    return call([&] { return inner_.add_referrer(referrer); });
  }
  Status drop_referrer(const VersionId& version, std::uint64_t attempt) override {
    return call([&] { return inner_.drop_referrer(version, attempt); });
  }
  Result<std::vector<ExternalReferrer>> referrers() const override {
    return call([&] { return inner_.referrers(); });
  }
  Status read_segments(std::span<const SegmentRead> reads) const override {
    return call([&] { return inner_.read_segments(reads); });
  }
  Status read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const override {
    return call([&] { return inner_.read_segment_range(segment, offset, out); });
  }
  Result<bool> settle_put(const VersionId& id, std::uint64_t attempt) override {
    return call([&] { return inner_.settle_put(id, attempt); });
  }
  Result<std::uint64_t> revive_segments(std::span<const SegmentContent> segments) override {
    return call([&] { return inner_.revive_segments(segments); });
  }
  Result<SharedRecord> shared_record(const std::string& key) const override {
    return call([&] { return inner_.shared_record(key); });
  }
  Result<std::vector<SharedRecord>> shared_records(const std::string& prefix, const std::string& after) const override {
    return call([&] { return inner_.shared_records(prefix, after); });
  }
  Status change_shared_records(std::span<const SharedRecord> expected, std::span<const SharedRecord> changes) override {
    return call([&] { return inner_.change_shared_records(expected, changes); });
  }
  Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                   VersionNumber desired) override {
    return call([&] { return inner_.set_alias(model, alias, expected, desired); });
  }
  Status keep_for_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                        VersionNumber desired) override {
    return call([&] { return inner_.keep_for_alias(model, alias, expected, desired); });
  }
  Result<std::vector<Alias>> aliases(const std::string& model) const override {
    return call([&] { return inner_.aliases(model); });
  }
  Result<RepositoryStat> stat() const override {
    return call([&] { return inner_.stat(); });
  }
  Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const override {
    return call([&] { return inner_.verify(name, progress); });
  }
  Result<RepairReport> repair() override {
    return call([&] { return inner_.repair(); });
  }

 private:
  Result<PutToken> begin_put(const std::string& model, const VersionId& id,
                             std::shared_ptr<const Architecture> architecture) override {
    return call([&] { return inner_.part_puts().begin_put(model, id, architecture); });
  }
  Status put_parts(const PutToken& token, std::span<const TensorPart> parts) override {
    return call([&] { return inner_.part_puts().put_parts(token, parts); });
  }
  Result<std::vector<std::optional<Digest>>> part_digests(const PutToken& token) override {
    return call([&] { return inner_.part_puts().part_digests(token); });
  }
  Result<VersionName> commit_put(const PutToken& token, const Manifest& manifest, PutOptions options) override {
    return call([&] { return inner_.part_puts().commit_put(token, manifest, options); });
  }
  Status abort_put(const PutToken& token) override {
    return call([&] { return inner_.part_puts().abort_put(token); });
  }

  template <typename Work>
  auto call(const Work& work) const -> decltype(work()) {
    const Fate fate = fate_();
    if (fate == Fate::lost) return fail(Code::unavailable, "no answer");
    auto answer = work();
    if (fate == Fate::answer_lost || (is_cut_ && is_cut_())) return fail(Code::unavailable, "no answer");
    if (Interruption::is_wanted()) return fail(Code::cancelled, "the wait for the answer was interrupted");
    return answer;
  }

  ProviderRepository& inner_;
  const std::function<Fate()> fate_;
  const std::function<bool()> is_cut_;
};

/// A disk that may be full: nothing can be written then, but something erased.
class DiskWithLimit final : public BackendWrapper {
 public:
  DiskWithLimit(std::shared_ptr<Backend> disk, std::shared_ptr<const std::atomic<bool>> full)
      : BackendWrapper(std::move(disk)), full_(std::move(full)) {}
  Status apply(const Batch& batch) override {
    const bool writes =
        std::ranges::any_of(batch, [](const auto& one) { return std::holds_alternative<Backend::Put>(one); });
    if (writes && *full_) return fail(Code::out_of_space, "no space left on device");
    return BackendWrapper::apply(batch);
  }

 private:
  const std::shared_ptr<const std::atomic<bool>> full_;
};

/// A cluster of providers "p0", "p1", … in this process.
class ClusterWorld {
 public:
  explicit ClusterWorld(int providers) {
    std::vector<Provider> list;
    for (int i = 0; i < providers; ++i) list.push_back(add());
    auto formed = cluster::form(list, connect());
    FRESHET_CHECK(formed.has_value());
    placement_ = *formed;
  }

  /// A provider that belongs to nobody yet.
  Provider add() {
    const std::string id = "p" + std::to_string(stores_.size());
    const MutexLock lock(mutex_);
    backends_[id] = make_memory_backend();
    full_[id] = std::make_shared<std::atomic<bool>>(false);
    stores_[id] = open_or_die(std::make_unique<DiskWithLimit>(backends_[id], full_[id]));
    return {.id = id, .address = "mem://" + id};
  }

  ProviderRepository& at(const std::string& id) { return *stores_.at(id); }
  ProviderRepository& at(std::size_t i) { return at(placement_.providers()[i].id); }
  /// What it keeps, beneath it.
  Backend& backend(const std::string& id) { return *backends_.at(id); }
  /// Opens it anew. Nobody may be connected to it.
  void restart(const std::string& id) {
    stores_[id] = open_or_die(std::make_unique<DiskWithLimit>(backends_.at(id), full_.at(id)));
  }
  /// All their disks are full, or have room again.
  void fill_disks(bool full) {
    for (const auto& [id, disk] : full_) *disk = full;
  }
  void fill_disk(const std::string& id, bool full) { *full_.at(id) = full; }
  std::size_t size() const { return stores_.size(); }
  const Placement& placement() const { return placement_; }

  /// A cut provider answers nobody.
  void cut(const std::string& id) { set_cut(id, true); }
  void mend(const std::string& id) { set_cut(id, false); }
  /// Decides what becomes of each call, after cuts. Called by several threads at once.
  void set_fate(std::function<Fate()> fate) {
    const MutexLock lock(mutex_);
    fate_ = std::move(fate);
  }

  cluster::Connect connect() {
    return [this](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
      if (is_cut(provider.id)) return fail(Code::unavailable, "connection refused");
      return std::make_shared<LinkedRepository>(
          at(provider.id), [this, id = provider.id] { return fate_of(id); },
          [this, id = provider.id] { return is_cut(id); });
    };
  }
  std::unique_ptr<ClusterRepository> open() {
    auto opened = ClusterRepository::open(placement_, connect());
    FRESHET_CHECK(opened.has_value());
    return std::move(*opened);
  }

 private:
  void set_cut(const std::string& id, bool is) {
    const MutexLock lock(mutex_);
    cut_[id] = is;
  }
  bool is_cut(const std::string& id) {
    const MutexLock lock(mutex_);
    return cut_[id];
  }
  Fate fate_of(const std::string& id) {
    std::function<Fate()> fate;
    {
      const MutexLock lock(mutex_);
      if (cut_[id]) return Fate::lost;
      fate = fate_;
    }
    return fate ? fate() : Fate::done;
  }

  Placement placement_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> full_;
  std::map<std::string, std::shared_ptr<Backend>> backends_;
  std::map<std::string, std::unique_ptr<ProviderRepository>> stores_;
  std::map<std::string, bool> cut_ FRESHET_GUARDED_BY(mutex_);
  std::function<Fate()> fate_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
