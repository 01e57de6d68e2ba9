// SPDX-License-Identifier: Apache-2.0
/// Finding versions among the providers, and reading them: one record, then one bulk read of each provider that has a
/// part.

#include <algorithm>
#include <map>
#include <set>

#include "core/base/format.h"
#include "core/words/similar_names.h"
#include "repo/cluster/impl.h"
#include "repo/local/tensor_reads.h"

namespace freshet {
namespace {

constexpr std::string_view kNoModel = "no model";  ///< As a provider begins its answer (repo/local/catalog/catalog.cc).

}  // namespace

Result<VersionNumber> ClusterRepository::Impl::latest(const std::string& model) const {
  VersionNumber newest = 0;
  std::optional<Error> absent;
  for (const auto& number : ask_all(*view(), [&](ProviderRepository& at) { return at.latest(model); })) {
    if (number) {
      newest = std::max(newest, *number);
    } else if (number.error().code() == Code::not_found) {
      absent = number.error();
    } else {
      return fail(number.error());
    }
  }
  if (newest == 0) return fail(told_with_models(*absent, model));
  return newest;
}

Error ClusterRepository::Impl::told_with_models(const Error& absent, const std::string& model) const {
  if (absent.message().find(kNoModel) == std::string::npos) return absent;
  std::set<std::string> names;
  for (const auto& models : ask_all(*view(), [](ProviderRepository& at) { return at.models(); })) {
    if (models) names.insert(models->begin(), models->end());
  }
  if (names.empty()) return absent;
  const std::vector<std::string> all(names.begin(), names.end());
  return Error(Code::not_found, format("{} {}; {}", kNoModel, model, here_are(model, all)));
}

namespace {

// Of two who do not have a version: who retired it knows best, then who has others of its model.
bool says_more(const Error& error, const Error& than) {
  const auto rank = [](const Error& one) {
    if (one.message().find("was retired") != std::string::npos) return 2;
    return one.message().find(kNoModel) == std::string::npos ? 1 : 0;
  };
  return rank(error) > rank(than);
}

}  // namespace

Result<ClusterRepository::Impl::Located> ClusterRepository::Impl::locate(const VersionName& name) const {
  VersionName full = name;
  if (full.number == 0) {
    FRESHET_ASSIGN(full.number, latest(name.model));
  }
  {
    const MutexLock lock(mutex_);
    if (const auto found = names_.find(full); found != names_.end()) return Located{full, found->second.home};
  }
  // A version's holders are asked for, since that is a small answer which only its home can give.
  std::optional<Error> absent;
  std::optional<Error> away;
  const std::shared_ptr<const ClusterView> now = view();
  const auto answers = ask_all(*now, [&](ProviderRepository& at) { return at.pins(full); });
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i]) {
      const MutexLock lock(mutex_);
      if (names_.size() >= std::size_t{1} << 16) names_.clear();
      names_.insert_or_assign(full, Named{.home = now->members[i], .id = {}});
      return Located{full, now->members[i]};
    }
    const Error& error = answers[i].error();
    if (error.code() == Code::not_found) {
      if (!absent || says_more(error, *absent)) absent = error;
    } else {
      away = error;
    }
  }
  if (away) return fail(std::move(*away).with_context(to_string(full)));
  return fail(told_with_models(*absent, full.model));
}

Result<std::optional<ClusterRepository::Impl::Located>> ClusterRepository::Impl::locate(const VersionId& id) const {
  {
    const MutexLock lock(mutex_);
    const auto name = ids_.find(id);
    const auto home = writers_.find(id);
    if (name != ids_.end() && home != writers_.end()) return std::optional(Located{name->second, home->second});
  }
  const std::shared_ptr<const ClusterView> now = view();
  std::vector<std::size_t> order = now->placement.homes(id);
  for (std::size_t i = 0; i < now->members.size(); ++i) {
    // What a provider had before there were others is with that provider, wherever its identity hashes to.
    if (std::ranges::find(order, i) == order.end()) order.push_back(i);
  }
  std::optional<Error> away;
  for (const std::size_t i : order) {
    const auto found = now->members[i]->ask([&](ProviderRepository& at) { return at.find(id); });
    if (!found) {
      if (!away) away = found.error();
    } else if (*found) {
      learn(**found, id, now->members[i]);
      return std::optional(Located{**found, now->members[i]});
    }
  }
  if (away) return fail(*away);
  return std::optional<Located>();
}

Result<ClusterRepository::Impl::Fetched> ClusterRepository::Impl::fetch(const VersionName& name) const {
  FRESHET_ASSIGN(const Located at, locate(name));
  Result<VersionRecord> record = at.home->ask([&](ProviderRepository& home) { return home.get(at.name); });
  if (!record) {
    if (record.error().code() == Code::not_found) forget(at.name);
    return fail(std::move(record).error());
  }
  learn(*record, at.home);
  return Fetched{.record = *std::move(record), .home = at.home};
}

