// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/version_fetcher.h"

#include <utility>

#include "core/base/format.h"

namespace freshet::detail {
namespace {

/// Deltas that are kept to be applied again, beside the model: an eighth of it, and a little for small ones.
constexpr std::uint64_t kKeptShare = 8;
constexpr std::uint64_t kKeptExtraBytes = std::uint64_t{16} << 20;

}  // namespace

VersionFetcher::VersionFetcher(Options options)
    : options_(std::move(options)), arena_(std::make_shared<FetchArena>(options_.arena)) {}

VersionFetcher::~VersionFetcher() { drop_client(Error(Code::cancelled, "the subscriber was closed")); }

Status VersionFetcher::open(protocol::SessionId session, const protocol::ChannelOffer& offer) {
  drop_client(Error(Code::unavailable, "another channel was opened"));
  const auto opener = options_.openers.find(offer.kind);
  if (opener == options_.openers.end()) {
    return fail(Code::unsupported, format("this build has no channel {}", to_string(offer.kind)));
  }
  auto client = opener->second(offer.address);
  if (!client) {
    return fail(std::move(client).error().with_context(format("open {} at {}", to_string(offer.kind), offer.address)));
  }
  channel_ = {.client = std::move(*client)};
  session_ = session;
  slabs_registered_ = 0;
  register_slabs();
  bytes_seen_ = 0;
  more_ = true;
  return {};
}

void VersionFetcher::close(protocol::SessionId session) {
  if (session != 0 && session == session_) drop_client(Error(Code::unavailable, "the data channel was closed"));
}

void VersionFetcher::drop_client(const Error& why) {
  // First: from here on nothing is written into the arena.
  channel_.client.reset();
  session_ = 0;
  if (install_ != nullptr) install_->on_client_dead(why);
  more_ = install_ != nullptr;
}

Status VersionFetcher::begin(FetchInstall::Job job, const FetchedMemory* served, Time now) {
  if (session_ == 0 || session_ != job.session) return fail(Code::unavailable, "the data channel is not open");
  if (install_ != nullptr) return fail(Code::failed_precondition, "another version is being fetched");
  const Architecture& architecture = *job.manifest->architecture;
  if (kept_ == nullptr || prepared_for_ != architecture.digest()) {
    FRESHET_TRY(arena_->prepare(architecture));
    kept_ = std::make_unique<KeptDeltas>(arena_->bytes_of(architecture) / kKeptShare + kKeptExtraBytes);
    prepared_for_ = architecture.digest();
  }
  register_slabs();
  auto install = std::make_unique<FetchInstall>(
      options_.install, std::move(job), served == nullptr ? nullptr : &served->version(), channel_, *arena_, *kept_);
  const Status started = install->start(now);
  register_slabs();  // It may have made room; nothing has come yet.
  // What it asked for before it failed is over before it is destroyed: nothing is written for nobody.
  if (!started) {
    if (!install->is_quiet()) {
      channel_.client.reset();
      install->on_client_dead(started.error());
      session_ = 0;
    }
    return started;
  }
  install_ = std::move(install);
  began_at_ = now;
  more_ = true;
  return {};
}

/// Once for each slab and client: an adapter that writes into memory has to know it.
void VersionFetcher::register_slabs() {
  if (channel_.client == nullptr) return;
  const std::vector<Bytes> slabs = arena_->slab_memory();
  for (; slabs_registered_ < slabs.size(); ++slabs_registered_) {
    // One that cannot be registered is written to all the same, only not as fast.
    static_cast<void>(channel_.client->register_memory(slabs[slabs_registered_]));
  }
}

void VersionFetcher::give_up(const Error& why) {
  if (install_ == nullptr) return;
  install_->give_up(why);
  more_ = true;
}

Time VersionFetcher::next_round() const {
  if (more_) return Time::min();
  return install_ != nullptr ? install_->deadline() : Time::max();
}

VersionFetcher::Round VersionFetcher::round(Time now, std::chrono::microseconds at_most) {
  Round round;
  more_ = false;
  if (channel_.client != nullptr) {
    const Result<bool> more = channel_.client->progress(at_most);
    const std::uint64_t bytes = channel_.client->bytes_received();
    round.bytes_came = bytes != std::exchange(bytes_seen_, bytes);
    if (!more) {
      round.died = more.error();
      round.session = session_;
      drop_client(more.error());
    }
    more_ = more && *more;
  }
  if (install_ == nullptr) return round;
  const std::uint64_t asked = channel_.last_request;
  const bool was_over = install_->is_over();
  install_->carry_on(now);
  // What was asked for, or cancelled, is the client's to send.
  more_ = more_ || channel_.last_request != asked || install_->is_over() != was_over;
  if (install_->is_over() && !install_->is_quiet() && now >= install_->deadline()) {
    // It does not even end what was given up.
    round.died = Error(Code::timed_out, "the channel does not answer");
    round.session = session_;
    drop_client(*round.died);
  }
  if (!install_->is_over() || !install_->is_quiet()) return round;
  auto version = install_->take();
  if (version) {
    round.fetched = std::make_shared<const FetchedMemory>(arena_, std::move(*version));
  } else {
    round.fetched = tl::unexpected<Error>(std::move(version).error());
  }
  round.tally = install_->tally();
  round.took = now - began_at_;
  install_.reset();
  return round;
}

}  // namespace freshet::detail
