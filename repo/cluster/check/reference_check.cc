// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/check/reference_check.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "core/base/format.h"

namespace freshet::cluster {
namespace {

constexpr std::size_t kAtATime = 4;  ///< Records on their way from one home.

using Attempt = std::pair<VersionId, std::uint64_t>;
/// What a provider knows to be named there, by which put; segments ascend. Nothing when that is not known.
using KnownReferences = std::optional<std::map<Attempt, std::vector<SegmentName>>>;

class Checker {
 public:
  Checker(const ClusterRepository::Impl& impl, const ClusterView& now, ListNeeds list)
      : impl_(impl), now_(now), list_(list), known_(now.members.size()), visited_(now.members.size()) {}

  Result<ReferenceFindings> run(const std::optional<VersionName>& only);

 private:
  /// One home's versions, seen by a thread of its own.
  struct Visited {
    std::vector<Need> needs;
    std::set<std::pair<std::size_t, Attempt>> live;
    Status status;
    std::vector<UnreadVersion> unread;
  };

  Status read_known(std::size_t provider);
  /// Those that may need something elsewhere.
  Result<std::vector<VersionName>> versions_to_read(std::size_t home) const;
  Status visit_home(std::size_t home, Visited& visited) const;
  Status visit(std::size_t home, const VersionName& name, Visited& visited) const;
  Result<std::vector<Need>> needs_of(const VersionRecord& record, std::size_t home) const;
  void find_unknown(Need& need) const;
  /// What was suspected is looked at again, in an order in which nothing that goes on can be taken for a loss.
  Status confirm(std::vector<Need>& needs);
  Result<bool> is_live(const Need& need) const;
  void note(std::string text);

