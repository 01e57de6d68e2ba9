// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/bulk_reader.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/format.h"

namespace freshet::rpc {
namespace {

using channel::FetchRequest;
using channel::Piece;
using protocol::ChannelKind;

/// While one is sent, the server reads ahead for the others.
constexpr std::size_t kRequestsInFlight = 3;
constexpr std::uint64_t kRequestBytes = std::uint64_t{16} << 20;
constexpr std::size_t kRequestPieces = 4096;
constexpr std::chrono::milliseconds kRound{20};
/// What is measured says for so long which channel is the fastest.
constexpr Duration kMeasuredFor = std::chrono::minutes(10);
/// A first connection over UCX takes 40 ms and more to make, one over ZeroMQ one: it pays for who reads much.
constexpr std::uint64_t kUcxPaysAfter = std::uint64_t{256} << 20;

}  // namespace

/// One lease on its way.
class BulkReader::Fetching final : public channel::FetchSink {
 public:
  Fetching(const BulkLease& lease, std::span<BulkPart> parts) : lease_(lease), parts_(parts), states_(parts.size()) {}

  Status run(Connection& connection, Duration stall);
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t requests() const { return requests_made_; }

  Result<channel::Place> place(std::uint64_t request, std::size_t piece, channel::Encoding encoding,
                               std::uint64_t bytes) override;
  void on_bytes(std::uint64_t request, std::size_t piece, std::uint64_t bytes) override;
  void on_piece_done(std::uint64_t request, std::size_t piece) override;
  void on_request_done(std::uint64_t request, Status status) override;

 private:
  struct PartState {
    std::uint64_t there = 0;     ///< Bytes of pieces that are done.
    std::uint64_t in_order = 0;  ///< From its beginning on, none between them missing.
    std::uint64_t digested = 0;  ///< From its beginning on.
    DigestStream digest;
  };
  using Requests = std::map<std::uint64_t, std::vector<Piece>>;

  Status ask(Connection& connection);
  std::vector<Piece> next_pieces();
  void digest_to(std::uint32_t part, std::uint64_t end);
  void moved() { moved_at_ = system_clock().now(); }

