#include <algorithm>
#include <utility>

#include "core/format.h"
#include "transport/zmq/publisher_hub.h"

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
    auto parts = receive(control_.socket, 2);
    if (!parts) return on_drained(control_);
    if (parts->size() != 2) {
      rejects_.count("a message is not in two parts", system_clock().now());
      continue;
    }
    if (!is_admitted(control_, (*parts)[1])) {
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
    const protocol::Peer peer = (*parts)[0].to_string();
    const auto* const ask = std::get_if<protocol::Activate>(&*message);
    if (ask != nullptr && !may_activate(peer, *ask, sender_key((*parts)[1]))) continue;
    route(peer, std::move(*message));
  }
}

bool PublisherHub::is_admitted(ZmqSocket& socket, const zmq::message_t& message) {
  const auto listener = listeners_.find(&socket);
  if (authenticator_ == nullptr) {
    if (listener == listeners_.end()) return true;
    listener->second->tend(system_clock().now());
    return listener->second->admits(sender_descriptor(message));
  }
  const bool admitted = authenticator_->allows(sender_key(message));
  if (listener != listeners_.end()) {
    const int descriptor = sender_descriptor(message);
    listener->second->tend(system_clock().now());
    listener->second->note_key(descriptor, sender_key(message));
    if (!admitted) listener->second->put_out(descriptor);
  }
  return admitted;
}

void PublisherHub::on_drained(const ZmqSocket& socket) {
  const auto listener = listeners_.find(&socket);
  if (listener != listeners_.end()) listener->second->on_drained();
}

void PublisherHub::tend_listeners() {
  const std::uint64_t changes = authenticator_ == nullptr ? 0 : authenticator_->changes();
  const bool changed = std::exchange(list_changes_, changes) != changes;
  for (const auto& [socket, listener] : listeners_) {
    listener->tend(system_clock().now());
    if (changed) listener->put_out_unless([this](const std::string& key) { return authenticator_->allows(key); });
  }
}

void PublisherHub::take_subscriptions() {
  for (int i = 0; i < kHubMessagesPerRound; ++i) {
    const auto parts = receive(announcements_.socket, 1);
    if (!parts) return on_drained(announcements_);
    // Without keys nobody knows which connection a subscription came by. It makes this side repeat itself, no more, and
    // whoever was not let in has been put out before that.
    if (parts->empty() || (authenticator_ != nullptr && !is_admitted(announcements_, parts->front()))) continue;
    const std::string_view text = parts->front().to_string_view();
    if (!text.starts_with('\x01')) continue;
    const auto model = models_.find(std::string(text.substr(1)));
    if (model == models_.end() || !model->second.announced) continue;
    protocol::Announcement again = *model->second.announced;
    again.announced_ns = system_clock().now().time_since_epoch().count();
    announce(again);
  }
}

void PublisherHub::announce(const protocol::Announcement& announcement) {
  const std::vector<std::byte> encoded = protocol::encode(protocol::Message(announcement));
  // Whoever came since then and may not hear this is put out first.
  if (const auto listener = listeners_.find(&announcements_); listener != listeners_.end()) {
    listener->second->tend(system_clock().now());
  }
  send(announcements_.socket, announcement.model, encoded);
  if (!directory_->carries_announcements()) return;
  directory_->announce(announcement.model, {reinterpret_cast<const char*>(encoded.data()), encoded.size()});
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

void PublisherHub::route(const protocol::Peer& peer, protocol::Message message) {
  if (const auto* request = std::get_if<protocol::StatRequest>(&message)) return answer_stat(peer, *request);
  if (const auto* request = std::get_if<protocol::Activate>(&message)) return activate(peer, *request);
  protocol::SessionId session = 0;
  Model* model = model_of(message, &session);
  // Doors are known by their sessions: one that two models had would end for one of them unheard.
  if (model != nullptr && std::any_of(models_.begin(), models_.end(), [&](const auto& other) {
        return &other.second != model && other.second.machine->knows(session);
      })) {
    return rejects_.count("a session is another model's", system_clock().now());
  }
  if (model != nullptr) {
    model->machine->on_message(peer, std::move(message), system_clock().now());
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
  std::vector<PublisherStat> stats;
  for (const auto& [name, model] : models_) {
    if (request.model.empty() || request.model == name) stats.push_back(stat_of(model));
  }
  send_to(peer, protocol::StatReply{.json = to_json(stats)});
}

void PublisherHub::send_to(const protocol::Peer& peer, const protocol::Message& message) {
  if (peer.size() > kPeerBytesMax) return answer_waiter(peer, message);
  // Dropped when the peer's pipe is full or the peer is gone: it will ask again, or not.
  send(control_.socket, peer, protocol::encode(message));
}

}  // namespace freshet
