// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The common parts of a ClusterRepository. Private to this room.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "repo/cluster/cluster_repository.h"
#include "repo/pins/pin_renewal.h"
#include "repo/provider_repository.h"

namespace freshet {

using MemberPointer = std::shared_ptr<const cluster::Member>;

/// The providers as a placement has them. Immutable.
struct ClusterView {
  Placement placement;
  std::vector<MemberPointer> members;  ///< By index in the placement.

  std::size_t index_of(const MemberPointer& member) const { return placement.index_of(member->provider().id); }
};

class ClusterRepository::Impl {
 public:
  explicit Impl(Connect connect) : connect_(std::move(connect)) {}

  std::shared_ptr<const ClusterView> view() const;
  /// Learns of a newer placement, if there is one.
  std::shared_ptr<const ClusterView> refresh() const;
  /// Whether one of those who answered lately knows a newer placement.
  bool is_outdated(const ClusterView& view) const;
  void set_placement(const Placement& placement) const;

  struct Located {
    VersionName name;  ///< With its number.
    MemberPointer home;
  };
  /// Where a version's record is. Number 0: the newest. unavailable, naming providers, when it may be with one that
  /// does not answer.
  Result<Located> locate(const VersionName& name) const;
  Result<std::optional<Located>> locate(const VersionId& id) const;
  struct Fetched {
    VersionRecord record;
    MemberPointer home;
  };
  Result<Fetched> fetch(const VersionName& name) const;
  Result<VersionNumber> latest(const std::string& model) const;
  /// A provider's answer that it has no such model, with the names of all providers' models.
  Error told_with_models(const Error& absent, const std::string& model) const;

  /// Which provider has a tensor's bytes. `home` has the record.
  Result<MemberPointer> place_of(const VersionRecord& record, const MemberPointer& home, std::uint32_t tensor) const;
  /// Which providers other than the home have tensors of it.
  Result<std::vector<MemberPointer>> inherited_from(const VersionRecord& record, const MemberPointer& home) const;

  // Storing, in put.cc and inheritance.cc.
  /// Makes the version exist at its home, with these owners, number and place.
  using StoreAtHome = std::function<Result<VersionName>(
      const cluster::Member& home, const Manifest& manifest, const PutOptions& options,
      const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of)>;
  /// `bytes_of` is asked for what the home lacks.
  Result<VersionName> put(const Manifest& given, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                          const PutOptions& options, const StoreAtHome& store) const;
  /// The providers at which the tries of one put did not find its tensors.
  struct NotAsked {
    std::map<std::string, Error> away;  ///< Providers, by id, of whom nothing is inherited now.
    /// Writers whose tensors were not where they were thought to be. The ancestor's record says where they are.
    std::set<VersionId> not_there;
    std::set<VersionId> nowhere;  ///< Nor there: the bytes are asked of the caller.
  };
  struct Inheritance {
    Placed placed;
    std::map<std::size_t, std::vector<SegmentName>> segments;  ///< By provider, by index in the view.
    /// Tensors that rest with a provider that is away, and are asked of the caller instead.
    std::map<std::uint32_t, Error> asked_of_caller;
  };
  static std::uint64_t new_attempt();
  Status learn_ancestor(const Manifest& manifest, bool may_be_retired) const;
  Result<Inheritance> inheritance(const ClusterView& view, const Manifest& manifest, std::size_t home,
                                  const NotAsked& not_asked) const;
  cluster::Reply number(const ClusterView& view, const Manifest& manifest, VersionNumber& given) const;

  /// A put that was put again under another identity, though it may have been made. In withdraw.cc.
  struct Undecided {
    VersionName name;
    VersionId id;
    std::uint64_t attempt = 0;
    MemberPointer home;
    std::vector<MemberPointer> inherited_from;
  };
  void note_undecided(Undecided put) const FRESHET_EXCLUDES(mutex_);
  /// Takes those back whose homes answer again.
  void withdraw_undecided() const FRESHET_EXCLUDES(mutex_);

