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
std::optional<BulkLease> lease_from(const Lent& lent, const Link& link) {
  BulkLease lease{.session = link.session(),
                  .lease = lent.lease,
                  .version = lent.version,
                  .lifetime = std::min(lent.lifetime, kLong),
                  .piece_bytes = std::min(lent.piece_bytes, kPieceBytesMax),
                  .same_host = link.host() == this_host(),
                  .channels = {},
                  .renew = {}};
  if (lease.piece_bytes == 0 || lent.channels.size() > kOffersMax) return std::nullopt;
  const auto reached = SocketAddress::parse(link.address(), false, Reach::any_host);
  for (const auto& [kind, address] : lent.channels) {
    if (kind > protocol::kChannelKindLast || !reached) continue;
    lease.channels.push_back(
        {.kind = static_cast<protocol::ChannelKind>(kind), .address = resolve_offered(address, *reached)});
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

template <typename MakeLend>
void RemoteRepository::fetch_in_bulk(std::vector<BulkPart>& parts, MakeLend make_lend) const {
  std::uint64_t bytes = 0;
  for (const BulkPart& part : parts) bytes += part.out.size();
  if (!has_channels_ || bytes < options_.channel_bytes_min || parts.size() > kRangesMax) return;
  const Result<std::shared_ptr<Link>> connection = link();
  if (!connection) return;
  Link& asked = **connection;
  if (asked.has_no_channels) return;
  Result<Conversation> conversation = asked.begin(make_lend());
  if (!conversation) return;
  const Result<Response> response = last_answer(*conversation, options_.answer, {});
  if (!response) {
    if (response.error().code() == Code::unsupported) asked.has_no_channels = true;
    return;
  }
  const Result<Lent> lent = answer_in<Lend>(*response);
  if (!lent) return;
  // Whether they were heard matters little: a lease that nobody renews or ends runs out.
  if (std::optional<BulkLease> lease = lease_from(*lent, asked)) {
    lease->renew = [&asked, id = lease->lease] { (void)asked.begin(RenewLease{id}); };
    // What did not come is asked for in another way, whose error says more than this one's.
    (void)bulk_.fetch(*lease, parts);
  }
  (void)asked.begin(EndLease{{lent->lease}});
}

void RemoteRepository::fetch_version_in_bulk(const VersionRecord& record, const Ranges& ranges,
                                             std::vector<BulkPart>& parts) const {
  fetch_in_bulk(parts, [&] { return Lend{record.manifest.name, record.manifest.id, byte_ranges(ranges), {}}; });
}

void RemoteRepository::fetch_segments_in_bulk(const Ranges& ranges, std::vector<BulkPart>& parts) const {
  fetch_in_bulk(parts, [&] { return Lend{{}, {}, {}, segment_ranges(ranges)}; });
}

}  // namespace freshet::rpc
