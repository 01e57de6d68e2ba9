// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/channel_openers.h"

#include "core/gpu/collective.h"
#include "transport/channel/nccl/nccl_channel.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet {

ChannelOpeners channel_openers(const SecurityOptions& security, const std::optional<ClientCredentials>& credentials,
                               const std::shared_ptr<gpu::Collective>& collective) {
  ChannelOpeners openers;
  const Neighbours believed = neighbours_admitted(security, credentials.has_value());
  openers[ChannelKind::zmq] = [credentials, believed](const std::string& address) {
    return channel::open_zmq_client(address, {.credentials = credentials, .believed = believed});
  };
  if (channel::ucx_version()) {
    // UCX has no keys: its loopback ports are this user's also where the control connection is encrypted.
    const Neighbours listening = neighbours_admitted(security, false);
    openers[ChannelKind::ucx] = [trusted = security.trusted_fabric, listening](const std::string& address) {
      return channel::open_ucx_client(address, {.trusted_fabric = trusted, .believed = listening});
    };
  }
  // NCCL's library alone is looked for: a driver that is opened here could not be used by a child of this process.
  if (security.trusted_fabric && (collective != nullptr || gpu::nccl_version())) {
    openers[ChannelKind::nccl] = [credentials, believed, collective](const std::string& address) {
      return channel::open_nccl_client(address, {.messages = {.credentials = credentials, .believed = believed},
                                                 .trusted_fabric = true,
                                                 .collective = collective});
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
