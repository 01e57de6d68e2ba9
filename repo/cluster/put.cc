// SPDX-License-Identifier: Apache-2.0
/// Storing a version: it is numbered by its model's registrar, its references are made durable where what it inherits
/// rests, and then its home makes it exist (repo/cluster/protocol.h). Where that fails in a way from which something is
/// learned, it is tried again: with another placement, without a provider that is away, at another home.

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/cluster/impl.h"
#include "repo/cluster/placement/numbers.h"
#include "repo/files/import.h"

namespace freshet {
namespace {

using Impl = ClusterRepository::Impl;
using BytesOf = std::function<Result<Bytes>(std::uint32_t tensor)>;

constexpr int kPutPlacementTriesMax = 12;
constexpr std::size_t kOtherHomesMax = 3;
/// Of 256 providers with one that answers, all these draws miss it once in 10^7 puts.
constexpr int kDrawsMax = 4096;
/// How long a put that was stopped asks what became of its version.
constexpr Duration kSettleWhenStopped = std::chrono::seconds(5);

Manifest with_id(Manifest manifest, const VersionId& id) {
  std::vector<SegmentName> owners(manifest.owners.owners().begin(), manifest.owners.owners().end());
  for (SegmentName& owner : owners) {
    if (owner.writer == manifest.id) owner.writer = id;
  }
  manifest.owners = OwnerMap(std::move(owners));
  manifest.id = id;
  return manifest;
}

/// One put, until it is done or nothing is left to be tried.
class Putting {
 public:
  Putting(const Impl& impl, const Manifest& given, const BytesOf& bytes_of, const Repository::PutOptions& options,
          const Impl::StoreAtHome& store)
      : impl_(impl), bytes_of_(bytes_of), options_(options), store_(store), now_(impl.view()), manifest_(given) {}

  Result<VersionName> run() {
    for (int tries = 0; tries < kPutPlacementTriesMax; ++tries) {
      FRESHET_TRY(options_.drawn_id ? choose_home() : check_new());
      const std::size_t home = now_->placement.home(manifest_.id);
      inherited_ = {};
      inherited_.placed = {.placement = now_->placement.number(), .attempt = Impl::new_attempt()};
      if (options_.has_weights) {
        FRESHET_ASSIGN(inherited_, impl_.inheritance(*now_, manifest_, home, not_asked_));
      }
      met_ = {};
      numbered_ = manifest_;
      if (number_) numbered_.name.number = *number_;
      cluster::PutMachine machine(plan(home));
      drive(machine, [&](const cluster::Call& call) { return carry_out_one(call); });
      if (!machine.error()) {
        impl_.learn(numbered_.name, numbered_.id, now_->members[home]);
        return numbered_.name;
      }
      error_ = met_.not_given ? *met_.not_given : *machine.error();
      if (!learned(home, tries)) break;
      if (machine.is_undecided()) note_undecided(home);
      // A version may have it, then.
      if (machine.is_undecided() || met_.home_failed) number_.reset();
    }
    return fail(std::move(error_).with_context("put " + manifest_.name.model));
  }

 private:
  /// What a try came upon. Its first calls run at the same time.
  struct Met {
    std::map<std::string, Error> away;
    std::set<VersionId> not_there;  ///< Writers whose tensors somebody did not have,
    std::set<VersionId> not_here;   ///< or the home, nor the caller.
    bool placement_changed = false;
    bool registrar_away = false;
    bool home_failed = false;
    bool caller_failed = false;
    std::optional<Error> not_given;
  };

  Status check_new() const {
    if (now_->placement.homes(manifest_.id).size() <= 1) return {};
    FRESHET_ASSIGN(const std::optional<Impl::Located> stored, impl_.locate(manifest_.id));
    if (!stored) return {};
    return fail(Code::already_exists,
                format("version {} is stored as {}", to_string(manifest_.id), to_string(stored->name)));
  }

  // Draws identities until the home is one that answers. Readers find it as they find any other. Where none does, the
  // put fails by itself, and says why.
  Status choose_home() {
    std::vector<bool> usable = usable_homes();
    for (int draws = 0; draws < kDrawsMax && std::ranges::find(usable, true) != usable.end(); ++draws) {
      const std::size_t home = now_->placement.home(manifest_.id);
      if (usable[home]) {
        if (now_->members[home]->reach()) return {};
        usable[home] = false;
      }
      FRESHET_ASSIGN(const VersionId drawn, draw_version_id());
      manifest_ = with_id(std::move(manifest_), drawn);
    }
    return {};
  }

  /// Those that did not fail this put; without those that were away a moment ago, if there are others.
  std::vector<bool> usable_homes() const {
    std::vector<bool> usable;
    std::vector<bool> better;
    for (const MemberPointer& member : now_->members) {
      usable.push_back(!failed_homes_.contains(member->provider().id));
      better.push_back(usable.back() && !member->is_to_be_avoided());
    }
    return std::ranges::find(better, true) != better.end() ? better : usable;
  }

