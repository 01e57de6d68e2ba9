/// Storing a version: it is numbered by its model's registrar, its references are made durable where what it inherits
/// rests, and then its home makes it exist (repo/cluster/protocol.h).

#include <algorithm>

#include "core/env.h"
#include "core/format.h"
#include "repo/cluster/cluster_impl.h"
#include "repo/cluster/numbers.h"

namespace freshet {
namespace {

constexpr int kTriesMax = 8;

std::uint64_t new_attempt() {
  std::uint64_t number = 0;
  while (number == 0) number = random_u64(system_env());
  return number;
}

}  // namespace

// Where the ancestor is and what it inherits from whom: the same holds for what the child has of it. Best effort, but
// for an ancestor that was retired.
Status ClusterRepository::Impl::learn_ancestor(const Manifest& manifest, bool may_be_retired) const {
  if (!manifest.ancestor) return {};
  const Result<std::optional<Located>> at = locate(*manifest.ancestor);
  if (!at || !*at) return {};
  const Located& ancestor = **at;
  const bool known = std::ranges::all_of(manifest.owners.writers(), [&](const VersionId& writer) {
    return writer == manifest.id || writer_at(writer) != nullptr;
  });
  Status there;
  if (known) {
    const auto pins = ancestor.home->ask([&](Repository& home) { return home.pins(ancestor.name); });
    if (!pins) there = fail(pins.error());
  } else {
    const auto record = ancestor.home->ask([&](Repository& home) { return home.get(ancestor.name); });
    if (record) learn(*record, ancestor.home);
    if (!record) there = fail(record.error());
  }
  if (there || there.error().code() != Code::not_found || may_be_retired) return {};
  return fail(Code::failed_precondition, format("its ancestor {} was retired", to_string(ancestor.name)));
}

// What the version inherits, and from whom. `empty_handed` are providers that did not have what was thought to be
// theirs: the bytes are then asked of the caller.
Result<ClusterRepository::Impl::Inheritance> ClusterRepository::Impl::inheritance(
    const ClusterView& now, const Manifest& manifest, std::size_t home,
    const std::vector<std::string>& empty_handed) const {
  Inheritance result;
  result.placed.placement = now.placement.number();
  result.placed.attempt = new_attempt();
  std::map<VersionId, std::size_t> places;
  for (const VersionId& writer : manifest.owners.writers()) {
    if (writer == manifest.id) continue;
    MemberPointer member = writer_at(writer);
    if (member == nullptr) {
      FRESHET_ASSIGN(const std::optional<Located> located, locate(writer));
      if (located) member = located->home;
    }
    // A writer that nobody knows was never stored: the version keeps a copy of its own.
    const std::size_t at = member == nullptr ? home : now.index_of(member);
    if (at == now.members.size() ||
        std::ranges::find(empty_handed, now.placement.providers()[at].id) != empty_handed.end()) {
      places.emplace(writer, home);
    } else {
      places.emplace(writer, at);
    }
  }
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const auto place = places.find(manifest.owners[tensor].writer);
    if (place == places.end() || place->second == home) continue;
    result.placed.elsewhere.push_back(tensor);
    result.segments[place->second].push_back(manifest.owners[tensor]);
  }
  for (auto& [at, segments] : result.segments) {
    std::ranges::sort(segments);
    segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  }
  for (const auto& [writer, at] : places) {
    if (at == home || at == now.placement.home(writer)) continue;
    result.placed.moved.push_back({.writer = writer, .provider = now.placement.providers()[at].id});
  }
  return result;
}

cluster::Reply ClusterRepository::Impl::number(const ClusterView& now, const Manifest& manifest,
                                               VersionNumber& given) const {
  const std::string& model = manifest.name.model;
  const std::vector<std::size_t> registrars = now.placement.registrars(model);
  const cluster::FormerLast former = [&]() -> Result<VersionNumber> {
    VersionNumber last = 0;
    for (std::size_t i = 1; i < registrars.size(); ++i) {
      FRESHET_ASSIGN(const VersionNumber one,
                     now.members[registrars[i]]->ask([&](Repository& at) { return cluster::last_number(at, model); }));
      last = std::max(last, one);
    }
    return last;
  };
  const auto number = now.members[registrars.front()]->ask(
      [&](Repository& at) { return cluster::next_number(at, now.placement, model, manifest.name.number, former); });
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
      return reply_of(member.ask([&](Repository& at) { return at.drop_referrer(call.version, call.attempt); }));
    case cluster::Call::Kind::settle: {
      const auto there = member.ask([&](Repository& at) { return at.settle_put(call.version, call.attempt); });
      if (!there) return {.error = there.error()};
      return {.there = *there};
    }
    default: return {.error = Error(Code::unsupported, "this call needs more than itself")};
  }
}

