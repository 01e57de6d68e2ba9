// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/data_channels.h"

namespace freshet {
namespace {

/// Deltas are kept for whoever asks for the same: a group's members within moments, a group that goes back.
constexpr std::uint64_t kDeltaCacheBytesMax = std::uint64_t{256} << 20;

}  // namespace

DataChannels::DataChannels(std::function<void(protocol::LeaseId)> on_closed)
    : desk_(std::move(on_closed), kDeltaCacheBytesMax) {}

Status DataChannels::open(const source::ChannelServersOptions& options) {
  FRESHET_ASSIGN(servers_, source::open_channel_servers(options, desk_));
  return {};
}

std::vector<protocol::ChannelOffer> DataChannels::offers() const {
  std::vector<protocol::ChannelOffer> offers;
  for (const auto& server : servers_) offers.push_back({.kind = server->kind(), .address = server->address()});
  return offers;
}

void DataChannels::register_memory(Bytes memory) {
  // One that cannot be registered is sent from all the same, only not as fast.
  for (const auto& server : servers_) static_cast<void>(server->register_memory(memory));
}

void DataChannels::forget_memory(const std::vector<Bytes>& memory) {
  for (const auto& server : servers_) {
    for (const Bytes slab : memory) server->forget_memory(slab);
  }
}

void DataChannels::look_again() {
  for (const auto& server : servers_) server->look_again();
}

std::vector<channel::ChannelStat> DataChannels::stats() const {
  std::vector<channel::ChannelStat> stats;
  for (const auto& server : servers_) stats.push_back(server->stat());
  return stats;
}

void DataChannels::close_lease(const protocol::action::CloseLease& lease) {
  // First: a read that began after the cut would never be cut off.
  desk_.close_lease(lease.lease);
  if (lease.by_force) cut_off(lease.session);
}

void DataChannels::close_all_of(const source::ServedSegments& segments) {
  for (const protocol::SessionId session : desk_.close_all_of(segments)) cut_off(session);
  desk_.wait_unread(segments);
}

void DataChannels::cut_off(protocol::SessionId session) {
  for (const auto& server : servers_) server->cut_off(session);
}

}  // namespace freshet
