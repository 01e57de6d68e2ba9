#include "transport/ask_stat.h"

#include <utility>
#include <vector>

#include "core/format.h"
#include "transport/deadline.h"
#include "transport/directory/directory.h"
#include "transport/protocol/messages.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

Result<std::string> find_address(const StatQuery& query) {
  if (!query.at.empty()) return query.at;
  FRESHET_ASSIGN(const std::unique_ptr<Directory> directory, open_directory(query.directory));
  FRESHET_ASSIGN(Directory::Entry entry, directory->lookup(query.model));
  return std::move(entry.control);
}

}  // namespace

Result<std::string> ask_stat(const StatQuery& query, Duration at_most) {
  const Time deadline = deadline_in(at_most);
  FRESHET_ASSIGN(const std::string text, find_address(query));
  FRESHET_ASSIGN(SocketAddress address, SocketAddress::parse(text, false));
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  FRESHET_ASSIGN(ZmqSocket dealer, connect_dealer(context, std::move(address)));
  send(dealer.socket, "", protocol::encode(protocol::Message(protocol::StatRequest{.model = query.model})));
  std::vector<zmq::pollitem_t> items = {
      {.socket = dealer.socket.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0}};
  for (Time now = system_clock().now(); now < deadline; now = system_clock().now()) {
    if (!poll(items, std::chrono::ceil<std::chrono::milliseconds>(deadline - now))) break;
    const auto parts = receive(dealer.socket, 1);
    if (!parts || parts->size() != 1) continue;
    auto message = protocol::decode(bytes_of(parts->front()));
    if (!message) return fail(std::move(message).error().with_context(format("ask {} how it is", text)));
    if (auto* reply = std::get_if<protocol::StatReply>(&*message)) return std::move(reply->json);
  }
  return fail(Code::timed_out, format("the publisher at {} does not answer", text));
}

}  // namespace freshet