  const ClusterRepository::Impl& impl_;
  const ClusterView& now_;
  const ListNeeds list_;
  std::vector<KnownReferences> known_;  ///< By provider.
  std::vector<Visited> visited_;
  bool all_answered_ = true;
  ReferenceFindings findings_;
};

void Checker::note(std::string text) {
  if (std::ranges::find(findings_.notes, text) == findings_.notes.end()) findings_.notes.push_back(std::move(text));
}

Status Checker::read_known(std::size_t provider) {
  known_[provider].reset();
  auto referrers = now_.members[provider]->ask([](ProviderRepository& at) { return at.referrers(); });
  if (!referrers) {
    const Error& error = referrers.error();
    if (!is_away(error) && error.code() != Code::corrupt) return fail(error);
    all_answered_ = false;
    note(error.message());
    findings_.unread_providers.emplace(provider, error.message());
    // A damaged record hides who names what there. Whoever is to tell it again tells everything.
    if (error.code() == Code::corrupt && list_ == ListNeeds::all) known_[provider].emplace();
    return {};
  }
  auto& known = known_[provider].emplace();
  for (ExternalReferrer& one : *referrers) {
    auto& segments = known[{one.version, one.attempt}];
    std::move(one.segments.begin(), one.segments.end(), std::back_inserter(segments));
  }
  for (auto& [attempt, segments] : known) std::ranges::sort(segments);
  return {};
}

Result<std::vector<Need>> Checker::needs_of(const VersionRecord& record, std::size_t home) const {
  std::vector<Need> needs;
  if (!record.placed || !record.has_weights) return needs;
  const Manifest& manifest = record.manifest;
  std::map<VersionId, std::size_t> places;
  std::map<std::size_t, Need> by_provider;
  for (const std::uint32_t tensor : record.placed->elsewhere) {
    if (tensor >= manifest.owners.size()) continue;  // The home's own check tells of it.
    const SegmentName& segment = manifest.owners[tensor];
    auto place = places.find(segment.writer);
    if (place == places.end()) {
      FRESHET_ASSIGN(const MemberPointer member, impl_.place_of(record, now_.members[home], tensor));
      place = places.emplace(segment.writer, now_.index_of(member)).first;
    }
    if (place->second == home || place->second == now_.members.size()) continue;
    Need& need = by_provider[place->second];
    const TensorSpec& spec = manifest.architecture->tensors()[tensor];
    need.unknown.push_back(
        {.name = spec.name, .segment = segment, .digest = manifest.digests[tensor], .bytes = spec.bytes()});
  }
  for (auto& [provider, need] : by_provider) {
    need.version = manifest.name;
    need.home = home;
    need.provider = provider;
    std::ranges::stable_sort(need.unknown, {}, &Need::Tensor::segment);
    const auto same = [](const Need::Tensor& a, const Need::Tensor& b) { return a.segment == b.segment; };
    need.unknown.erase(std::unique(need.unknown.begin(), need.unknown.end(), same), need.unknown.end());
    need.referrer = {.version = manifest.id,
                     .attempt = record.placed->attempt,
                     .home = now_.members[home]->provider().id,
                     .segments = {}};
    for (const Need::Tensor& tensor : need.unknown) need.referrer.segments.push_back(tensor.segment);
    needs.push_back(std::move(need));
  }
  return needs;
}

void Checker::find_unknown(Need& need) const {
  const KnownReferences& known = known_[need.provider];
  if (!known) return need.unknown.clear();
  const auto told = known->find({need.referrer.version, need.referrer.attempt});
  if (told == known->end()) return;
  std::erase_if(need.unknown,
                [&](const Need::Tensor& one) { return std::ranges::binary_search(told->second, one.segment); });
}

Status Checker::visit(std::size_t home, const VersionName& name, Visited& visited) const {
  const auto record = now_.members[home]->ask([&](ProviderRepository& at) { return at.get(name); });
  if (!record && record.error().code() == Code::not_found) return {};  // Retired since it was listed.
  if (!record && record.error().code() != Code::corrupt) return fail(record.error());
  auto needs = record ? needs_of(*record, home) : Result<std::vector<Need>>(fail(record.error()));
  if (!needs && !is_away(needs.error()) && needs.error().code() != Code::corrupt) return fail(needs.error());
  if (!needs) {
    const bool damaged = needs.error().code() == Code::corrupt;
    visited.unread.push_back({.version = name, .home = home, .damaged = damaged, .why = needs.error().message()});
    return {};
  }
  for (Need& need : *needs) {
    visited.live.insert({need.provider, {need.referrer.version, need.referrer.attempt}});
    find_unknown(need);
    if (list_ == ListNeeds::all || !need.unknown.empty()) visited.needs.push_back(std::move(need));
  }
  return {};
}

Result<std::vector<VersionName>> Checker::versions_to_read(std::size_t home) const {
  const Member& member = *now_.members[home];
  FRESHET_ASSIGN(const std::vector<std::string> models, member.ask([](ProviderRepository& at) { return at.models(); }));
  std::vector<VersionName> names;
  for (const std::string& model : models) {
    const auto rows = member.ask([&](ProviderRepository& at) { return at.versions(model); });
    if (!rows && rows.error().code() == Code::not_found) continue;
    if (!rows) return fail(rows.error());
    for (const LineageRow& row : *rows) {
      // Who wrote all of it needs nobody else. A damaged row says nothing of bytes.
      const bool is_all_its_own = row.own_bytes != 0 && row.inherited_bytes == 0;
      if (!row.retired && !is_all_its_own) names.push_back(row.version);
    }
  }
  return names;
}

Status Checker::visit_home(std::size_t home, Visited& visited) const {
  FRESHET_ASSIGN(const std::vector<VersionName> names, versions_to_read(home));
  std::vector<Visited> parts(std::min(kAtATime, names.size()));
  std::atomic<std::size_t> next{0};
  at_once(parts.size(), [&](std::size_t i) {
    for (std::size_t at = next++; at < names.size() && parts[i].status; at = next++) {
      parts[i].status = visit(home, names[at], parts[i]);
    }
  });
  for (Visited& part : parts) {
    FRESHET_TRY(std::move(part.status));
    std::move(part.needs.begin(), part.needs.end(), std::back_inserter(visited.needs));
    std::move(part.unread.begin(), part.unread.end(), std::back_inserter(visited.unread));
    visited.live.merge(part.live);
  }
  std::ranges::sort(visited.needs, {}, &Need::version);
  std::ranges::sort(visited.unread, {}, &UnreadVersion::version);
  return {};
}

Result<bool> Checker::is_live(const Need& need) const {
  const auto record = now_.members[need.home]->ask([&](ProviderRepository& at) { return at.get(need.version); });
  if (record) return record->placed && record->placed->attempt == need.referrer.attempt;
  if (record.error().code() == Code::not_found) return false;
  return fail(record.error());
}

Status Checker::confirm(std::vector<Need>& needs) {
  // A put tells the providers before it makes its version, a retirement takes back after it: what is not known at one
  // moment, and whose version is there before and after that, was lost.
  std::set<std::size_t> providers;
  for (const Need& need : needs) {
    if (!need.unknown.empty()) providers.insert(need.provider);
  }
  for (const std::size_t provider : providers) FRESHET_TRY(read_known(provider));
  Status failed;
  std::erase_if(needs, [&](Need& need) {
    if (need.unknown.empty()) return false;
    find_unknown(need);
    if (need.unknown.empty()) return list_ != ListNeeds::all;
    const Result<bool> live = is_live(need);
    if (!live && !is_away(live.error())) failed = fail(live.error());
    if (!live) {
      note(live.error().message());
      findings_.unread_homes.emplace(need.home, live.error().message());
    }
    return !live || !*live;
  });
  return failed;
}

Result<ReferenceFindings> Checker::run(const std::optional<VersionName>& only) {
  for (std::size_t i = 0; i < now_.members.size(); ++i) FRESHET_TRY(read_known(i));
  at_once(visited_.size(), [&](std::size_t i) {
    // Nobody but its home has it.
    visited_[i].status = only ? visit(i, *only, visited_[i]) : visit_home(i, visited_[i]);
  });
  std::set<std::pair<std::size_t, Attempt>> live;
  bool all_read = all_answered_ && !only;
  for (Visited& visited : visited_) {
    if (!visited.status && !is_away(visited.status.error())) return fail(visited.status.error());
    all_read = all_read && visited.status && visited.unread.empty();
    if (!visited.status) {
      const std::string& why = visited.status.error().message();
      findings_.unread_homes.emplace(static_cast<std::size_t>(&visited - visited_.data()), why);
      note(why);
    }
    for (const UnreadVersion& unread : visited.unread) note(unread.why);
    std::move(visited.unread.begin(), visited.unread.end(), std::back_inserter(findings_.unread_versions));
    std::move(visited.needs.begin(), visited.needs.end(), std::back_inserter(findings_.needs));
    live.merge(visited.live);
  }
  for (std::size_t i = 0; all_read && i < known_.size(); ++i) {
    for (const auto& [attempt, segments] : *known_[i]) {
      if (live.contains({i, attempt})) continue;
      findings_.strays.push_back({.provider = i, .version = attempt.first, .segments = segments.size()});
    }
  }
  FRESHET_TRY(confirm(findings_.needs));
  return std::move(findings_);
}

}  // namespace

Result<ReferenceFindings> check_references(const ClusterRepository::Impl& impl, const ClusterView& now, ListNeeds list,
                                           const std::optional<VersionName>& only) {
  return Checker(impl, now, list).run(only);
}

RestoredReferences restore_references(const ClusterView& now, std::vector<Need> needs,
                                      std::vector<std::string>& notes) {
  RestoredReferences restored;
  for (Need& need : needs) {
    const Member& provider = *now.members[need.provider];
    const auto tell = [&](const ExternalReferrer& referrer) {
      return provider.ask([&](ProviderRepository& at) { return at.add_referrer(referrer); });
    };
    Status added = tell(need.referrer);
    Status revived;
    if (!added && added.error().code() == Code::not_found) {
      // Retired with their writer already. Until gc() comes their bytes are there.
      std::vector<ProviderRepository::SegmentContent> contents;
      for (const Need::Tensor& tensor : need.unknown) {
        contents.push_back({.segment = tensor.segment, .bytes = tensor.bytes, .digest = tensor.digest});
      }
      const auto count = provider.ask([&](ProviderRepository& at) { return at.revive_segments(contents); });
      if (!count) revived = fail(count.error());
      if (revived) added = tell(need.referrer);
    }
    Status kept = added;
    if (!added && added.error().code() == Code::not_found) {
      // Some of it is gone, if all that is there was revived. The rest is not to go the same way.
      kept = revived;
      std::vector<SegmentName> untold;
      for (const SegmentName& segment : need.referrer.segments) {
        ExternalReferrer one = need.referrer;
        one.segments = {segment};
        const Status told = tell(one);
        if (told) continue;
        untold.push_back(segment);
        if (told.error().code() != Code::not_found && kept) kept = told;
      }
      std::erase_if(need.unknown, [&](const Need::Tensor& tensor) {
        return std::ranges::find(untold, tensor.segment) != untold.end();
      });
    }
    const auto named = [&](const Error& error) { return Error(error).with_context(to_string(need.version)).message(); };
    if (!kept) {
      restored.failed.emplace(need.provider, named(kept.error()));
      notes.push_back(named(kept.error()));
    } else if (!added) {
      notes.push_back(named(added.error()));
    }
    const bool any = added || added.error().code() == Code::not_found;
    if (any && !need.unknown.empty()) restored.told.push_back(std::move(need));
  }
  return restored;
}

}  // namespace freshet::cluster