Result<VersionName> ClusterRepository::put(const Manifest& given,
                                           const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                           PutOptions options) {
  if (given.architecture == nullptr || given.owners.size() != given.architecture->tensors().size()) {
    return fail(Code::invalid_argument, "the manifest has no owner for each tensor of an architecture");
  }
  if (options.placed) return fail(Code::invalid_argument, "who spreads versions over providers is this repository");
  FRESHET_TRY(check_model_name(given.name.model));
  FRESHET_TRY(impl_->learn_ancestor(given, options.ancestor_may_be_retired));

  std::shared_ptr<const ClusterView> now = impl_->view();
  std::vector<std::string> empty_handed;
  std::optional<Error> error;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    const std::size_t home = now->placement.home(given.id);
    if (now->placement.homes(given.id).size() > 1) {
      FRESHET_ASSIGN(const std::optional<Impl::Located> stored, impl_->locate(given.id));
      if (stored) {
        return fail(Code::already_exists,
                    format("version {} is stored as {}", to_string(given.id), to_string(stored->name)));
      }
    }
    Impl::Inheritance inherited;
    inherited.placed = {.placement = now->placement.number(), .attempt = new_attempt()};
    if (options.has_weights) {
      FRESHET_ASSIGN(inherited, impl_->inheritance(*now, given, home, empty_handed));
    }
    cluster::PutMachine::Plan plan{.version = given.id,
                                   .attempt = inherited.placed.attempt,
                                   .home = home,
                                   .registrar = now->placement.registrar(given.name.model)};
    for (const auto& [at, segments] : inherited.segments) plan.inherited.push_back({at, segments});

    Manifest manifest = given;
    PutOptions at_home = options;
    at_home.placed = inherited.placed;
    std::vector<std::string> stale;
    Mutex mutex;
    bool placement_changed = false;
    cluster::PutMachine machine(std::move(plan));
    drive(machine, [&](const cluster::Call& call) -> cluster::Reply {
      const cluster::Member& member = *now->members[call.provider];
      if (call.kind == cluster::Call::Kind::number) {
        cluster::Reply reply = impl_->number(*now, given, manifest.name.number);
        const MutexLock lock(mutex);
        placement_changed = reply.error && reply.error->code() == Code::failed_precondition;
        return reply;
      }
      if (call.kind == cluster::Call::Kind::refer) {
        const Status referred = member.ask([&](Repository& at) {
          return at.add_referrer({.version = call.version,
                                  .attempt = call.attempt,
                                  .home = now->placement.providers()[home].id,
                                  .segments = call.segments});
        });
        if (referred) return {};
        if (referred.error().code() == Code::not_found) {
          const MutexLock lock(mutex);
          stale.push_back(member.provider().id);
        }
        return {.error = referred.error()};
      }
      if (call.kind == cluster::Call::Kind::commit) {
        const auto stored = member.ask([&](Repository& at) { return at.put(manifest, bytes_of, at_home); });
        return stored ? cluster::Reply{} : cluster::Reply{.error = stored.error()};
      }
      return carry_out(*now, call);
    });
    if (!machine.error()) {
      impl_->learn(manifest.name, manifest.id, now->members[home]);
      return manifest.name;
    }
    error = machine.error();
    // Settled by somebody's garbage collection while it was on its way; the next attempt is another one.
    const bool given_up = error->code() == Code::failed_precondition && tries == 0;
    if (!stale.empty()) {
      empty_handed.insert(empty_handed.end(), stale.begin(), stale.end());
    } else if (placement_changed) {
      now = impl_->refresh();
    } else if (!given_up) {
      break;
    }
  }
  return fail(std::move(*error).with_context("put " + given.name.model));
}

Result<std::vector<std::uint32_t>> ClusterRepository::wanted(const Manifest& manifest,
                                                             const PutOptions& options) const {
  if (manifest.architecture == nullptr || manifest.owners.size() != manifest.architecture->tensors().size()) {
    return fail(Code::invalid_argument, "the manifest has no owner for each tensor of an architecture");
  }
  const std::shared_ptr<const ClusterView> now = impl_->view();
  const std::size_t home = now->placement.home(manifest.id);
  FRESHET_TRY(impl_->learn_ancestor(manifest, options.ancestor_may_be_retired));
  FRESHET_ASSIGN(const Impl::Inheritance inherited, impl_->inheritance(*now, manifest, home, {}));
  PutOptions at_home = options;
  at_home.placed = inherited.placed;
  Manifest numbered = manifest;
  // The number is given by the put; one that nobody has keeps its check out of this answer.
  numbered.name.number = VersionNumber{1} << 61;
  return now->members[home]->ask([&](Repository& at) { return at.wanted(numbered, at_home); });
}

}  // namespace freshet
