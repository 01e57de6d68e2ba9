// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/authenticator.h"

#include <array>
#include <system_error>

#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

constexpr const char* kEndpoint = "inproc://zeromq.zap.01";
constexpr std::size_t kRequestParts = 7;
/// How often the list is looked at where its changes cannot be heard. Handshakes look by themselves.
constexpr std::chrono::milliseconds kDeafRound{1000};
constexpr std::chrono::milliseconds kWatchedRound{60'000};

/// The folder, not the file: a list is often replaced by renaming another one over it.
std::optional<FolderNews> news_beside(const std::string& path) {
  auto news = FolderNews::open(folder_of(path), IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_ATTRIB);
  if (!news) return std::nullopt;
  return std::move(*news);
}

}  // namespace

struct Authenticator::Request {
  std::string_view version, id, domain, address, identity, mechanism;
  Bytes credentials;
};

Result<std::unique_ptr<Authenticator>> Authenticator::open(zmq::context_t& context, const std::string& allow_file) {
  FRESHET_ASSIGN(AllowList list, AllowList::open(allow_file));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  try {
    zmq::socket_t socket(context, zmq::socket_type::rep);
    socket.set(zmq::sockopt::linger, 0);
    socket.bind(kEndpoint);
    return std::unique_ptr<Authenticator>(
        new Authenticator(std::move(list), std::move(socket), std::move(wake), news_beside(allow_file)));
  } catch (const zmq::error_t& error) {
    const Code code = error.num() == EADDRINUSE ? Code::already_exists : Code::unavailable;
    return fail(code, format("start the check of keys: {}", error.what()));
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start the check of keys: {}", error.what()));
  }
}

Authenticator::Authenticator(AllowList list, zmq::socket_t socket, Wake wake, std::optional<FolderNews> news)
    : list_path_(list.path()),
      list_(std::move(list)),
      socket_(std::move(socket)),
      wake_(std::move(wake)),
      news_(std::move(news)),
      keys_(list_.keys()) {
  thread_ = std::thread([this] { run(); });
}

Authenticator::~Authenticator() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
}

std::shared_ptr<const AllowedKeys> Authenticator::keys() const {
  MutexLock lock(mutex_);
  return keys_;
}

bool Authenticator::allows(std::string_view key_text) const { return keys()->contains(key_text); }

Status Authenticator::may(Right needed, std::string_view key_text) const {
  const auto keys = this->keys();
  const auto at = keys->find(key_text);
  if (at != keys->end() && at->second.right >= needed) return {};
  const std::string label = at == keys->end() || at->second.label.empty() ? "" : format(" ({})", at->second.label);
  return fail(Code::failed_precondition,
              format("{}{} has no {} rights in {}: its line does not begin with that word", key_text, label,
                     needed == Right::read ? std::string_view("reader") : word_of(needed), list_path_));
}

void Authenticator::run() {
  std::vector<zmq::pollitem_t> items = {
      {.socket = nullptr, .fd = wake_.descriptor(), .events = ZMQ_POLLIN, .revents = 0},
      {.socket = socket_.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0},
  };
  if (news_) items.push_back({.socket = nullptr, .fd = news_->descriptor(), .events = ZMQ_POLLIN, .revents = 0});
  while (!stopping_) {
    poll(items, news_ ? kWatchedRound : kDeafRound);
    wake_.acknowledge();
    // What changed in the folder does not matter: the file is looked at either way.
    if (news_) (void)news_->take();
    refresh();
    while (const auto parts = receive(socket_, kRequestParts)) {
      // Once more: who was added a moment ago may have been quicker than the news of it.
      refresh();
      answer(*parts);
    }
  }
}

void Authenticator::refresh() {
  const Status status = list_.refresh();
  if (!status) list_errors_.count(status.error().message(), system_clock().now());
  MutexLock lock(mutex_);
  if (keys_ == list_.keys()) return;
  keys_ = list_.keys();
  ++changes_;
}

Result<PublicKey> Authenticator::decide(const Request& request) {
  if (request.mechanism != "CURVE") {
    return fail(Code::invalid_argument, format("it speaks {}, not CURVE", shown(request.mechanism)));
  }
  FRESHET_ASSIGN(PublicKey key, PublicKey::of(request.credentials));
  if (!keys()->contains(key.text())) {
    return fail(Code::not_found, format("its key {} is not in {}", key.text(), list_.path()));
  }
  return key;
}

void Authenticator::answer(const std::vector<zmq::message_t>& parts) {
  Request request;
  const bool whole = parts.size() == kRequestParts;
  if (whole) {
    request = {.version = parts[0].to_string_view(),
               .id = parts[1].to_string_view(),
               .domain = parts[2].to_string_view(),
               .address = parts[3].to_string_view(),
               .identity = parts[4].to_string_view(),
               .mechanism = parts[5].to_string_view(),
               .credentials = bytes_of(parts[6])};
  }
  Result<PublicKey> decision = whole && request.version == "1.0"
                                   ? decide(request)
                                   : Result<PublicKey>(fail(Code::corrupt, "ZeroMQ asks in a way that is not known"));
  if (!decision) {
    ++refusals_;
    rejects_.count(format("a client at {} is refused: {}", shown(request.address), decision.error().message()),
                   system_clock().now());
  }
  const std::string user = decision ? decision->text() : "";
  const std::array<std::string_view, 6> reply = {
      "1.0", request.id, decision ? "200" : "400", decision ? "OK" : "not admitted", user, ""};
  try {
    for (std::size_t i = 0; i < reply.size(); ++i) {
      const auto more = i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      socket_.send(zmq::buffer(reply[i]), more | zmq::send_flags::dontwait);
    }
  } catch (const zmq::error_t&) {
    // Who asked is gone.
  }
}

int sender_descriptor(const zmq::message_t& message) { return ::zmq_msg_get(message.handle(), ZMQ_SRCFD); }

std::string_view sender_key(const zmq::message_t& message) {
  const char* const key = ::zmq_msg_gets(message.handle(), "User-Id");
  return key == nullptr ? std::string_view() : std::string_view(key);
}

}  // namespace freshet
