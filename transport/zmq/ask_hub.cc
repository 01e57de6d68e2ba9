// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/ask_hub.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/wake.h"
#include "transport/directory/directory.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {

constexpr Duration kAskAgain = std::chrono::milliseconds(500);

Result<std::string> find_address(const HubQuestion& question) {
  if (!question.at.empty()) return question.at;
  FRESHET_ASSIGN(const std::unique_ptr<Directory> directory, open_directory(question.directory));
  Result<Directory::Entry> entry = directory->lookup(question.model);
  if (entry) return std::move(entry->control);
  const bool is_absent = entry.error().code() == Code::not_found;
  const std::string others = is_absent ? models_beside(*directory, question.model) : std::string();
  return fail(entry.error().code(), format("{}{}{}", entry.error().message(), others.empty() ? "" : "; ", others));
}

/// The answer, nothing when none came by `until`. Errors are those that waiting cannot mend.
Result<std::optional<protocol::Message>> wait_for_answer(ZmqSocket& dealer, const HandshakeParties& parties,
                                                         const HubQuestion& question, Time until, const Wake& stopped,
                                                         std::string& why_not) {
  std::vector<zmq::pollitem_t> items = {{dealer.socket.handle(), 0, ZMQ_POLLIN, 0},
                                        {dealer.monitor->handle(), 0, ZMQ_POLLIN, 0},
                                        {nullptr, stopped.descriptor(), ZMQ_POLLIN, 0}};
  for (Time now = system_clock().now(); now < until; now = system_clock().now()) {
    if (!poll(items, std::chrono::ceil<std::chrono::milliseconds>(until - now))) break;
    if (items[2].revents != 0) return fail(Code::cancelled, "the question to the publisher was stopped by its caller");
    // One at a time: a publisher that always has another word keeps nobody past the deadline or a stop.
    if (const auto parts = receive(dealer, 1)) {
      auto message = parts->size() == 1 ? protocol::decode(bytes_of(parts->front())) : fail(Code::corrupt, "");
      if (message && question.is_answer(*message)) return std::optional(std::move(*message));
    }
    // Afterwards: it may have turned out whose message that was.
    if (auto outcome = take_outcome(*dealer.monitor, parties); outcome && outcome->error) {
      if (outcome->error->code() == Code::failed_precondition) return fail(std::move(*outcome->error));
      why_not = outcome->error->message();
    }
  }
  return std::optional<protocol::Message>();
}

}  // namespace

Result<protocol::Message> ask_hub(const HubQuestion& question, Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  if (!question.model.empty()) FRESHET_TRY(check_model_name(question.model));
  FRESHET_ASSIGN(const std::optional<ClientCredentials> credentials, client_credentials(question.security));
  FRESHET_ASSIGN(const std::string text, find_address(question));
  FRESHET_ASSIGN(SocketAddress address,
                 SocketAddress::parse(text, false, credentials ? Reach::any_host : Reach::this_host));
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  const ClientCredentials* const proof = credentials ? &*credentials : nullptr;
  FRESHET_ASSIGN(ZmqSocket dealer, connect_dealer(context, std::move(address), proof,
                                                  neighbours_admitted(question.security, proof != nullptr)));
  const HandshakeParties parties = parties_of(text, proof);
  const auto request = protocol::encode(question.request);
  FRESHET_ASSIGN(const Wake stopped, Wake::open());
  const std::stop_callback on_stop(stop, [&stopped] { stopped.wake(); });
  std::string why_not;
  do {
    send(dealer.socket, "", request);
    const Time until = std::min(deadline, system_clock().now() + kAskAgain);
    FRESHET_ASSIGN(std::optional<protocol::Message> answer,
                   wait_for_answer(dealer, parties, question, until, stopped, why_not));
    if (answer) return std::move(*answer);
  } while (system_clock().now() < deadline);
  return fail(Code::timed_out,
              format("the publisher at {} does not answer{}{}", text, why_not.empty() ? "" : ": ", why_not));
}

}  // namespace freshet