  cluster::PutMachine::Plan plan(std::size_t home) const {
    cluster::PutMachine::Plan plan{
        .version = manifest_.id, .attempt = inherited_.placed.attempt, .home = home, .registrar = {}, .inherited = {}};
    if (!number_) plan.registrar = now_->placement.registrar(manifest_.name.model);
    for (const auto& [at, segments] : inherited_.segments) plan.inherited.push_back({at, segments});
    return plan;
  }

  cluster::Reply carry_out_one(const cluster::Call& call) {
    switch (call.kind) {
      case cluster::Call::Kind::number: return number();
      case cluster::Call::Kind::refer: return refer(call);
      case cluster::Call::Kind::commit: return commit(*now_->members[call.provider]);
      default: {
        // A caller who stops the put gets to know whether the version exists, if the providers say so soon.
        const bool is_stopped = Interruption::is_wanted();
        const Time until = system_clock().now() + kSettleWhenStopped;
        const Interruption soon([is_stopped, until] { return is_stopped && system_clock().now() >= until; });
        return carry_out(*now_, call);
      }
    }
  }

  cluster::Reply number() {
    cluster::Reply reply = impl_.number(*now_, manifest_, numbered_.name.number);
    const MutexLock lock(mutex_);
    if (!reply.error) number_ = numbered_.name.number;
    met_.placement_changed = reply.error && reply.error->code() == Code::failed_precondition;
    met_.registrar_away = reply.error && is_away(*reply.error);
    return reply;
  }

  cluster::Reply refer(const cluster::Call& call) {
    const cluster::Member& member = *now_->members[call.provider];
    const auto tell = [&] {
      return member.ask([&](ProviderRepository& at) {
        return at.add_referrer({.version = call.version,
                                .attempt = call.attempt,
                                .home = id_of(now_->placement.home(manifest_.id)),
                                .segments = call.segments});
      });
    };
    Status referred = tell();
    // Told twice, nothing changes; so a connection that broke is not taken for a provider that is away.
    if (!referred && is_away(referred.error())) referred = tell();
    if (referred) return {};
    const MutexLock lock(mutex_);
    if (referred.error().code() == Code::not_found) {
      for (const SegmentName& segment : call.segments) met_.not_there.insert(segment.writer);
    }
    if (is_away(referred.error())) met_.away.emplace(member.provider().id, referred.error());
    return {.error = referred.error()};
  }

  cluster::Reply commit(const cluster::Member& home) {
    Repository::PutOptions at_home = options_;
    at_home.placed = inherited_.placed;
    const auto stored = store_(home, numbered_, at_home, [this](std::uint32_t tensor) { return bytes_for(tensor); });
    if (stored) return {};
    const Code code = stored.error().code();
    met_.home_failed =
        !met_.caller_failed && (is_away(stored.error()) || code == Code::out_of_space || code == Code::io_error);
    return {.error = stored.error()};
  }

  Result<Bytes> bytes_for(std::uint32_t tensor) {
    Result<Bytes> bytes = bytes_of_(tensor);
    if (bytes) return bytes;
    met_.caller_failed = true;
    const auto away = inherited_.asked_of_caller.find(tensor);
    if (away == inherited_.asked_of_caller.end()) {
      if (manifest_.ancestor && manifest_.owners[tensor].writer != manifest_.id) note_not_here();
      return bytes;
    }
    const std::string ancestor = manifest_.ancestor_name.model.empty()
                                     ? "version " + to_string(manifest_.owners[tensor].writer)
                                     : to_string(manifest_.ancestor_name);
    met_.not_given =
        Error(Code::unavailable,
              format("tensor {} is inherited from {}, its provider is away, and the put does not have its bytes: {}",
                     manifest_.architecture->tensors()[tensor].name, ancestor, away->second.message()));
    return fail(*met_.not_given);
  }

  // Of all that it was thought to have, since it asked for the first that it has not.
  void note_not_here() {
    for (std::uint32_t tensor = 0; tensor < manifest_.owners.size(); ++tensor) {
      const VersionId& writer = manifest_.owners[tensor].writer;
      if (writer != manifest_.id && !is_elsewhere(inherited_.placed, tensor)) met_.not_here.insert(writer);
    }
  }

  /// Whether another try has a better chance than the last one.
  bool learned(std::size_t home, int tries) {
    if (met_.not_given) return false;
    if (!met_.away.empty() || !met_.not_there.empty() || !met_.not_here.empty()) return learned_where();
    if (met_.caller_failed) return false;
    // Another one may be the registrar by now.
    if (met_.placement_changed || (met_.registrar_away && impl_.is_outdated(*now_))) {
      const std::uint64_t before = now_->placement.number();
      now_ = impl_.refresh();
      if (now_->placement.number() > before || !met_.placement_changed) return true;
      error_ = Error(
          Code::unavailable,
          format("a provider is joining, and no version of {} gets a number until it has joined; put it again then",
                 manifest_.name.model));
      return false;
    }
    if (met_.home_failed && options_.drawn_id) {
      failed_homes_.insert(id_of(home));
      return failed_homes_.size() <= kOtherHomesMax && failed_homes_.size() < now_->members.size();
    }
    // Settled by somebody's garbage collection while it was on its way; the next attempt is another one.
    return error_.code() == Code::failed_precondition && tries == 0;
  }