Result<MemberPointer> ClusterRepository::Impl::place_of(const VersionRecord& record, const MemberPointer& home,
                                                        std::uint32_t tensor) const {
  if (!record.placed || !is_elsewhere(*record.placed, tensor)) return home;
  const Placed& placed = *record.placed;
  const VersionId& writer = record.manifest.owners[tensor].writer;
  std::shared_ptr<const ClusterView> now = view();
  if (placed.placement > now->placement.number()) now = refresh();
  if (placed.placement > now->placement.number()) {
    return fail(Code::unavailable, format("{} was stored under placement {}, which no provider that answers knows",
                                          to_string(record.manifest.name), placed.placement));
  }
  const auto moved = std::ranges::lower_bound(placed.moved, writer, {}, &Placed::Moved::writer);
  if (moved == placed.moved.end() || moved->writer != writer) {
    return now->members[now->placement.home(writer, placed.placement)];
  }
  const std::size_t at = now->placement.index_of(moved->provider);
  if (at == now->members.size()) {
    return fail(Code::corrupt, format("{} has tensors at provider {}, which is not known",
                                      to_string(record.manifest.name), moved->provider));
  }
  return now->members[at];
}

Result<std::vector<MemberPointer>> ClusterRepository::Impl::inherited_from(const VersionRecord& record,
                                                                           const MemberPointer& home) const {
  std::vector<MemberPointer> members;
  if (!record.placed) return members;
  for (const std::uint32_t tensor : record.placed->elsewhere) {
    if (tensor >= record.manifest.owners.size())
      return fail(Code::corrupt, "the version's record places tensors that it does not have");
    FRESHET_ASSIGN(MemberPointer place, place_of(record, home, tensor));
    if (std::ranges::find(members, place) == members.end()) members.push_back(std::move(place));
  }
  return members;
}

Result<VersionRecord> ClusterRepository::get(const VersionName& name) const {
  FRESHET_ASSIGN(Impl::Fetched fetched, impl_->fetch(name));
  return std::move(fetched.record);
}

Result<VersionNumber> ClusterRepository::latest(const std::string& model) const { return impl_->latest(model); }

Result<std::optional<VersionName>> ClusterRepository::find(const VersionId& id) const {
  FRESHET_ASSIGN(const std::optional<Impl::Located> located, impl_->locate(id));
  if (!located) return std::optional<VersionName>();
  return std::optional(located->name);
}

Status ClusterRepository::read(const VersionRecord& record, std::span<const TensorRead> reads) const {
  FRESHET_TRY(check_reads(record, reads));
  const Manifest& manifest = record.manifest;
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(manifest.name));

  // Each provider's share, in the order of the caller's reads.
  std::vector<TensorRead> own;
  std::map<MemberPointer, std::vector<ProviderRepository::SegmentRead>> others;
  for (const TensorRead& read : reads) {
    FRESHET_ASSIGN(const MemberPointer place, impl_->place_of(record, at.home, read.tensor));
    if (place == at.home) {
      own.push_back(read);
    } else {
      others[place].push_back(
          {.segment = manifest.owners[read.tensor], .digest = manifest.digests[read.tensor], .out = read.out});
    }
  }

  std::vector<std::pair<MemberPointer, std::vector<ProviderRepository::SegmentRead>>> shares(others.begin(),
                                                                                             others.end());
  if (!own.empty()) shares.emplace_back(at.home, std::vector<ProviderRepository::SegmentRead>());
  std::vector<Status> done(shares.size());
  cluster::at_once(shares.size(), [&](std::size_t i) {
    done[i] = shares[i].first->ask([&](ProviderRepository& provider) -> Status {
      return shares[i].second.empty() ? provider.read(record, own) : provider.read_segments(shares[i].second);
    });
  });
  for (Status& status : done) {
    if (status) continue;
    Error error = std::move(status).error();
    // The record says that they are there: what is not, was lost.
    if (error.code() == Code::not_found) error = Error(Code::corrupt, error.message());
    return fail(std::move(error).with_context(to_string(manifest.name)));
  }
  return {};
}

Status ClusterRepository::read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                                     MutableBytes out) const {
  const Manifest& manifest = record.manifest;
  if (tensor >= manifest.owners.size()) {
    return fail(Code::invalid_argument, format("{} has no tensor {}", to_string(manifest.name), tensor));
  }
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(manifest.name));
  FRESHET_ASSIGN(const MemberPointer place, impl_->place_of(record, at.home, tensor));
  return place->ask([&](ProviderRepository& provider) {
    return place == at.home ? provider.read_range(record, tensor, offset, out)
                            : provider.read_segment_range(manifest.owners[tensor], offset, out);
  });
}

}  // namespace freshet
