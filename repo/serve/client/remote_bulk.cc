// SPDX-License-Identifier: Apache-2.0
/// Large reads: leases, and what is read under them through data channels.

#include <algorithm>

#include "repo/serve/client/remote.h"
#include "transport/zmq/named_address.h"
#include "transport/zmq/this_host.h"

namespace freshet::rpc {
namespace {

constexpr std::uint64_t kPieceBytesMax = std::uint64_t{64} << 20;
constexpr std::size_t kOffersMax = 16;

/// The server's words are hostile: what makes no sense is no lease.
std::optional<BulkLease> lease_from(const wire::Lent& lent, const Link& link) {
  BulkLease lease{.session = link.session(),
                  .lease = lent.lease(),
                  .version = lent.version(),
                  .lifetime = Duration(static_cast<std::int64_t>(
                      std::min<std::uint64_t>(lent.lifetime_ns(), static_cast<std::uint64_t>(kLong.count())))),
                  .piece_bytes = std::min(lent.piece_bytes(), kPieceBytesMax),
                  .same_host = link.host() == this_host(),
                  .channels = {},
                  .renew = {}};
  if (lease.piece_bytes == 0) return std::nullopt;
  if (lent.channels() == nullptr) return lease;
  if (lent.channels()->size() > kOffersMax) return std::nullopt;
  const auto reached = SocketAddress::parse(link.address(), false, Reach::any_host);
  for (const wire::Channel* const offered : *lent.channels()) {
    if (offered->kind() > protocol::kChannelKindLast || !reached) continue;
    lease.channels.push_back({.kind = static_cast<protocol::ChannelKind>(offered->kind()),
                              .address = resolve_offered(read(offered->address()), *reached)});
  }
  return lease;
}

}  // namespace

std::vector<BulkPart> RemoteRepository::parts_of(const Ranges& ranges, bool are_digested) {
  std::vector<BulkPart> parts;
  parts.reserve(ranges.size());
  for (const Range& range : ranges) {
    parts.push_back({.out = range.out, .is_digested = are_digested, .came = false, .digest = {}});
  }
  return parts;
}

template <typename Build>
void RemoteRepository::fetch_in_bulk(std::vector<BulkPart>& parts, Build build) const {
  std::uint64_t bytes = 0;
  for (const BulkPart& part : parts) bytes += part.out.size();
  if (!has_channels_ || bytes < options_.channel_bytes_min || parts.size() > kRangesMax) return;
  const Result<std::shared_ptr<Link>> connection = link();
  if (!connection) return;
  Link& asked = **connection;
  if (asked.has_no_channels) return;
  Result<Conversation> conversation = asked.begin(build);
  if (!conversation) return;
  const Result<Response> response = last_answer(*conversation, options_.answer, {});
  if (!response) {
    if (response.error().code() == Code::unsupported) asked.has_no_channels = true;
    return;
  }
  const auto* const lent = (*response)->body_as_Lent();
  if (lent == nullptr) return;
  // Whether they were heard matters little: a lease that nobody renews or ends runs out.
  if (std::optional<BulkLease> lease = lease_from(*lent, asked)) {
    lease->renew = [&asked, id = lease->lease] {
      (void)asked.begin([&](Builder& builder) { return wire::CreateRenewLease(builder, id); });
    };
    // What did not come is asked for in another way, whose error says more than this one's.
    (void)bulk_.fetch(*lease, parts);
  }
  (void)asked.begin([&](Builder& builder) { return wire::CreateEndLease(builder, lent->lease()); });
}

void RemoteRepository::fetch_version_in_bulk(const VersionRecord& record, const Ranges& ranges,
                                             std::vector<BulkPart>& parts) const {
  fetch_in_bulk(parts, [&](Builder& builder) {
    const auto version = rpc::put(builder, record.manifest.name);
    const wire::Id id = wire_id(record.manifest.id);
    std::vector<wire::Range> wire_ranges;
    for (const Range& range : ranges) wire_ranges.emplace_back(range.offset, range.out.size(), range.tensor);
    return wire::CreateLend(builder, version, &id, builder.CreateVectorOfStructs(wire_ranges));
  });
}

void RemoteRepository::fetch_segments_in_bulk(const Ranges& ranges, std::vector<BulkPart>& parts) const {
  fetch_in_bulk(parts, [&](Builder& builder) {
    std::vector<wire::SegmentRange> wire_ranges;
    for (const Range& range : ranges) {
      wire_ranges.emplace_back(wire_segment(range.segment), range.offset, range.out.size());
    }
    return wire::CreateLend(builder, 0, nullptr, 0, builder.CreateVectorOfStructs(wire_ranges));
  });
}

}  // namespace freshet::rpc
