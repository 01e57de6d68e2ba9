// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "repo/serve/client/remote.h"

// A function each: the question's body is built, and the answer's is read.

namespace freshet::rpc {

Result<VersionRecord> RemoteRepository::get(const VersionName& asked) const {
  return value<wire::Record>(
      [&](Builder& builder) { return wire::CreateAskRecord(builder, rpc::put(builder, asked)); });
}

Result<VersionNumber> RemoteRepository::latest(const std::string& model) const {
  FRESHET_ASSIGN(const Response response,
                 ask([&](Builder& builder) { return wire::CreateAskLatest(builder, builder.CreateString(model)); }));
  FRESHET_ASSIGN(const wire::Number* const number, body_of<wire::Number>(response));
  return number->value();
}

Result<std::optional<VersionName>> RemoteRepository::find(const VersionId& id) const {
  return name([&](Builder& builder) {
    const wire::Id wire_form = wire_id(id);
    return wire::CreateAskFind(builder, &wire_form);
  });
}

Result<std::vector<std::uint32_t>> RemoteRepository::wanted(const Manifest& given, const PutOptions& options) const {
  FRESHET_ASSIGN(const Manifest manifest, encodable(given));
  FRESHET_ASSIGN(const Response response, ask([&](Builder& builder) {
                   return wire::CreateAskWanted(builder, rpc::put(builder, manifest, options));
                 }));
  FRESHET_ASSIGN(const wire::Tensors* const tensors, body_of<wire::Tensors>(response));
  return copied(tensors->tensors());
}

Result<std::vector<OwnerRow>> RemoteRepository::owners(const VersionName& asked) const {
  return value<wire::Owners>(
      [&](Builder& builder) { return wire::CreateAskOwners(builder, rpc::put(builder, asked)); });
}

Result<std::vector<LineageRow>> RemoteRepository::lineage(const VersionName& asked) const {
  return value<wire::Lineage>(
      [&](Builder& builder) { return wire::CreateAskLineage(builder, rpc::put(builder, asked)); });
}

Result<std::optional<VersionName>> RemoteRepository::mrca(const VersionName& a, const VersionName& b) const {
  return name([&](Builder& builder) {
    const auto first = rpc::put(builder, a);
    return wire::CreateAskCommonAncestor(builder, first, rpc::put(builder, b));
  });
}

Result<std::vector<LineageRow>> RemoteRepository::descendants(const VersionName& asked) const {
  return value<wire::Lineage>(
      [&](Builder& builder) { return wire::CreateAskDescendants(builder, rpc::put(builder, asked)); });
}

Result<std::vector<ContributorRow>> RemoteRepository::contributors(const VersionName& asked) const {
  return value<wire::Contributors>(
      [&](Builder& builder) { return wire::CreateAskContributors(builder, rpc::put(builder, asked)); });
}

Result<VersionDiff> RemoteRepository::diff(const VersionName& a, const VersionName& b) const {
  return value<wire::Difference>([&](Builder& builder) {
    const auto first = rpc::put(builder, a);
    return wire::CreateAskDiff(builder, first, rpc::put(builder, b));
  });
}

Result<std::vector<std::string>> RemoteRepository::models() const {
  return texts([](Builder& builder) { return wire::CreateAskModels(builder); });
}

Result<std::vector<LineageRow>> RemoteRepository::versions(const std::string& model) const {
  return value<wire::Lineage>(
      [&](Builder& builder) { return wire::CreateAskVersions(builder, builder.CreateString(model)); });
}

Status RemoteRepository::change_pin(const VersionName& pinned, const std::string& by,
                                    const std::optional<PinLease>& lease, bool undo) {
  const auto build = [&](Builder& builder) {
    const auto version = rpc::put(builder, pinned);
    const wire::PinLease wire_lease = lease ? wire_pin_lease(*lease) : wire::PinLease();
    return wire::CreatePin(builder, version, builder.CreateString(by), undo, lease ? &wire_lease : nullptr);
  };
  FRESHET_ASSIGN(const Response response, tell(build, options_.answer));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Status RemoteRepository::pin(const VersionName& pinned, const std::string& by, const PinTerms& terms) {
  std::optional<PinLease> lease = terms.lease;
  if (terms.stays) {
    lease.reset();
  } else if (!lease) {
    FRESHET_ASSIGN(lease, renewal_.begin());
  }
  return change_pin(pinned, by, lease, false);
}

Status RemoteRepository::unpin(const VersionName& pinned, const std::string& by, const PinTerms& terms) {
  return change_pin(pinned, by, terms.lease.value_or(renewal_.lease()), true);
}

Status RemoteRepository::renew_pins(const PinLease& lease) {
  const wire::PinLease wire_lease = wire_pin_lease(lease);
  // Not longer, since who closes this object waits for a renewal that is under way; one that fails is soon repeated.
  const Duration at_most = std::min<Duration>(options_.answer, std::chrono::seconds(5));
  FRESHET_ASSIGN(const Response response,
                 ask([&](Builder& builder) { return wire::CreateRenewPins(builder, &wire_lease); }, at_most));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Result<std::vector<std::string>> RemoteRepository::pins(const VersionName& asked) const {
  return texts([&](Builder& builder) { return wire::CreateAskPins(builder, rpc::put(builder, asked)); });
}

Result<std::vector<PinnedVersion>> RemoteRepository::all_pins() const {
  return value<wire::PinnedVersions>([](Builder& builder) { return wire::CreateAskAllPins(builder); });
}

Status RemoteRepository::annotate(const VersionName& annotated, const Annotations& annotations) {
  const auto build = [&](Builder& builder) { return rpc::put(builder, annotated, annotations); };
  FRESHET_ASSIGN(const Response response, tell(build, options_.answer));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Result<RepositoryStat> RemoteRepository::stat() const {
  return value<wire::Stat>([](Builder& builder) { return wire::CreateAskStat(builder); });
}

Result<VerifyReport> RemoteRepository::verify(const std::optional<VersionName>& asked, const Progress& progress) const {
  FRESHET_ASSIGN(const Response response, ask(
                                              [&](Builder& builder) {
                                                const auto version =
                                                    asked ? rpc::put(builder, *asked) : Offset<wire::Name>();
                                                return wire::CreateAskVerify(builder, version);
                                              },
                                              kLong, progress));
  FRESHET_ASSIGN(const wire::Verified* const verified, body_of<wire::Verified>(response));
  return rpc::read(*verified);
}

Result<MatchAnswer> RemoteRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  MatchQuery asked = query;
  if (!query.pin_by.empty() && !query.pin_terms.stays && !query.pin_terms.lease) {
    FRESHET_ASSIGN(asked.pin_terms.lease, renewal_.begin());
  }
  const auto build = [&](Builder& builder) { return rpc::put(builder, asked); };
  FRESHET_ASSIGN(const Response response, query.pin_by.empty() ? ask(build) : tell(build, options_.answer));
  FRESHET_ASSIGN(const wire::Matched* const matched, body_of<wire::Matched>(response));
  return rpc::read(*matched);
}

Result<bool> RemoteRepository::settle_put(const VersionId& id, std::uint64_t attempt) {
  FRESHET_ASSIGN(const Response response, ask([&](Builder& builder) {
                   const wire::Id wire_form = wire_id(id);
                   return wire::CreateSettlePut(builder, &wire_form, attempt);
                 }));
  FRESHET_ASSIGN(const wire::Number* const number, body_of<wire::Number>(response));
  return number->value() != 0;
}

Result<std::uint64_t> RemoteRepository::revive_segments(std::span<const SegmentContent> contents) {
  std::vector<wire::Segment> segments;
  std::vector<std::uint64_t> bytes;
  std::vector<wire::Digest> digests;
  for (const SegmentContent& content : contents) {
    segments.push_back(wire_segment(content.segment));
    bytes.push_back(content.bytes);
    digests.emplace_back(content.digest.low, content.digest.high);
  }
  const auto build = [&](Builder& builder) {
    const auto names = builder.CreateVectorOfStructs(segments);
    const auto sizes = builder.CreateVector(bytes);
    return wire::CreateReviveSegments(builder, names, sizes, builder.CreateVectorOfStructs(digests));
  };
  FRESHET_ASSIGN(const Response response, tell(build, kLong));
  FRESHET_ASSIGN(const wire::Number* const number, body_of<wire::Number>(response));
  return number->value();
}

Result<SharedRecord> RemoteRepository::shared_record(const std::string& key) const {
  FRESHET_ASSIGN(const Response response,
                 ask([&](Builder& builder) { return wire::CreateAskShared(builder, builder.CreateString(key)); }));
  FRESHET_ASSIGN(const wire::Shared* const shared, body_of<wire::Shared>(response));
  return shared->record() == nullptr ? SharedRecord{.key = key, .value = {}} : rpc::read(*shared->record());
}

Result<std::vector<SharedRecord>> RemoteRepository::shared_records(const std::string& prefix,
                                                                   const std::string& after) const {
  const auto build = [&](Builder& builder) {
    const auto begin = builder.CreateString(prefix);
    return wire::CreateListShared(builder, begin, builder.CreateString(after));
  };
  FRESHET_ASSIGN(const Response response, ask(build));
  FRESHET_ASSIGN(const wire::SharedRows* const rows, body_of<wire::SharedRows>(response));
  return rpc::read(rows->rows());
}

Status RemoteRepository::change_shared_records(std::span<const SharedRecord> expected,
                                               std::span<const SharedRecord> changes) {
  const auto build = [&](Builder& builder) {
    const auto first = rpc::put(builder, expected);
    return wire::CreateChangeShared(builder, first, rpc::put(builder, changes));
  };
  FRESHET_ASSIGN(const Response response, tell(build, options_.answer));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Status RemoteRepository::set_alias(const std::string& model, const std::string& alias,
                                   std::optional<VersionNumber> expected, VersionNumber desired) {
  return ask_alias(model, alias, expected, desired, false);
}

Status RemoteRepository::keep_for_alias(const std::string& model, const std::string& alias,
                                        std::optional<VersionNumber> expected, VersionNumber desired) {
  return ask_alias(model, alias, expected, desired, true);
}

Status RemoteRepository::ask_alias(const std::string& model, const std::string& alias,
                                   std::optional<VersionNumber> expected, VersionNumber desired,
                                   bool is_decided_elsewhere) {
  const auto build = [&](Builder& builder) {
    const auto model_text = builder.CreateString(model);
    const auto alias_text = builder.CreateString(alias);
    const auto number = expected ? flatbuffers::Optional<std::uint64_t>(*expected) : flatbuffers::nullopt;
    return wire::CreateSetAlias(builder, model_text, alias_text, number, desired, is_decided_elsewhere);
  };
  FRESHET_ASSIGN(const Response response, tell(build, options_.answer));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Result<std::vector<Alias>> RemoteRepository::aliases(const std::string& model) const {
  return value<wire::Aliases>(
      [&](Builder& builder) { return wire::CreateAskAliases(builder, builder.CreateString(model)); });
}

}  // namespace freshet::rpc
