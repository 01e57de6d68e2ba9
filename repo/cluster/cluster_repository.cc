// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/cluster_repository.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "core/base/format.h"
#include "repo/cluster/impl.h"
#include "repo/cluster/placement/membership.h"

namespace freshet {
namespace {

constexpr std::size_t kRemembered = std::size_t{1} << 16;

// What is remembered is bounded; all of it can be found again.
template <typename Map>
void make_room(Map& map) {
  if (map.size() >= kRemembered) map.clear();
}

}  // namespace

std::shared_ptr<const ClusterView> ClusterRepository::Impl::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

void ClusterRepository::Impl::set_placement(const Placement& placement) const {
  const MutexLock lock(mutex_);
  if (view_ != nullptr && view_->placement.number() >= placement.number()) return;
  auto next = std::make_shared<ClusterView>();
  next->placement = placement;
  for (const Provider& provider : placement.providers()) {
    MemberPointer member;
    if (view_ != nullptr) {
      for (const MemberPointer& known : view_->members) {
        const Provider& same = known->provider();
        if (same.id == provider.id && same.address == provider.address) member = known;
      }
    }
    if (member == nullptr) {
      member = std::make_shared<cluster::Member>(provider, connect_);
    }
    next->members.push_back(std::move(member));
  }
  view_ = std::move(next);
}

std::shared_ptr<const ClusterView> ClusterRepository::Impl::refresh() const {
  if (const auto newest = cluster::newest_placement(view()->placement, connect_)) set_placement(*newest);
  return view();
}

bool ClusterRepository::Impl::is_outdated(const ClusterView& view) const {
  return std::ranges::any_of(view.members, [&](const MemberPointer& member) {
    if (member->is_away()) return false;
    const Result<Placement> known = member->ask([](ProviderRepository& at) { return cluster::placement_at(at); });
    return known && known->number() > view.placement.number();
  });
}

void ClusterRepository::Impl::learn(const VersionName& name, const VersionId& id, const MemberPointer& home) const {
  const MutexLock lock(mutex_);
  make_room(names_);
  make_room(writers_);
  make_room(ids_);
  names_.insert_or_assign(name, Named{.home = home, .id = id});
  writers_.insert_or_assign(id, home);
  ids_.insert_or_assign(id, name);
}

void ClusterRepository::Impl::learn(const VersionRecord& record, const MemberPointer& home) const {
  const Manifest& manifest = record.manifest;
  learn(manifest.name, manifest.id, home);
  if (!record.has_weights) return;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const VersionId& writer = manifest.owners[tensor].writer;
    if (writer == manifest.id) continue;
    const Result<MemberPointer> place = place_of(record, home, tensor);
    if (!place) continue;
    const MutexLock lock(mutex_);
    make_room(writers_);
    writers_.try_emplace(writer, *place);
  }
}

void ClusterRepository::Impl::forget(const VersionName& name) const {
  const MutexLock lock(mutex_);
  names_.erase(name);
}

MemberPointer ClusterRepository::Impl::writer_at(const VersionId& id) const {
  const MutexLock lock(mutex_);
  const auto found = writers_.find(id);
  return found == writers_.end() ? nullptr : found->second;
}

