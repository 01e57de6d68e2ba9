// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How the handshakes of a connecting socket went. ZeroMQ itself keeps silent about a refused key, and gives up for
/// good after some refusals: whoever reads here learns why, and opens the socket again after a pause.

#include <optional>
#include <string>

#include "core/base/result.h"
#include "transport/security/credentials.h"
#include "transport/zmq/monitor.h"

namespace freshet {

inline constexpr int kHandshakeEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

/// What to name in a message.
struct HandshakeParties {
  std::string address;
  std::string own_key;     ///< Empty: it has no keys.
  std::string server_key;  ///< The one that is expected.
};

/// `credentials` may be null.
HandshakeParties parties_of(std::string address, const ClientCredentials* credentials);

/// What an event tells of a failed handshake, or of one with another user of this host; nothing for other events.
/// failed_precondition when the two will not agree as things are, unavailable when it may have been a broken
/// connection.
std::optional<Error> handshake_error(const SocketMonitor::Event& event, const HandshakeParties& parties);

struct HandshakeOutcome {
  bool succeeded = false;
  std::optional<Error> error;  ///< Of a failure.
};

/// The last outcome since the last call, if there is one.
std::optional<HandshakeOutcome> take_outcome(SocketMonitor& monitor, const HandshakeParties& parties);

}  // namespace freshet
