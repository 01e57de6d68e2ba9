// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/data/data_server.h"

#include <algorithm>

#include "core/base/format.h"
#include "tests/transport/sim/subscriber.h"

namespace freshet::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr int kPiecesOnTheWayMax = 4;

}  // namespace

void DataServer::open_lease(const protocol::action::OpenLease& open) {
  Lease lease{.session = open.session, .number = open.number, .coming = nullptr};
  if (open.coming) lease.coming = books_.find_coming(open.number);
  if (open.coming && lease.coming == nullptr) host_.world.violated("a lease is given of what is not coming");
  const bool added = leases_.emplace(open.lease, std::move(lease)).second;
  if (!added || open.lease == 0) host_.world.violated("a lease is given twice");
}

void DataServer::close_lease(const protocol::action::CloseLease& close) {
  const auto lease = leases_.find(close.lease);
  if (lease == leases_.end()) return host_.world.violated("a lease is closed that is not open");
  lease->second.closing = true;
  if (close.by_force) {
    const std::vector<ConnectionPointer> connections = connections_;
    for (const ConnectionPointer& connection : connections) {
      if (connection->session == close.session) cut(connection);
    }
  }
  const bool early = host_.sabotage == Sabotage::close_lease_early;
  if (early || !is_read(close.lease)) say_closed(close.lease);
}

bool DataServer::is_read(protocol::LeaseId lease) const {
  return std::any_of(transfers_.begin(), transfers_.end(),
                     [&](const TransferPointer& transfer) { return transfer->order.lease == lease; });
}

/// A thread of its own says so, a little later.
void DataServer::say_closed(protocol::LeaseId lease) {
  if (std::exchange(leases_.at(lease).said_closed, true)) return;
  if (host_.sabotage == Sabotage::never_close_lease && host_.world.chance(0.1)) return;
  process_.post(host_.world.between(Duration(0), milliseconds(1)), [this, lease] {
    leases_.erase(lease);
    books_.lease_closed(lease);
  });
}

void DataServer::connect(const ConnectionPointer& connection) {
  if (host_.faults && host_.world.chance(0.1)) {
    return to_client(connection, [connection] { connection->client->connection_lost(connection); });
  }
  connection->server_end = true;
  connections_.push_back(connection);
  to_client(connection, [connection] { connection->client->connection_made(connection); });
}

void DataServer::to_client(const ConnectionPointer& connection, std::function<void()> event) {
  SimSubscriber* client = connection->client;
  if (client->process().life() != connection->client_life) return;
  connection->next_arrival = std::max(connection->next_arrival, host_.world.now() + host_.network.delay());
  client->process().post(connection->next_arrival - host_.world.now(), std::move(event));
}

void DataServer::closed_by_client(const ConnectionPointer& connection) {
  if (std::erase(connections_, connection) == 0) return;
  connection->server_end = false;
  const std::list<TransferPointer> transfers = transfers_;
  for (const TransferPointer& transfer : transfers) {
    if (transfer->connection == connection) abort(transfer);
  }
}

void DataServer::abort(const TransferPointer& transfer) {
  if (std::exchange(transfer->aborted, true)) return;
  const Duration time = host_.world.between(Duration(0), milliseconds(host_.world.chance(0.3) ? 1500 : 5));
  process_.post(time, [this, transfer] { end(transfer); });
}

void DataServer::cut(const ConnectionPointer& connection) {
  to_client(connection, [connection] { connection->client->connection_lost(connection); });
  closed_by_client(connection);
}

void DataServer::break_one() {
  if (connections_.empty()) return;
  const ConnectionPointer connection = connections_[host_.world.random(connections_.size())];
  cut(connection);
}

void DataServer::died() {
  for (const ConnectionPointer& connection : connections_) {
    connection->server_end = false;
    to_client(connection, [connection] { connection->client->connection_lost(connection); });
  }
}

Status DataServer::check(const FetchOrder& order) const {
  if (host_.sabotage == Sabotage::believe_any_lease) return {};
  const auto lease = leases_.find(order.lease);
  const bool living = lease != leases_.end() && !lease->second.closing;
  if (!living || lease->second.session != order.session || lease->second.number != order.number) {
    return fail(Code::failed_precondition, format("there is no such lease of {}", order.number));
  }
  return {};
}

void DataServer::fetch(const ConnectionPointer& connection, FetchOrder order) {
  if (!connection->server_end) return;
  const Status allowed = check(order);
  const auto lease = leases_.find(order.lease);
  const std::shared_ptr<Coming> coming = lease == leases_.end() ? nullptr : lease->second.coming;
  const protocol::CommittedVersion* version = coming != nullptr ? &coming->version : books_.find(order.number);
  if (allowed && !order.is_a_lie && version == nullptr) host_.world.violated("a leased version is gone");
  if (!allowed || version == nullptr) {
    const Error why = allowed ? Error(Code::failed_precondition, "it is gone") : allowed.error();
    return to_client(connection, [connection, request = order.request, why] {
      connection->client->refused(connection, request, why);
    });
  }
  if (order.is_a_lie) host_.world.violated("a lease was believed for what it was not given for");
  auto transfer = std::make_shared<Transfer>();
  transfer->connection = connection;
  transfer->coming = coming;
  for (const std::uint32_t tensor : order.tensors) transfer->places.push_back(version->places.at(tensor));
  transfer->writer = version->manifest->id.incarnation;
  transfer->order = std::move(order);
  transfers_.push_back(transfer);
  step(transfer);
}

