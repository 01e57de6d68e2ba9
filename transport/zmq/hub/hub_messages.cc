// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "transport/zmq/hub/publisher_hub.h"

// What the hub does with messages: who may send them, which model they are for, and what is sent and announced.

namespace freshet {
namespace {

/// Taken in one go, so that a flood on one source does not starve the others.
constexpr int kHubMessagesPerRound = 256;

template <typename T>
concept NamesSession = requires(const T& message) {
  message.session;
};

}  // namespace

void PublisherHub::take_control_messages() {
  for (int i = 0; i < kHubMessagesPerRound; ++i) {
    auto parts = receive(control_.socket, 2, listener_.get());
    if (!parts) {
      if (listener_) listener_->on_drained();
      return;
    }
    if (parts->size() != 2) {
      rejects_.count("a message is not in two parts", system_clock().now());
      continue;
    }
    const protocol::Peer peer = (*parts)[0].to_string();
    const int connection = listener_ != nullptr ? sender_descriptor((*parts)[1]) : -1;
    const PeerBudgets::Verdict verdict = budgets_.on_message(peer, connection, system_clock().now());
    if (verdict == PeerBudgets::Verdict::put_out) put_out(peer, "sends messages without end");
    if (verdict != PeerBudgets::Verdict::take) continue;
    if (!is_admitted((*parts)[1], authenticator_.get(), listener_.get())) {
      if (authenticator_ == nullptr) continue;  // Another user of this host; the listener has told.
      rejects_.count(format("a client's key is not on the allow-list any more: {}", sender_key((*parts)[1])),
                     system_clock().now());
      continue;
    }
    auto message = protocol::decode(bytes_of((*parts)[1]));
    if (!message) {
      rejects_.count(message.error().message(), system_clock().now());
      continue;
    }
    const auto* const ask = std::get_if<protocol::Activate>(&*message);
    if (ask != nullptr && !may_activate(peer, *ask, sender_key((*parts)[1]))) continue;
    route(peer, std::move(*message), sender_key((*parts)[1]));
  }
}

void PublisherHub::announce(const protocol::action::Announce& news) {
  const auto encoded =
      std::make_shared<const std::vector<std::byte>>(protocol::encode(protocol::Message(news.announcement)));
  for (const protocol::Peer& peer : news.peers) send_encoded(peer, encoded);
  if (!directory_->carries_announcements()) return;
  directory_->announce(news.announcement.model, {reinterpret_cast<const char*>(encoded->data()), encoded->size()});
}

PublisherHub::Model* PublisherHub::model_of(const protocol::Message& message, protocol::SessionId* session) {
  if (const auto* hello = std::get_if<protocol::Hello>(&message)) {
    *session = hello->session;
    const auto at = models_.find(hello->model);
    return at == models_.end() ? nullptr : &at->second;
  }
  *session = std::visit(
      [](const auto& any) -> protocol::SessionId {
        if constexpr (NamesSession<decltype(any)>) return any.session;
        return 0;
      },
      message);
  for (auto& [name, model] : models_) {
    if (model.machine->knows(*session)) return &model;
  }
  return nullptr;
}

void PublisherHub::route(const protocol::Peer& peer, protocol::Message message, std::string_view key) {
  if (const auto* request = std::get_if<protocol::StatRequest>(&message)) return answer_stat(peer, *request);
  if (const auto* request = std::get_if<protocol::Activate>(&message)) return activate(peer, *request);
  protocol::SessionId session = 0;
  Model* model = model_of(message, &session);
  // Doors are known by their sessions: one that two models had would end for one of them unheard.
  if (model != nullptr && std::any_of(models_.begin(), models_.end(), [&](const auto& other) {
        return &other.second != model && other.second.machine->knows(session);
      })) {
    return rejects_.count("a session belongs to another model", system_clock().now());
  }
  if (model != nullptr) {
    model->machine->on_message(peer, std::move(message), system_clock().now(), key);
    carry_out(*model);
  } else if (const auto* hello = std::get_if<protocol::Hello>(&message)) {
    send_to(peer, protocol::Refusal{.session = session,
                                    .request = 0,
                                    .code = Code::not_found,
                                    .message = format("{} is not published at {}", hello->model, address())});
  } else if (session != 0) {
    send_to(peer, protocol::UnknownSession{.session = session});
  } else {
    rejects_.count("a message is not for a publisher", system_clock().now());
  }
}

void PublisherHub::answer_stat(const protocol::Peer& peer, const protocol::StatRequest& request) {
  if (!budgets_.may_answer(peer)) {
    return rejects_.count("a client asks for more bytes than it may", system_clock().now());
  }
  std::vector<PublisherStat> stats;
  for (const auto& [name, model] : models_) {
    if (!request.model.empty() && request.model != name) continue;
    const ModelStanding standing = standing_of(model);
    standing.put_into(stats.emplace_back(model.owner->stat(standing.sessions)));
  }
  send_to(peer, protocol::StatReply{.json = to_json(stats)});
}

void PublisherHub::send_to(const protocol::Peer& peer, const protocol::Message& message) {
  if (peer.size() > kPeerBytesMax) return answer_waiter(peer, message);
  if (std::holds_alternative<protocol::Grant>(message) && !budgets_.may_answer(peer)) {
    return rejects_.count("a client asks for more bytes than it may", system_clock().now());
  }
  const auto encoded = std::make_shared<const std::vector<std::byte>>(protocol::encode(message));
  budgets_.on_answer(peer, encoded->size());
  send_encoded(peer, encoded);
}

void PublisherHub::send_encoded(const protocol::Peer& peer,
                                const std::shared_ptr<const std::vector<std::byte>>& encoded) {
  // Dropped when the peer does not read, or is gone: it will ask again, or not.
  switch (sends_.send(control_.socket, peer, encoded, *encoded)) {
    case SendBudget::Sent::no_room: return put_out(peer, "does not read its answers");
    case SendBudget::Sent::crowded: return put_out(sends_.largest(), "does not read its answers");
    default: return;
  }
}

void PublisherHub::put_out(const protocol::Peer& peer, std::string_view why) {
  const Time at = system_clock().now();
  const int connection = budgets_.connection_of(peer);
  if (listener_ == nullptr || connection < 0) return rejects_.count(format("a client {}", why), at);
  listener_->tend(at);
  rejects_.count(format("{} is disconnected: it {}", listener_->name_of(connection), why), at);
  listener_->put_out(connection);
}

}  // namespace freshet
