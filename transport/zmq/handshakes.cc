// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/handshakes.h"

#include <cerrno>

#include "core/base/format.h"

namespace freshet {
namespace {

Error refusal(const HandshakeParties& parties) {
  return Error(Code::failed_precondition,
               format("{} does not admit this client: its key {} is not on the publisher's allow-list", parties.address,
                      parties.own_key));
}

Error disagreement(const HandshakeParties& parties, std::uint32_t reason) {
  if (reason == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    const char* const why = parties.own_key.empty() ? "wants keys (--keys and --server-key), or is not a publisher"
                                                    : "uses no keys, so it cannot be the publisher whose key was given";
    return Error(Code::failed_precondition, format("{} {}", parties.address, why));
  }
  if (reason == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) {
    return Error(Code::failed_precondition,
                 format("{} does not have the server key {}", parties.address, parties.server_key));
  }
  return Error(Code::failed_precondition,
               format("{} does not shake hands as ZeroMQ does (0x{:x})", parties.address, reason));
}

Error break_off(const HandshakeParties& parties, std::uint32_t reason) {
  if (reason == EAGAIN) {  // The time for it ran out.
    return Error(Code::unavailable,
                 format("{} does not answer the handshake: it is stopped, or far behind{}", parties.address,
                        parties.server_key.empty() ? ", or wants keys (--keys and --server-key)" : ""));
  }
  const std::string why = ::zmq_strerror(static_cast<int>(reason));
  if (parties.server_key.empty()) {
    return Error(
        Code::unavailable,
        format("{} broke off the handshake ({}): it may have ended just then, or want keys (--keys and --server-key)",
               parties.address, why));
  }
  return Error(Code::unavailable,
               format("{} broke off the handshake ({}): it may have ended just then, or not have the server key {}, "
                      "which is then the wrong one",
                      parties.address, why, parties.server_key));
}

}  // namespace

HandshakeParties parties_of(std::string address, const ClientCredentials* credentials) {
  HandshakeParties parties{.address = std::move(address)};
  if (credentials == nullptr) return parties;
  parties.own_key = credentials->keys.public_key().text();
  parties.server_key = credentials->server.text();
  return parties;
}

std::optional<Error> handshake_error(const SocketMonitor::Event& event, const HandshakeParties& parties) {
  switch (event.kind) {
    case SocketMonitor::kDisbelieved:
      return Error(event.why->code(), format("{} is not believed: {}", parties.address, event.why->message()));
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: return refusal(parties);
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL: return disagreement(parties, event.value);
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: return break_off(parties, event.value);
    default: return std::nullopt;
  }
}

std::optional<HandshakeOutcome> take_outcome(SocketMonitor& monitor, const HandshakeParties& parties) {
  std::optional<HandshakeOutcome> outcome;
  while (const auto event = monitor.take()) {
    if (event->kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) outcome = HandshakeOutcome{.succeeded = true};
    if (auto error = handshake_error(*event, parties)) outcome = HandshakeOutcome{.error = std::move(error)};
  }
  return outcome;
}

}  // namespace freshet
