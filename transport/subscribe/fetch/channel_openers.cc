// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/channel_openers.h"

#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet {

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

std::uint32_t usable_channels(const ChannelOpeners& openers) {
  std::uint32_t usable = protocol::bit(ChannelKind::shm);
  for (const auto& [kind, opener] : openers) usable |= protocol::bit(kind);
  return usable;
}

}  // namespace freshet
