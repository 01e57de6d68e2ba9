// SPDX-License-Identifier: Apache-2.0
/// Puts by parts over several providers. The version's home collects the parts, and the commit is a put of which the
/// home has the bytes already.

#include <algorithm>

#include "core/base/format.h"
#include "repo/cluster/impl.h"

namespace freshet {
namespace {

/// The provider that a token names, and the token as that provider gave it.
struct Collector {
  MemberPointer member;
  PutToken token;
};

Result<Collector> collector_of(const ClusterRepository::Impl& impl, const PutToken& token) {
  const auto is_named = [&](const MemberPointer& member) { return member->provider().id == token.provider; };
  auto now = impl.view();
  auto at = std::ranges::find_if(now->members, is_named);
  if (at == now->members.end()) {  // It may have joined lately.
    now = impl.refresh();
    at = std::ranges::find_if(now->members, is_named);
  }
  if (at == now->members.end()) {
    return fail(Code::not_found, format("put by parts {}: this repository has no provider {}", to_string(token),
                                        token.provider.empty() ? "without a name" : token.provider));
  }
  Collector collector{.member = *at, .token = token};
  collector.token.provider.clear();
  return collector;
}

}  // namespace

Result<PutToken> ClusterRepository::begin_put(const std::string& model, const VersionId& id,
                                              std::shared_ptr<const Architecture> architecture) {
  const auto now = impl_->view();
  const MemberPointer& home = now->members[now->placement.home(id)];
  FRESHET_ASSIGN(PutToken token,
                 home->ask([&](ProviderRepository& at) { return at.part_puts().begin_put(model, id, architecture); }));
  token.provider = home->provider().id;
  return token;
}

Status ClusterRepository::put_parts(const PutToken& token, std::span<const TensorPart> parts) {
  FRESHET_ASSIGN(const Collector collector, collector_of(*impl_, token));
  return collector.member->ask(
      [&](ProviderRepository& at) { return at.part_puts().put_parts(collector.token, parts); });
}

Result<std::vector<std::optional<Digest>>> ClusterRepository::part_digests(const PutToken& token) {
  FRESHET_ASSIGN(const Collector collector, collector_of(*impl_, token));
  return collector.member->ask([&](ProviderRepository& at) { return at.part_puts().part_digests(collector.token); });
}

Result<VersionName> ClusterRepository::commit_put(const PutToken& token, const Manifest& manifest, PutOptions options) {
  FRESHET_ASSIGN(const Collector collector, collector_of(*impl_, token));
  if (options.drawn_id) {
    return fail(Code::invalid_argument, "a put by parts keeps the identity that it began with: without drawn_id");
  }
  const std::string& collects = collector.member->provider().id;
  const auto store = [&](const cluster::Member& home, const Manifest& numbered, const PutOptions& at_home,
                         const auto&) -> Result<VersionName> {
    if (home.provider().id != collects) {
      return fail(Code::failed_precondition,
                  format("put {}: its home is {} since a provider joined, and {} has its parts; begin it again",
                         manifest.name.model, home.provider().id, collects));
    }
    return home.ask(
        [&](ProviderRepository& at) { return at.part_puts().commit_put(collector.token, numbered, at_home); });
  };
  // The home has all bytes, or names what is missing.
  const auto nothing = [](std::uint32_t) -> Result<Bytes> { return Bytes(); };
  return impl_->put(manifest, nothing, options, store);
}

Status ClusterRepository::abort_put(const PutToken& token) {
  FRESHET_ASSIGN(const Collector collector, collector_of(*impl_, token));
  return collector.member->ask([&](ProviderRepository& at) { return at.part_puts().abort_put(collector.token); });
}

}  // namespace freshet
