// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/channel_openers.h"

#include "core/base/format.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet {

using protocol::ChannelKind;

ChannelOpeners channel_openers(const SecurityOptions& security, const std::optional<ClientCredentials>& credentials) {
  ChannelOpeners openers;
  openers[ChannelKind::zmq] = [credentials](const std::string& address) {
    return channel::open_zmq_client(address, {.credentials = credentials});
  };
  if (channel::ucx_version()) {
    openers[ChannelKind::ucx] = [trusted = security.trusted_fabric](const std::string& address) {
      return channel::open_ucx_client(address, {.trusted_fabric = trusted});
    };
  }
  return openers;
}

Result<std::optional<ChannelKind>> parse_channel(const std::string& text) {
  if (text.empty() || text == "auto") return std::nullopt;
  for (std::uint8_t kind = 0; kind <= protocol::kChannelKindLast; ++kind) {
    if (text == to_string(static_cast<ChannelKind>(kind))) return static_cast<ChannelKind>(kind);
  }
  return fail(Code::invalid_argument, format("channel {} is not known; expected auto, shm, ucx, zmq or file", text));
}

std::uint32_t usable_channels(const ChannelOpeners& openers) {
  std::uint32_t usable = protocol::bit(ChannelKind::shm);
  for (const auto& [kind, opener] : openers) usable |= protocol::bit(kind);
  return usable;
}

}  // namespace freshet
