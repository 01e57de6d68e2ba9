// SPDX-License-Identifier: Apache-2.0
#include "transport/source/channel_servers.h"

#include "core/base/format.h"
#include "transport/channel/nccl/nccl_channel.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/zmq/zmq_channel.h"
#include "transport/zmq/address.h"

namespace freshet::source {
namespace {

using channel::ChannelKind;
using channel::ChannelServer;

/// The interface of a TCP address; loopback for a socket of this host's file system.
std::string interface_of(const std::string& control) {
  if (!control.starts_with(kTcpPrefix)) return "127.0.0.1";
  return control.substr(kTcpPrefix.size(), control.rfind(':') - kTcpPrefix.size());
}

Status check_kinds(const std::vector<ChannelKind>& kinds) {
  for (const ChannelKind kind : kinds) {
    if (traits_of(kind).fetches) continue;
    return fail(Code::invalid_argument,
                format("no channel {} can be offered; there are ucx, nccl and zmq", to_string(kind)));
  }
  return {};
}

Result<std::unique_ptr<ChannelServer>> open_server(ChannelKind kind, const ChannelServersOptions& options,
                                                   channel::FetchSource& source) {
  if (kind == ChannelKind::ucx) {
    return channel::open_ucx_server(source, {.address = format("ucx://{}:0", interface_of(options.control)),
                                             .trusted_fabric = options.trusted_fabric});
  }
  const channel::ZmqServerOptions messages{.address = format("tcp://{}:*", interface_of(options.control)),
                                           .credentials = options.credentials,
                                           .neighbours = options.neighbours};
  if (kind == ChannelKind::zmq) return channel::open_zmq_server(source, messages);
  return channel::open_nccl_server(
      source,
      {.messages = messages, .trusted_fabric = options.trusted_fabric, .rounds = {}, .collective = options.collective});
}

}  // namespace

Result<std::vector<std::unique_ptr<ChannelServer>>> open_channel_servers(const ChannelServersOptions& options,
                                                                         channel::FetchSource& source) {
  std::vector<std::unique_ptr<ChannelServer>> servers;
  const bool automatic = !options.kinds.has_value();
  std::vector<ChannelKind> kinds{ChannelKind::zmq};
  if (options.trusted_fabric) kinds.insert(kinds.begin(), ChannelKind::ucx);
  if (automatic && !options.control.starts_with(kTcpPrefix)) return servers;
  if (!automatic) {
    kinds = *options.kinds;
    FRESHET_TRY(check_kinds(kinds));
  }
  for (const ChannelKind kind : kinds) {
    auto server = open_server(kind, options, source);
    if (server) {
      servers.push_back(std::move(*server));
    } else if (!automatic) {
      return fail(std::move(server).error().with_context(format("offer the channel {}", to_string(kind))));
    }
  }
  return servers;
}

}  // namespace freshet::source
