// SPDX-License-Identifier: Apache-2.0
/// Retiring and collecting garbage over several providers.

#include <algorithm>
#include <map>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/cluster/check/reference_check.h"
#include "repo/cluster/impl.h"

namespace freshet {
namespace {

// Drops what versions named at one provider that never came to exist, or are gone. Returns what could not be settled.
Result<std::optional<std::string>> settle(const ClusterView& view, std::size_t provider) {
  FRESHET_ASSIGN(const std::vector<ExternalReferrer> referrers,
                 view.members[provider]->ask([](ProviderRepository& at) { return at.referrers(); }));
  std::vector<cluster::SettleMachine::Referrer> list;
  for (const ExternalReferrer& referrer : referrers) {
    const std::size_t home = view.placement.index_of(referrer.home);
    list.push_back({.version = referrer.version,
                    .attempt = referrer.attempt,
                    .home = home == view.members.size() ? std::nullopt : std::optional(home)});
  }
  cluster::SettleMachine machine(provider, std::move(list));
  drive(machine, [&](const cluster::Call& call) { return carry_out(view, call); });
  if (machine.kept() == 0) return std::optional<std::string>();
  return std::optional(format("the segments that {} versions elsewhere need at provider {} stay: {}", machine.kept(),
                              view.members[provider]->provider().id, machine.reason()->message()));
}

// Makes good what providers have lost. Returns at which nothing may be erased, and why: they may still not know all
// that is needed of them.
Result<std::map<std::size_t, std::string>> restore(const ClusterRepository::Impl& impl, const ClusterView& view,
                                                   std::vector<std::string>& notes) {
  FRESHET_ASSIGN(cluster::ReferenceFindings found,
                 cluster::check_references(impl, view, cluster::ListNeeds::unknown, std::nullopt));
  std::vector<std::string> failures;
  cluster::RestoredReferences restored = cluster::restore_references(view, std::move(found.needs), failures);
  for (const cluster::Need& told : restored.told) {
    notes.push_back(format("provider {} had lost a reference and has it again: {} needs {} tensors there",
                           view.members[told.provider]->provider().id, to_string(told.version), told.unknown.size()));
  }
  std::move(found.notes.begin(), found.notes.end(), std::back_inserter(notes));
  std::move(failures.begin(), failures.end(), std::back_inserter(notes));
  std::map<std::size_t, std::string> spared = std::move(restored.failed);
  spared.merge(found.unread_providers);
  for (const auto& [home, why] : found.unread_homes) {
    for (std::size_t i = 0; i < view.members.size(); ++i) {
      if (i != home) spared.emplace(i, why);
    }
  }
  // What a damaged record names, nobody knows; what another provider knows of it may be a part.
  for (const cluster::UnreadVersion& unread : found.unread_versions) {
    const std::string how =
        unread.damaged
            ? format(" (retire {}, which cannot be read any more; then gc goes on there)", to_string(unread.version))
            : std::string();
    for (std::size_t i = 0; i < view.members.size(); ++i) {
      if (i != unread.home) spared.emplace(i, unread.why + how);
    }
  }
  return spared;
}

}  // namespace

// One whose record is damaged can be retired: what it named elsewhere is then dropped by the next gc(), which asks its
// home whether it is there.
Result<cluster::RetireMachine> ClusterRepository::Impl::retirement(const ClusterView& now, const VersionName& name,
                                                                   const Result<Fetched>& fetched) const {
  std::vector<std::size_t> others;
  if (!fetched) {
    FRESHET_ASSIGN(const Located at, locate(name));
    return cluster::RetireMachine(VersionId{}, 0, now.index_of(at.home), std::move(others));
  }
  const VersionRecord& record = fetched->record;
  const auto members = inherited_from(record, fetched->home);
  if (!members && members.error().code() != Code::corrupt) return fail(members.error());
  if (members) {
    for (const MemberPointer& member : *members) others.push_back(now.index_of(member));
  }
  return cluster::RetireMachine(record.manifest.id, record.placed ? record.placed->attempt : 0,
                                now.index_of(fetched->home), std::move(others));
}

Result<RetireReport> ClusterRepository::retire(const VersionName& name, const RetireOptions& options) {
  if (name.number == 0) {
    return fail(Code::invalid_argument, format("name the version of {} to retire, MODEL@V", name.model));
  }
  const StopInterrupts stops(options.stop);
  const Result<Impl::Fetched> fetched = impl_->fetch(name);
  if (!fetched && fetched.error().code() != Code::corrupt) return fail(fetched.error());
  const std::shared_ptr<const ClusterView> now = impl_->view();
  RetireReport report;
  FRESHET_ASSIGN(cluster::RetireMachine machine, impl_->retirement(*now, name, fetched));
  drive(machine, [&](const cluster::Call& call) -> cluster::Reply {
    if (call.kind != cluster::Call::Kind::retire) return carry_out(*now, call);
    const auto retire = [&] {
      return now->members[call.provider]->ask([&](ProviderRepository& at) { return at.retire(name, options); });
    };
    auto retired = retire();
    if (!retired && retired.error().code() == Code::failed_precondition) {
      const Result<bool> released = impl_->release_stale_aliases(now->members[call.provider], name);
      if (!released) return {.error = released.error()};
      if (*released) retired = retire();
    }
    if (!retired) return {.error = retired.error()};
    report = *std::move(retired);
    return {};
  });
  if (machine.error()) return fail(*machine.error());
  impl_->forget(name);
  return report;
}

Result<GcReport> ClusterRepository::gc(const GcOptions& options, const Progress& progress) {
  const StopInterrupts stops(options.stop);
  const std::shared_ptr<const ClusterView> now = impl_->refresh();
  if (!options.dry_run) impl_->withdraw_undecided();
  GcReport sum;
  std::map<std::size_t, std::string> spared;
  if (!options.dry_run) {
    // What a provider does not know to be needed, it would erase.
    FRESHET_ASSIGN(spared, restore(*impl_, *now, sum.notes));
  }
  std::optional<Error> away;
  std::size_t answered = 0;
  for (std::size_t i = 0; i < now->members.size(); ++i) {
    FRESHET_TRY(Interruption::check());
    if (const auto why = spared.find(i); why != spared.end()) {
      ++answered;
      // What is alive there is counted all the same.
      GcOptions looks = options;
      looks.dry_run = true;
      const auto kept = now->members[i]->ask([&](ProviderRepository& at) { return at.gc(looks, progress); });
      if (kept) sum.live_bytes += kept->live_bytes;
      sum.notes.push_back(
          format("nothing is erased at provider {}, because it may not know all versions that need its bytes: {}",
                 now->members[i]->provider().id, why->second));
      continue;
    }
    if (!options.dry_run) {
      auto settled = settle(*now, i);
      if (settled && *settled) sum.notes.push_back(**settled);
      if (!settled && !is_away(settled.error())) return fail(settled.error());
    }
    auto report = now->members[i]->ask([&](ProviderRepository& at) { return at.gc(options, progress); });
    if (!report) {
      if (!is_away(report.error())) return fail(report.error());
      away = report.error();
      sum.notes.push_back(away->message());
      continue;
    }
    ++answered;
    sum.freed_bytes += report->freed_bytes;
    sum.live_bytes += report->live_bytes;
    std::move(report->rows.begin(), report->rows.end(), std::back_inserter(sum.rows));
    std::move(report->notes.begin(), report->notes.end(), std::back_inserter(sum.notes));
  }
  if (away && answered == 0) return fail(*away);
  std::ranges::stable_sort(sum.rows, {}, [](const GcRow& row) { return row.writer; });
  return sum;
}

}  // namespace freshet