  bool learned_where() {
    bool any = false;
    for (const auto& [provider, why] : met_.away) any |= not_asked_.away.emplace(provider, why).second;
    for (const VersionId& writer : met_.not_there) {
      any |= not_asked_.not_there.insert(writer).second || not_asked_.nowhere.insert(writer).second;
    }
    for (const VersionId& writer : met_.not_here) any |= not_asked_.not_there.insert(writer).second;
    return any;
  }

  void note_undecided(std::size_t home) const {
    Impl::Undecided undecided{.name = numbered_.name,
                              .id = numbered_.id,
                              .attempt = inherited_.placed.attempt,
                              .home = now_->members[home],
                              .inherited_from = {}};
    for (const auto& [at, segments] : inherited_.segments) undecided.inherited_from.push_back(now_->members[at]);
    impl_.note_undecided(std::move(undecided));
  }

  std::string id_of(std::size_t provider) const { return now_->placement.providers()[provider].id; }

  const Impl& impl_;
  const BytesOf& bytes_of_;
  const Repository::PutOptions& options_;
  const Impl::StoreAtHome& store_;
  std::shared_ptr<const ClusterView> now_;
  Manifest manifest_;  ///< As given, but for the identity.
  Impl::NotAsked not_asked_;
  std::set<std::string> failed_homes_;
  /// Given to this put alone, and no version has it: kept by the next try.
  std::optional<VersionNumber> number_;
  Error error_{Code::unavailable, "it was never tried"};
  // Of the try that goes on.
  Impl::Inheritance inherited_;
  Manifest numbered_;
  Mutex mutex_;
  Met met_;
};

Status check_given(const Manifest& manifest) {
  if (manifest.architecture != nullptr && manifest.owners.size() == manifest.architecture->tensors().size()) return {};
  return fail(Code::invalid_argument, "the manifest needs an architecture, and an owner for each of its tensors");
}

}  // namespace

cluster::Reply ClusterRepository::Impl::number(const ClusterView& now, const Manifest& manifest,
                                               VersionNumber& given) const {
  const std::string& model = manifest.name.model;
  const auto number = now.members[now.placement.registrar(model)]->ask(
      [&](ProviderRepository& at) { return cluster::next_number(at, now.placement, model, manifest.name.number); });
  if (!number && is_away(number.error())) {
    // Nobody else can give one without the danger that it is given twice.
    return {.error = Error(number.error().code(), format("no version of {0} can be put until the provider that numbers "
                                                         "this model answers (other models can be put): {1}",
                                                         model, number.error().message()))};
  }
  if (!number) return {.error = number.error()};
  given = *number;
  return {};
}

cluster::Reply carry_out(const ClusterView& view, const cluster::Call& call) {
  const auto reply_of = [](const auto& answer) {
    return answer ? cluster::Reply{} : cluster::Reply{.error = answer.error()};
  };
  const cluster::Member& member = *view.members[call.provider];
  switch (call.kind) {
    case cluster::Call::Kind::drop:
      return reply_of(member.ask([&](ProviderRepository& at) { return at.drop_referrer(call.version, call.attempt); }));
    case cluster::Call::Kind::settle: {
      const auto there = member.ask([&](ProviderRepository& at) { return at.settle_put(call.version, call.attempt); });
      if (!there) return {.error = there.error()};
      return {.there = *there};
    }
    default: return {.error = Error(Code::unsupported, "this kind of call is carried out by its put")};
  }
}

Result<VersionName> ClusterRepository::Impl::put(const Manifest& given, const BytesOf& bytes_of,
                                                 const PutOptions& options, const StoreAtHome& store) const {
  const StopInterrupts stops(options.stop);
  FRESHET_TRY(Interruption::check());
  FRESHET_TRY(check_given(given));
  if (options.placed)
    return fail(Code::invalid_argument,
                "PutOptions::placed is only for a single provider; this repository places versions itself");
  FRESHET_TRY(check_model_name(given.name.model));
  withdraw_undecided();
  FRESHET_TRY(learn_ancestor(given, options.ancestor_may_be_retired));
  return Putting(*this, given, bytes_of, options, store).run();
}

Result<VersionName> ClusterRepository::put(const Manifest& given,
                                           const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                           PutOptions options) {
  FRESHET_TRY(check_given(given));
  Manifest manifest = given;
  {
    const StopInterrupts stops(options.stop);
    FRESHET_TRY(fill_digests(manifest, bytes_of, options));
  }
  return impl_->put(
      manifest, bytes_of, options,
      [](const cluster::Member& home, const Manifest& numbered, const PutOptions& at_home, const BytesOf& asked) {
        return home.ask([&](ProviderRepository& at) { return at.put(numbered, asked, at_home); });
      });
}

}  // namespace freshet
