#include "transport/ask_stat.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/format.h"
#include "transport/deadline.h"
#include "transport/directory/directory.h"
#include "transport/protocol/messages.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

constexpr Duration kAskAgain = std::chrono::milliseconds(500);

Result<std::string> find_address(const StatQuery& query) {
  if (!query.at.empty()) return query.at;
  FRESHET_ASSIGN(const std::unique_ptr<Directory> directory, open_directory(query.directory));
  FRESHET_ASSIGN(Directory::Entry entry, directory->lookup(query.model));
  return std::move(entry.control);
}

/// The answer to a StatRequest, nothing when none came by `until`. Errors are those that waiting cannot mend.
Result<std::optional<std::string>> wait_for_reply(ZmqSocket& dealer, const HandshakeParties& parties, Time until,
                                                  std::string& why_not) {
  std::vector<zmq::pollitem_t> items = {{dealer.socket.handle(), 0, ZMQ_POLLIN, 0},
                                        {dealer.monitor->handle(), 0, ZMQ_POLLIN, 0}};
  for (Time now = system_clock().now(); now < until; now = system_clock().now()) {
    if (!poll(items, std::chrono::ceil<std::chrono::milliseconds>(until - now))) break;
    if (auto outcome = take_outcome(*dealer.monitor, parties); outcome && outcome->error) {
      if (outcome->error->code() == Code::failed_precondition) return fail(std::move(*outcome->error));
      why_not = outcome->error->message();
    }
    while (const auto parts = receive(dealer.socket, 1)) {
      auto message = parts->size() == 1 ? protocol::decode(bytes_of(parts->front())) : fail(Code::corrupt, "");
      if (!message) continue;
      if (auto* reply = std::get_if<protocol::StatReply>(&*message)) return std::optional(std::move(reply->json));
    }
  }
  return std::optional<std::string>();
}

}  // namespace

Result<std::string> ask_stat(const StatQuery& query, Duration at_most) {
  const Time deadline = deadline_in(at_most);
  if (!query.model.empty()) FRESHET_TRY(check_model_name(query.model));
  FRESHET_ASSIGN(const std::optional<ClientCredentials> credentials, client_credentials(query.security));
  FRESHET_ASSIGN(const std::string text, find_address(query));
  FRESHET_ASSIGN(SocketAddress address,
                 SocketAddress::parse(text, false, credentials ? Reach::any_host : Reach::this_host));
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  const ClientCredentials* const proof = credentials ? &*credentials : nullptr;
  FRESHET_ASSIGN(ZmqSocket dealer, connect_dealer(context, std::move(address), proof));
  const HandshakeParties parties = parties_of(text, proof);
  const auto request = protocol::encode(protocol::Message(protocol::StatRequest{.model = query.model}));
  std::string why_not;
  do {
    // Asked again now and then: the first one may have gone to a publisher that died.
    send(dealer.socket, "", request);
    const Time until = std::min(deadline, system_clock().now() + kAskAgain);
    FRESHET_ASSIGN(std::optional<std::string> reply, wait_for_reply(dealer, parties, until, why_not));
    if (reply) return std::move(*reply);
  } while (system_clock().now() < deadline);
  return fail(Code::timed_out,
              format("the publisher at {} does not answer{}{}", text, why_not.empty() ? "" : ": ", why_not));
}

}  // namespace freshet
