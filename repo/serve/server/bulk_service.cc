// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/bulk_service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/env.h"
#include "transport/source/channel_servers.h"

namespace freshet::rpc {
namespace {

/// Who reads a disk waits while others send and digest.
constexpr unsigned kBulkReadersMax = 4;

/// A Unix socket's folder says who may connect, which UCX has no notion of; there, what is encrypted or guarded by
/// leases alone is offered.
ChannelChoice kinds_for(const BulkService::Options& options) {
  if (options.channels || options.address.starts_with("tcp://")) return options.channels;
  return std::vector{ChannelKind::zmq};
}

bool offers_nothing(const ChannelChoice& channels) { return channels && channels->empty(); }

}  // namespace

Result<std::unique_ptr<BulkService>> BulkService::open(const ProviderRepository& repository, Options options) {
  const bool named = options.channels && !options.channels->empty();
  auto service = std::make_unique<BulkService>(repository, std::move(options), random_u64(system_env()));
  if (named) FRESHET_TRY(service->start());
  return service;
}

BulkService::BulkService(const ProviderRepository& repository, Options options, std::uint64_t seed)
    : options_(std::move(options)), desk_(repository, options_.limits, seed) {
  desk_.on_ready([this] { look_again(); });
}

BulkService::~BulkService() {
  desk_.stop();
  channels_.clear();
}

Status BulkService::start() {
  const MutexLock lock(start_mutex_);
  if (started_) return *started_;
  if (offers_nothing(options_.channels)) {
    started_ = fail(Code::unsupported, "this server has no data channels");
    return *started_;
  }
  const auto open_all = [&]() -> Status {
    FRESHET_ASSIGN(channels_, source::open_channel_servers({.kinds = kinds_for(options_),
                                                            .control = options_.address,
                                                            .trusted_fabric = options_.trusted_fabric,
                                                            .neighbours = options_.neighbours,
                                                            .credentials = options_.credentials},
                                                           desk_));
    if (channels_.empty()) return fail(Code::unsupported, "this server has no data channels");
    FRESHET_TRY(desk_.start(std::clamp(std::thread::hardware_concurrency(), 2u, kBulkReadersMax)));
    // A channel that could not register it sends from it all the same.
    for (const auto& server : channels_) (void)server->register_memory(desk_.staging());
    return {};
  };
  started_ = open_all();
  is_started_ = started_->has_value();
  return *started_;
}

void BulkService::look_again() {
  if (!is_started_) return;
  for (const auto& server : channels_) server->look_again();
}

void BulkService::end_session(SessionId session) {
  desk_.end_session(session);
  if (!is_started_) return;
  for (const auto& server : channels_) server->cut_off(session);
}

Result<BulkService::Lent> BulkService::lend(SessionId session, ReadDesk::Subject subject) {
  FRESHET_TRY(start());
  Lent lent{.version = subject.version(),
            .lifetime = desk_.limits().lifetime,
            .piece_bytes = desk_.limits().block_bytes,
            .channels = {}};
  FRESHET_ASSIGN(lent.lease, desk_.lend(session, std::move(subject), system_clock().now()));
  for (const auto& server : channels_) lent.channels.push_back({.kind = server->kind(), .address = server->address()});
  return lent;
}

Status BulkService::renew(SessionId session, LeaseId lease) {
  return desk_.renew(session, lease, system_clock().now());
}

std::uint64_t BulkService::bytes_sent() const {
  if (!is_started_) return 0;
  std::uint64_t bytes = 0;
  for (const auto& server : channels_) bytes += server->stat().bytes_sent;
  return bytes;
}

void BulkService::on_tick(Time now) {
  const std::vector<SessionId> to_cut = desk_.on_tick(now);
  if (!is_started_) return;
  for (const SessionId session : to_cut) {
    for (const auto& server : channels_) server->cut_off(session);
  }
  look_again();  // A fetch whose lease ran out is to end with that.
}

}  // namespace freshet::rpc