ClusterRepository::ClusterRepository(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClusterRepository::~ClusterRepository() = default;

Result<std::unique_ptr<ClusterRepository>> ClusterRepository::open(const Placement& known, Connect connect) {
  if (known.number() == 0) return fail(Code::invalid_argument, "no placement of providers was given");
  auto impl = std::make_unique<Impl>(std::move(connect));
  impl->set_placement(known);
  impl->refresh();
  return std::unique_ptr<ClusterRepository>(new ClusterRepository(std::move(impl)));
}

Placement ClusterRepository::placement() const { return impl_->view()->placement; }

Result<std::vector<ModelRow>> ClusterRepository::model_rows() const {
  std::map<std::string, ModelRow> all;
  for (auto& rows : ask_all(*impl_->view(), [](ProviderRepository& at) { return at.model_rows(); })) {
    if (!rows) return fail(rows.error());
    for (ModelRow& row : *rows) {
      const auto [at, is_first] = all.try_emplace(row.model, row);
      if (is_first) continue;
      const std::uint64_t versions = at->second.versions + row.versions;
      if (row.newest > at->second.newest) at->second = std::move(row);
      at->second.versions = versions;
    }
  }
  std::vector<ModelRow> rows;
  for (auto& [model, row] : all) rows.push_back(std::move(row));
  return rows;
}

Result<std::vector<LineageRow>> ClusterRepository::versions(const std::string& model) const {
  std::vector<LineageRow> all;
  std::optional<Error> absent;
  bool found = false;
  for (auto& rows : ask_all(*impl_->view(), [&](ProviderRepository& at) { return at.versions(model); })) {
    if (rows) {
      found = true;
      std::move(rows->begin(), rows->end(), std::back_inserter(all));
    } else if (rows.error().code() == Code::not_found) {
      absent = rows.error();
    } else {
      return fail(rows.error());
    }
  }
  if (!found) return fail(impl_->told_with_models(*absent, model));
  std::ranges::sort(all, {}, [](const LineageRow& row) { return row.version.number; });
  return all;
}

Result<PinTerms> ClusterRepository::Impl::terms_of(const PinTerms& terms) const {
  if (terms.stays || terms.lease) return terms;
  FRESHET_ASSIGN(const PinLease lease, renewal_.begin());
  return PinTerms{.stays = false, .lease = lease};
}

// One that is away is asked again when the others are: until then its pins hold.
Status ClusterRepository::Impl::renew_pins(const PinLease& lease) const {
  Status all;
  for (Status& status : ask_all(*view(), [&](ProviderRepository& at) { return at.renew_pins(lease); })) {
    if (!status) all = std::move(status);
  }
  return all;
}

Status ClusterRepository::pin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_ASSIGN(const PinTerms own, impl_->terms_of(terms));
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(name));
  return at.home->ask([&](ProviderRepository& home) { return home.pin(at.name, by, own); });
}

Status ClusterRepository::unpin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(name));
  const PinTerms own{.stays = false, .lease = terms.lease.value_or(impl_->lease())};
  return at.home->ask([&](ProviderRepository& home) { return home.unpin(at.name, by, own); });
}

Result<std::vector<std::string>> ClusterRepository::pins(const VersionName& name) const {
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(name));
  return at.home->ask([&](ProviderRepository& home) { return home.pins(at.name); });
}

Result<std::vector<PinnedVersion>> ClusterRepository::all_pins() const {
  std::vector<PinnedVersion> all;
  for (auto& pins : ask_all(*impl_->view(), [](ProviderRepository& at) { return at.all_pins(); })) {
    if (!pins) return fail(pins.error());
    std::move(pins->begin(), pins->end(), std::back_inserter(all));
  }
  std::ranges::sort(all, [](const PinnedVersion& a, const PinnedVersion& b) {
    return std::tie(a.version, a.by) < std::tie(b.version, b.by);
  });
  return all;
}

Status ClusterRepository::annotate(const VersionName& name, const Annotations& annotations) {
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(name));
  return at.home->ask([&](ProviderRepository& home) { return home.annotate(at.name, annotations); });
}

Result<RepositoryStat> ClusterRepository::stat() const {
  RepositoryStat sum;
  for (const auto& stat : ask_all(*impl_->view(), [](ProviderRepository& at) { return at.stat(); })) {
    if (!stat) return fail(stat.error());
    sum.versions += stat->versions;
    sum.retired_versions += stat->retired_versions;
    sum.live_tensors += stat->live_tensors;
    sum.live_bytes += stat->live_bytes;
    sum.disk_bytes += stat->disk_bytes;
    sum.metadata_bytes += stat->metadata_bytes;
  }
  FRESHET_ASSIGN(const std::vector<std::string> all, models());
  sum.models = all.size();
  return sum;
}

}  // namespace freshet
