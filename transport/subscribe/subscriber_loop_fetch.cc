// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/base/format.h"
#include "transport/subscribe/elapsed.h"
#include "transport/subscribe/subscriber_loop.h"
#include "transport/zmq/named_address.h"

// Versions that are fetched: what the loop does beside the fetcher.

namespace freshet {
namespace {

/// Of a round: heartbeats and news wait for no longer.
constexpr std::chrono::microseconds kRound{4000};

}  // namespace

void SubscriberLoop::open_channel(const protocol::action::OpenChannel& action) {
  protocol::ChannelOffer offer = action.offer;
  if (line_.address() != nullptr) offer.address = resolve_offered(offer.address, *line_.address());
  const Status opened = fetcher_.open(action.session, offer);
  if (opened) return machine_.on_channel_open(action.session, now());
  shelf_.set_error(opened.error().message());
  machine_.on_channel_closed(action.session, opened.error(), now());
}

void SubscriberLoop::begin_fetch(protocol::action::Install install) {
  if (fetcher_.is_fetching()) {
    fetch_next_ = std::move(install);
    return;
  }
  auto manifest = detail::manifest_of(model_, install.grant, architectures_);
  if (!manifest) return refuse(install, manifest.error());
  fetching_ = std::move(install);
  const protocol::Grant& grant = fetching_->grant;
  machine_.on_architecture_known((*manifest)->architecture->digest());
  const detail::ServedVersion* served = shelf_.current();
  const auto coming = relay_ != nullptr ? relay_->expect(*manifest, fetcher_.arena()) : nullptr;
  const Status begun =
      fetcher_.begin({.manifest = *manifest, .session = grant.session, .lease = grant.lease, .coming = coming},
                     served == nullptr ? nullptr : served->fetched.get(), now());
  if (begun && coming != nullptr) relay_->offer(coming, grant.publish_started_ns);
  if (begun) return;
  if (relay_ != nullptr && begun.error().code() == Code::out_of_space) {
    relay_->make_room((*manifest)->architecture->bytes());
  }
  refuse(*std::exchange(fetching_, std::nullopt), begun.error());
}

void SubscriberLoop::abandon(const protocol::action::Abandon& abandoned) {
  const auto is_it = [&](const std::optional<protocol::action::Install>& install) {
    return install && install->grant.session == abandoned.session && install->grant.number == abandoned.number;
  };
  if (is_it(waiting_)) waiting_.reset();
  if (is_it(fetch_next_)) fetch_next_.reset();
  if (!is_it(fetching_)) return;
  fetching_.reset();
  const Error why(Code::cancelled, "something else was decided");
  if (relay_ != nullptr) relay_->withdraw(why);
  fetcher_.give_up(why);
}

void SubscriberLoop::carry_on_fetch() {
  const protocol::SessionId session = fetcher_.session();
  detail::VersionFetcher::Round round = fetcher_.round(now(), kRound);
  if (round.bytes_came) machine_.on_channel_progress(session, now());
  if (round.fetched && fetching_) {
    if (*round.fetched) {
      machine_.channel().selector().measured(fetching_->grant.channel, round.tally.bytes_moved, round.took, now());
    }
    finish_fetch(std::move(*round.fetched), round.tally);
  }
  if (round.died) {
    shelf_.set_error(round.died->message());
    machine_.on_channel_closed(round.session, *round.died, now());
  }
  if (fetch_next_ && !fetcher_.is_fetching()) begin_fetch(*std::exchange(fetch_next_, std::nullopt));
  carry_out();
}

void SubscriberLoop::finish_fetch(Result<std::shared_ptr<const detail::FetchedMemory>> fetched,
                                  const detail::FetchTally& tally) {
  const protocol::action::Install install = *std::exchange(fetching_, std::nullopt);
  if (!fetched) return refuse(install, fetched.error());
  auto version = detail::make_served_version(std::move(*fetched));
  Update& update = version->update = update_of(*version);
  update.channel = protocol::to_string(install.grant.channel);
  update.bytes_fetched = tally.bytes_moved;
  update.tensors_delta = tally.tensors_delta;
  update.tensors_dense = tally.tensors - tally.tensors_delta;
  // Between hosts only the clocks on the wall can be compared, as well as they agree.
  update.latency = same_host_
                       ? detail::elapsed_since(install.grant.publish_started_ns, std::max(now(), install.granted_at))
                       : Duration(std::max<std::int64_t>(0, clock_.unix_ns() - version->manifest->created_unix_ns));
  finish(install, std::move(version));
}

void SubscriberLoop::tell_served(const Update& update) {
  if (relay_ != nullptr && shelf_.current()->fetched == nullptr) {
    shelf_.set_error(
        format("{} is mapped from a publisher of this host, where its neighbours find it too: "
               "nothing is served again",
               model_));
  } else if (relay_ != nullptr) {
    const VersionNumber before = std::exchange(passed_on_, std::max(passed_on_, update.version));
    // Who takes the latest does not know how many of the numbers in between were versions.
    const std::uint64_t skipped = before == 0 || update.version <= before ? 0 : update.version - before - 1;
    relay_->commit(*shelf_.current(), options_.subscriber.every ? update.gap_before : skipped,
                   (now() - update.latency).time_since_epoch().count());
  }
  if (options_.subscriber.on_update) options_.subscriber.on_update(update);
}

void SubscriberLoop::take_relay_news() {
  if (const auto followers = relay_->take_followers()) {
    std::vector<std::uint64_t> epochs;
    std::uint64_t behind = 0;
    for (const auto& session : followers->sessions) {
      if (session.every || session.silent || session.serving == 0) continue;
      epochs.push_back(session.epoch);
      behind += session.behind;
    }
    machine_.followers().set(std::move(epochs), behind);
    machine_.on_followers(now());
  }
  const VersionNumber seen = relay_->take_news();
  if (seen > std::exchange(seen_downstream_, std::max(seen, seen_downstream_))) machine_.on_higher_seen(seen, now());
}

void SubscriberLoop::scrub() {
  const detail::ServedVersion* served = shelf_.current();
  // Whoever waits for a version wants it first.
  if (served == nullptr || served->fetched == nullptr || fetcher_.is_fetching()) return;
  const auto tensor = scrub_.step(*served->fetched, now());
  if (!tensor) return;
  const std::string error = format("the bytes of {} {} differ from the proved ones", to_string(served->manifest->name),
                                   served->manifest->architecture->tensors()[*tensor].name);
  shelf_.set_error(error);
  rejects_.count(error, now());
  // Of `every` each version was delivered, and is its taker's.
  if (options_.subscriber.every) return;
  // A wrong delta proves itself by its own sum, and where one is wrong others are: nothing of this version is believed,
  // so that all of it comes anew, from nobody's base.
  const VersionNumber number = served->number();
  for (const SegmentIndex segment : served->fetched->version().segments) served->fetched->arena()->distrust(segment);
  fetcher_.prove_deltas_in_full();
  shelf_.withdraw(now());
  machine_.on_refuted(number, now());
  carry_out();
}

}  // namespace freshet