  const BulkLease& lease_;
  const std::span<BulkPart> parts_;
  std::vector<PartState> states_;
  std::uint32_t next_part_ = 0;
  Requests requests_;
  std::uint64_t bytes_ = 0;
  std::uint64_t requests_made_ = 0;
  Time moved_at_{};
  Status failed_;
};

/// Whole parts, so that each comes in its order.
std::vector<Piece> BulkReader::Fetching::next_pieces() {
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
  while (next_part_ < parts_.size() && bytes < kRequestBytes && pieces.size() < kRequestPieces) {
    const std::uint64_t size = parts_[next_part_].out.size();
    std::uint64_t at = 0;
    do {
      const std::uint64_t count = std::min(lease_.piece_bytes, size - at);
      pieces.push_back({.tensor = next_part_, .offset = at, .bytes = count, .base = std::nullopt});
      at += count;
    } while (at < size && pieces.size() < channel::kPiecesMax);
    if (at < size) failed_ = fail(Code::unsupported, "a tensor has too many pieces");
    bytes += size;
    ++next_part_;
  }
  return pieces;
}

Status BulkReader::Fetching::ask(Connection& connection) {
  while (next_part_ < parts_.size() && requests_.size() < kRequestsInFlight && failed_) {
    ++requests_made_;
    FetchRequest request{.request = ++connection.requests,
                         .session = lease_.session,
                         .lease = lease_.lease,
                         .version = lease_.version,
                         .link_bytes_per_second = 0,
                         .pieces = next_pieces()};
    FRESHET_TRY(failed_);
    requests_.emplace(request.request, request.pieces);
    FRESHET_TRY(connection.client->fetch(std::move(request), *this));
  }
  return {};
}

Status BulkReader::Fetching::run(Connection& connection, Duration stall) {
  moved();
  Time renewed = moved_at_;
  for (;;) {
    FRESHET_TRY(ask(connection));
    if (requests_.empty()) return failed_;
    FRESHET_ASSIGN(const bool more, connection.client->progress(kRound));
    FRESHET_TRY(failed_);
    const Time now = system_clock().now();
    if (now - renewed > lease_.lifetime / 3) {
      renewed = now;
      lease_.renew();
    }
    const bool can_ask = requests_.size() < kRequestsInFlight && next_part_ < parts_.size();
    if (more || can_ask || requests_.empty()) continue;
    if (now - moved_at_ > stall) return fail(Code::timed_out, "no bytes came through the data channel");
    pollfd file{.fd = connection.client->descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&file, 1, static_cast<int>(kRound.count()));
  }
}

Result<channel::Place> BulkReader::Fetching::place(std::uint64_t request, std::size_t piece, channel::Encoding encoding,
                                                   std::uint64_t bytes) {
  const Piece& wanted = requests_.at(request)[piece];
  if (encoding != channel::Encoding::dense || bytes != wanted.bytes) {
    return fail(Code::corrupt, "the repository's server sent other bytes than were asked for");
  }
  return parts_[wanted.tensor].out.subspan(wanted.offset, wanted.bytes);
}

/// Pieces of a part come in their order, mostly; one that is ahead of those before it is digested when they are done.
void BulkReader::Fetching::on_bytes(std::uint64_t request, std::size_t piece, std::uint64_t bytes) {
  moved();
  const Piece& at = requests_.at(request)[piece];
  const PartState& state = states_[at.tensor];
  if (state.in_order == at.offset) digest_to(at.tensor, at.offset + bytes);
}

void BulkReader::Fetching::digest_to(std::uint32_t part, std::uint64_t end) {
  PartState& state = states_[part];
  if (end <= state.digested || !parts_[part].is_digested) return;
  state.digest.update(Bytes(parts_[part].out).subspan(state.digested, end - state.digested));
  state.digested = end;
}

void BulkReader::Fetching::on_piece_done(std::uint64_t request, std::size_t piece) {
  moved();
  const Piece& at = requests_.at(request)[piece];
  PartState& state = states_[at.tensor];
  state.there += at.bytes;
  if (state.in_order == at.offset) state.in_order += at.bytes;
  bytes_ += at.bytes;
  BulkPart& part = parts_[at.tensor];
  if (state.there < part.out.size()) return;
  digest_to(at.tensor, part.out.size());
  part.came = true;
  part.digest = state.digest.finish();
}

void BulkReader::Fetching::on_request_done(std::uint64_t request, Status status) {
  moved();
  requests_.erase(request);
  if (!status && failed_) failed_ = std::move(status);
}

BulkReader::BulkReader(Options options) : options_(std::move(options)) {
  protocol::ChannelSelector::Options selecting;
  selecting.usable = usable_channels(options_.openers) & ~protocol::bit(ChannelKind::shm);
  selecting.trusted_fabric = options_.trusted_fabric;
  selecting.only = options_.only;
  selecting.measured_for = kMeasuredFor;
  selector_ = protocol::ChannelSelector(selecting);
}

BulkReader::~BulkReader() = default;

Result<BulkReader::Connection> BulkReader::take(const BulkLease& lease) {
  protocol::ChannelOffer offer;
  std::vector<protocol::ChannelOffer> offers = lease.channels;
  {
    const MutexLock lock(mutex_);
    const Time now = system_clock().now();
    const bool has_zmq = std::ranges::count(offers, ChannelKind::zmq, &protocol::ChannelOffer::kind) != 0;
    if (!options_.only && has_zmq && bytes_read_ < kUcxPaysAfter) {
      std::erase_if(offers, [](const auto& one) { return traits_of(one.kind).needs_trusted_fabric; });
    }
    FRESHET_ASSIGN(const auto choice, selector_.choose(offers, lease.same_host, now));
    if (choice.not_before > now) return fail(Code::unavailable, "the data channels failed lately: " + choice.why);
    offer = choice.offer;
    // One that was not measured lately is tried before what was.
    for (const protocol::ChannelOffer& other : offers) {
      const auto only_it = selector_.choose({other}, lease.same_host, now);
      if (!only_it || only_it->not_before > now || selector_.bandwidth(other.kind, now) != 0) continue;
      if (selector_.bandwidth(offer.kind, now) != 0) offer = other;
    }
    const auto at = std::find_if(idle_.rbegin(), idle_.rend(), [&](const auto& one) { return one.offer == offer; });
    if (at != idle_.rend()) {
      Connection connection = std::move(*at);
      idle_.erase(std::next(at).base());
      return connection;
    }
  }
  const auto opener = options_.openers.find(offer.kind);
  if (opener == options_.openers.end()) return fail(Code::unsupported, "this build does not have the channel");
  Connection connection{.offer = offer, .client = nullptr};
  auto opened = opener->second(offer.address);
  if (!opened) {
    const MutexLock lock(mutex_);
    selector_.failed(offer.kind, opened.error().message(), system_clock().now());
    return fail(std::move(opened).error());
  }
  connection.client = std::move(*opened);
  return connection;
}

void BulkReader::keep(Connection connection) {
  std::optional<Connection> too_many;
  const MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
  if (idle_.size() <= kIdleMax) return;
  too_many = std::move(idle_.front());
  idle_.pop_front();
}

Status BulkReader::fetch(const BulkLease& lease, std::span<BulkPart> parts) {
  for (;;) {
    FRESHET_ASSIGN(Connection connection, take(lease));
    const bool was_idle = connection.requests != 0;
    std::uint64_t bytes = 0;
    Status done = fetch_through(std::move(connection), lease, parts, bytes);
    // One that nobody used for a while may have been cut off meanwhile.
    if (done || !was_idle || bytes != 0 || done.error().code() != Code::unavailable) return done;
  }
}

Status BulkReader::fetch_through(Connection connection, const BulkLease& lease, std::span<BulkPart> parts,
                                 std::uint64_t& bytes) {
  const ChannelKind kind = connection.offer.kind;
  Fetching fetching(lease, parts);
  const Time begun = system_clock().now();
  Status done = fetching.run(connection, options_.stall);
  const Time now = system_clock().now();
  // Its destruction, before the memory is anybody else's, is what ends the rest of its requests.
  if (!done) connection.client.reset();
  const bool was_stale = !done && connection.requests > fetching.requests() && fetching.bytes() == 0;
  bytes = fetching.bytes();
  {
    const MutexLock lock(mutex_);
    bytes_read_ += fetching.bytes();
    if (done) {
      selector_.worked(kind);
      selector_.measured(kind, fetching.bytes(), now - begun, now);
    } else if (!was_stale) {
      selector_.failed(kind, done.error().message(), now);
    }
  }
  if (done) keep(std::move(connection));
  return done;
}

}  // namespace freshet::rpc