void DataServer::step(const TransferPointer& transfer) {
  if (transfer->aborted) return;
  if (transfer->next == transfer->places.size()) return end(transfer);
  if (transfer->on_the_way >= kPiecesOnTheWayMax) {
    transfer->waits = true;
    return;
  }
  if (bytes_there(*transfer) == 0) {
    if (!transfer->coming->over) {
      transfer->waits_for_more = true;
      return;
    }
    to_client(transfer->connection, [connection = transfer->connection, request = transfer->order.request] {
      connection->client->refused(connection, request, Error(Code::unavailable, "it does not come any more"));
    });
    return end(transfer);
  }
  send_piece(*transfer);
  const Duration time = host_.world.between(microseconds(20), milliseconds(host_.world.chance(0.05) ? 80 : 4));
  process_.post(time, [this, transfer] { step(transfer); });
}

std::uint64_t DataServer::bytes_there(const Transfer& transfer) const {
  if (transfer.coming == nullptr) return transfer.places[transfer.next].bytes - transfer.offset;
  return transfer.coming->came.at(transfer.order.tensors[transfer.next]) - transfer.offset;
}

void DataServer::look_again() {
  std::vector<TransferPointer> waiting;
  for (const TransferPointer& transfer : transfers_) {
    if (std::exchange(transfer->waits_for_more, false)) waiting.push_back(transfer);
  }
  for (const TransferPointer& transfer : waiting) step(transfer);
}

void DataServer::send_piece(Transfer& transfer) {
  SegmentPlace place = transfer.places[transfer.next];
  const std::uint64_t left = place.bytes - transfer.offset;
  place.offset += transfer.offset;
  place.bytes = std::min(bytes_there(transfer), 16 + host_.world.random(112));
  const MutableBytes from = memory_->at(place);
  check_truth(transfer, from);
  TensorBytes piece(from.begin(), from.end());
  const ConnectionPointer& connection = transfer.connection;
  if (host_.faults && host_.world.chance(0.002)) {
    piece[host_.world.random(piece.size())] ^= std::byte{4};
    connection->flipped = true;
  }
  ++transfer.on_the_way;
  to_client(connection, [connection, request = transfer.order.request, tensor = transfer.order.tensors[transfer.next],
                         offset = transfer.offset, piece = std::move(piece)] {
    connection->client->piece_came(connection, request, tensor, offset, piece);
  });
  transfer.offset += place.bytes;
  if (place.bytes < left) return;
  ++transfer.next;
  transfer.offset = 0;
}

/// The oracle's word on what is read for a fetch: a digest that does not fit would be fetched again, and hide it.
void DataServer::check_truth(const Transfer& transfer, Bytes bytes) const {
  const Oracle::Version* truth = host_.oracle.find(transfer.order.number, transfer.writer);
  const TensorBytes& wanted = truth->at(transfer.order.tensors[transfer.next]);
  const auto from = wanted.begin() + static_cast<std::ptrdiff_t>(transfer.offset);
  if (std::equal(bytes.begin(), bytes.end(), from)) return;
  // What is passed on before it was proved is as wrong as it came.
  if (transfer.coming != nullptr && transfer.coming->from->flipped) {
    transfer.connection->flipped = true;
    return;
  }
  host_.world.violated(format("a fetch by {} reads {}: tensor {} is torn", transfer.connection->client->kind().label,
                              transfer.order.number, transfer.order.tensors[transfer.next]));
}

void DataServer::acknowledged(const ConnectionPointer& connection, std::uint64_t request) {
  for (const TransferPointer& transfer : transfers_) {
    if (transfer->connection != connection || transfer->order.request != request) continue;
    --transfer->on_the_way;
    if (!std::exchange(transfer->waits, false)) return;
    const TransferPointer waiting = transfer;
    return step(waiting);
  }
}

void DataServer::end(const TransferPointer& transfer) {
  std::erase(transfers_, transfer);
  const auto lease = leases_.find(transfer->order.lease);
  if (lease != leases_.end() && lease->second.closing && !is_read(lease->first)) say_closed(lease->first);
}

bool DataServer::could_read(const ArenaMemory& memory, const SegmentPlace& place) const {
  if (memory_.get() != &memory) return false;
  return std::any_of(transfers_.begin(), transfers_.end(), [&](const TransferPointer& transfer) {
    for (std::size_t i = transfer->next; i < transfer->places.size(); ++i) {
      if (overlap(place, readable(*transfer, i))) return true;
    }
    return false;
  });
}

/// What has not come yet is still to be written.
SegmentPlace DataServer::readable(const Transfer& transfer, std::size_t index) {
  SegmentPlace place = transfer.places[index];
  if (transfer.coming != nullptr) place.bytes = transfer.coming->came.at(transfer.order.tensors[index]);
  return place;
}

}  // namespace freshet::sim
