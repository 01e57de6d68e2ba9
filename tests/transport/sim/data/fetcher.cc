// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/data/fetcher.h"

#include "core/base/format.h"
#include "tests/transport/sim/hub.h"
#include "tests/transport/sim/subscriber.h"

namespace freshet::sim {

namespace {

/// Room for what is served, what is pinned, what is fetched, and what a relay's neighbours hold.
constexpr std::uint64_t kArenaCopies = 12;

}  // namespace

Fetcher::Fetcher(Host& host, SimSubscriber& owner, Events events)
    : host_(host), owner_(owner), events_(std::move(events)), arena_(host, kArenaCopies) {}

void Fetcher::open(const protocol::action::OpenChannel& open) {
  if (connection_ != nullptr) host_.world.violated("a channel is opened while another is");
  Source* server = host_.source_of(open.offer.address);
  connection_ = std::make_shared<Connection>();
  connection_->client = &owner_;
  connection_->client_life = owner_.process().life();
  connection_->session = open.session;
  connection_->offer = open.offer;
  connection_->server = server;
  connection_->server_life = server->server_process().life();
  tell(connection_, [connection = connection_] { connection->server->hub()->connect(connection); });
}

/// An event for the server's end, if that life of it is still there then.
void Fetcher::tell(const ConnectionPointer& connection, std::function<void()> event) {
  Process& process = connection->server->server_process();
  if (process.life() != connection->server_life) return;
  process.post(host_.network.delay(), std::move(event));
}

void Fetcher::close() {
  if (connection_ == nullptr) return;
  const ConnectionPointer connection = std::exchange(connection_, nullptr);
  tell(connection, [connection] { connection->server->hub()->data().closed_by_client(connection); });
  fail_fetch(Error(Code::unavailable, "the channel was closed"));
}

void Fetcher::died() {
  if (connection_ == nullptr) return;
  tell(connection_, [connection = connection_] { connection->server->hub()->data().closed_by_client(connection); });
}

void Fetcher::connection_made(const ConnectionPointer& connection) {
  if (connection == connection_) events_.open(connection->session);
}

void Fetcher::connection_lost(const ConnectionPointer& connection) {
  if (connection != connection_) return;
  connection_ = nullptr;
  const Error why(Code::unavailable, "the channel broke");
  // Either of the two may come first.
  if (host_.world.chance(0.5)) fail_fetch(why);
  events_.closed(connection->session, why);
  fail_fetch(why);
}

void Fetcher::fetch(const protocol::Grant& grant, std::shared_ptr<const Manifest> manifest) {
  const auto refuse = [&](const Error& why) { events_.done(fail(why)); };
  if (fetch_) host_.world.violated("two versions are fetched at a time");
  if (connection_ == nullptr || connection_->session != grant.session) {
    return refuse(Error(Code::unavailable, "the channel is closed"));
  }
  auto plan = arena_.plan(*manifest);
  if (!plan) return refuse(plan.error());
  fetch_ = Fetch{.grant = grant, .manifest = std::move(manifest), .plan = std::move(*plan), .request = ++last_request_};
  for (const std::uint32_t tensor : fetch_->plan.missing) {
    fetch_->bytes_left += host_.architecture->tensors()[tensor].bytes();
  }
  fetch_->coming = owner_.offer(fetch_->grant, fetch_->manifest, fetch_->plan, connection_);
  order(*fetch_);
}

void Fetcher::order(const Fetch& fetch) {
  FetchOrder order{.request = fetch.request,
                   .session = fetch.grant.session,
                   .lease = fetch.grant.lease,
                   .number = fetch.grant.number,
                   .tensors = fetch.plan.missing};
  if (host_.faults && host_.world.chance(0.02)) {
    order.is_a_lie = true;
    switch (host_.world.random(3)) {
      case 0: --order.number; break;
      case 1: ++order.session; break;
      default: ++order.lease;
    }
  }
  const ConnectionPointer connection = connection_;
  tell(connection, [connection, order] { connection->server->hub()->data().fetch(connection, order); });
}

void Fetcher::refused(const ConnectionPointer& connection, std::uint64_t request, const Error& why) {
  if (connection == connection_ && fetch_ && fetch_->request == request) fail_fetch(why);
}

void Fetcher::piece_came(const ConnectionPointer& connection, std::uint64_t request, std::uint32_t tensor,
                         std::uint64_t offset, Bytes piece) {
  if (connection != connection_ || !fetch_ || fetch_->request != request) return;
  arena_.write(fetch_->plan, tensor, offset, piece);
  fetch_->bytes_left -= piece.size();
  if (fetch_->coming != nullptr) {
    fetch_->coming->came.at(tensor) = offset + piece.size();
    owner_.more_came();
  }
  tell(connection, [connection, request] { connection->server->hub()->data().acknowledged(connection, request); });
  if (host_.world.chance(0.2)) events_.progress(connection->session);
  if (fetch_->bytes_left == 0) finish();
}

void Fetcher::finish() {
  if (const Status proved = prove(*fetch_); !proved) return fail_fetch(proved.error());
  const Fetch done = *std::exchange(fetch_, std::nullopt);
  const std::uint64_t kept = arena_.keep(done.manifest, done.plan);
  events_.done(Fetched{.kept = kept, .plan = done.plan, .manifest = done.manifest});
}

Status Fetcher::prove(const Fetch& fetch) {
  if (host_.sabotage == Sabotage::install_unproved) return {};
  for (const std::uint32_t tensor : fetch.plan.missing) {
    if (digest_of(arena_.bytes(fetch.plan.segments[tensor])) == fetch.manifest->digests[tensor]) continue;
    return fail(Code::corrupt, format("tensor {} is not what the manifest says", tensor));
  }
  return {};
}

void Fetcher::fail_fetch(const Error& why) {
  if (!fetch_) return;
  abandon();
  events_.done(fail(why));
}

void Fetcher::abandon() {
  if (!fetch_) return;
  owner_.withdraw();
  arena_.abandon(fetch_->plan);
  fetch_.reset();
}

}  // namespace freshet::sim
