// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/control_line.h"

#include <utility>

#include "core/base/format.h"

namespace freshet::detail {
namespace {

/// Between two tries at a publisher that refused this subscriber's key, or that has another one than expected.
constexpr Duration kAskToBeAdmittedAgain = std::chrono::seconds(1);
/// How long an address may be silent until the next one is tried.
constexpr Duration kAddressPatience = std::chrono::seconds(1);
/// How long nothing may come by a connection until another one is made, to the same address.
constexpr Duration kConnectionPatience = std::chrono::seconds(3);

}  // namespace

void ControlLine::begin(Time now) {
  address_heard_at_ = now;
  if (!finds()) connect(options_.at.front(), now);
}

void ControlLine::hurry() {
  if (finder_) finder_->hurry();
}

void ControlLine::add_to(std::vector<zmq::pollitem_t>& items) {
  if (finder_ && finder_->descriptor() >= 0) items.push_back({nullptr, finder_->descriptor(), ZMQ_POLLIN, 0});
  if (!control_) return;
  items.push_back({control_->socket.handle(), 0, ZMQ_POLLIN, 0});
  items.push_back({control_->monitor->handle(), 0, ZMQ_POLLIN, 0});
}

void ControlLine::take_news(Outcome outcome, Time now) {
  if (!finder_) return;
  // Somebody else has the name now, also while the one before still answers.
  if (finder_->take_news()) {
    find(outcome, now);
    reached_ = control_.has_value();
  }
  // Said when nobody was there; somebody may be now.
  if (unsent_hello_ && finder_->due(now)) say(*std::exchange(unsent_hello_, std::nullopt), outcome, now);
}

std::optional<Result<protocol::Message>> ControlLine::receive(Time now) {
  if (!control_) return std::nullopt;
  auto parts = freshet::receive(*control_, 1);
  if (!parts) return std::nullopt;
  if (parts->size() != 1) {
    const Error why(Code::corrupt, "an answer is not in one part, or not of a publisher that is believed");
    rejects_.count(why.message(), now);
    return fail(why);
  }
  auto message = protocol::decode(bytes_of((*parts)[0]));
  if (!message) {
    shelf_.set_error("answer of the publisher: " + message.error().message());
    rejects_.count(message.error().message(), now);
    return message;
  }
  heard_at_ = now;
  // Whoever wants nothing of us is as good as away, and news are no answer.
  const auto* const refusal = std::get_if<protocol::Refusal>(&*message);
  const bool is_news = std::holds_alternative<protocol::Announcement>(*message);
  if (!is_news && (refusal == nullptr || refusal->request != 0)) address_heard_at_ = now;
  return message;
}

void ControlLine::say(protocol::Message message, Outcome outcome, Time now) {
  const bool hello = std::holds_alternative<protocol::Hello>(message);
  if (hello) finder_ ? find(outcome, now) : turn_to_next(now);
  // The connection may have died unheard: nothing below tells of that for a while.
  if (hello && control_ && now >= heard_at_ + kConnectionPatience) {
    connect(std::string(control_->address.text()), now);
  }
  if (!control_) {
    if (hello) unsent_hello_ = std::move(message);
    return;
  }
  // Dropped when the pipe is full: the machine repeats what matters.
  send(control_->socket, {}, protocol::encode(message));
}

void ControlLine::find(Outcome outcome, Time now) {
  if (!finder_->due(now)) return;
  if (outcome.connected) finder_->on_connected();
  const auto address = finder_->look(now);
  if (!address) {
    const Code code = address.error().code();
    const bool tell = code == Code::unavailable ? finder_->worth_telling(now) : code != Code::not_found;
    if (tell) shelf_.set_error(address.error().message());
    // A directory that is away is no reason to leave anybody.
    if (code != Code::unavailable) control_.reset();
    return;
  }
  if (finder_->looks_in_vain() > 1 && !outcome.refused) {
    shelf_.set_error(
        format("{} lists {} at {}, but nobody answers there", options_.directory, options_.model, *address));
  }
  if (!control_ || control_->address.text() != *address) connect(*address, now);
}

void ControlLine::turn_to_next(Time now) {
  if (options_.at.size() < 2 || now < address_heard_at_ + kAddressPatience) return;
  address_ = (address_ + 1) % options_.at.size();
  address_heard_at_ = now;
  connect(options_.at[address_], now);
}

void ControlLine::connect(const std::string& address, Time now) {
  control_.reset();
  has_shaken_ = false;
  reconnect_at_ = Time::max();
  auto parsed = SocketAddress::parse(address, false, proof() != nullptr ? Reach::any_host : Reach::this_host);
  if (!parsed) return shelf_.set_error(parsed.error().message());
  auto socket = connect_dealer(context_, std::move(*parsed), proof(), options_.neighbours);
  if (!socket) return shelf_.set_error(socket.error().message());
  control_.emplace(std::move(*socket));
  heard_at_ = now;
}

void ControlLine::take_handshakes(Time now) {
  if (!control_) return;
  const auto outcome = take_outcome(*control_->monitor, parties_of(control_->address.text(), proof()));
  if (!outcome) return;
  if (outcome->succeeded) {
    reconnect_at_ = Time::max();
    // What is said before the first time waits for it.
    reached_ = reached_ || has_shaken_;
    has_shaken_ = true;
    shelf_.clear_error(std::exchange(handshake_error_, {}));
    return;
  }
  handshake_error_ = outcome->error->message();
  shelf_.set_error(handshake_error_);
  rejects_.count(handshake_error_, now);
  if (reconnect_at_ == Time::max()) reconnect_at_ = now + kAskToBeAdmittedAgain;
}

void ControlLine::tick(Time now) {
  if (control_ && now >= reconnect_at_) connect(std::string(control_->address.text()), now);
}

}  // namespace freshet::detail