  /// What retiring it takes; `fetched` may be that its record is damaged.
  Result<cluster::RetireMachine> retirement(const ClusterView& now, const VersionName& name,
                                            const Result<Fetched>& fetched) const;

  /// The record of a version that was matched, from its home or from before. In readable.cc.
  Result<std::shared_ptr<const VersionRecord>> matched_record(const MatchRow& row, const MemberPointer& home) const
      FRESHET_EXCLUDES(mutex_);

  /// As the model's registrar has them.
  struct AliasesRecord {
    std::shared_ptr<const ClusterView> now;
    MemberPointer registrar;
    SharedRecord record;
  };
  Result<AliasesRecord> registrar_aliases(const std::string& model) const;
  /// Lets go of the version what its home keeps for aliases that mean another one: somebody died while he moved them.
  /// True when there was any.
  Result<bool> release_stale_aliases(const MemberPointer& home, const VersionName& name) const;

  /// Remembers where a version is, and where its record says that others' segments are.
  void learn(const VersionName& name, const VersionId& id, const MemberPointer& home) const;
  void learn(const VersionRecord& record, const MemberPointer& home) const;
  void forget(const VersionName& name) const;
  MemberPointer writer_at(const VersionId& id) const;

  /// With this object's own lease, where none is given; it is renewed from then on.
  Result<PinTerms> terms_of(const PinTerms& terms) const;
  const PinLease& lease() const { return renewal_.lease(); }
  Status renew_pins(const PinLease& lease) const;

 private:
  bool withdraw(const Undecided& put) const;

  const Connect connect_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const ClusterView> view_ FRESHET_GUARDED_BY(mutex_);
  // What was seen lately. Versions and segments never move, so it is right as long as it is kept.
  struct Named {
    MemberPointer home;
    std::optional<VersionId> id;  ///< Where it was told.
  };
  mutable std::map<VersionName, Named> names_ FRESHET_GUARDED_BY(mutex_);
  mutable std::unordered_map<VersionId, MemberPointer> writers_ FRESHET_GUARDED_BY(mutex_);
  mutable std::unordered_map<VersionId, VersionName> ids_ FRESHET_GUARDED_BY(mutex_);
  mutable std::unordered_map<VersionId, std::shared_ptr<const VersionRecord>> matched_ FRESHET_GUARDED_BY(mutex_);
  mutable std::vector<Undecided> undecided_ FRESHET_GUARDED_BY(mutex_);
  /// Renews the pins that were taken here, under one lease at all providers. Last, since its thread asks.
  mutable PinRenewal renewal_{[this](const PinLease& lease) { return renew_pins(lease); }};
};

/// Carries a machine's calls out, those that are ready at the same time together, until it has none.
template <typename Machine>
void drive(Machine& machine, const std::function<cluster::Reply(const cluster::Call&)>& execute) {
  std::vector<cluster::Call> calls = machine.start();
  while (!calls.empty()) {
    std::vector<cluster::Reply> replies(calls.size());
    cluster::at_once(calls.size(), [&](std::size_t i) { replies[i] = execute(calls[i]); });
    std::vector<cluster::Call> next;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      for (cluster::Call& call : machine.on_reply(calls[i], replies[i])) next.push_back(std::move(call));
    }
    calls = std::move(next);
  }
}

/// Asks every provider at the same time. `ask` takes a ProviderRepository& and returns a Result.
template <typename Ask>
auto ask_all(const ClusterView& view, const Ask& ask) {
  using Answer = decltype(ask(std::declval<ProviderRepository&>()));
  std::vector<std::optional<Answer>> answers(view.members.size());
  cluster::at_once(view.members.size(), [&](std::size_t i) { answers[i].emplace(view.members[i]->ask(ask)); });
  std::vector<Answer> all;
  for (auto& answer : answers) all.push_back(*std::move(answer));
  return all;
}

/// A call that any provider answers in the same way.
cluster::Reply carry_out(const ClusterView& view, const cluster::Call& call);

}  // namespace freshet
