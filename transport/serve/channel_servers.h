#pragma once

/// Which data channels a hub offers, and their servers.

#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "transport/channel/channel.h"

namespace freshet::serve {

struct ChannelServersOptions {
  /// "auto": `zmq` when the control socket is a TCP one, and `ucx` too when that is on loopback or the fabric is
  /// trusted and UCX is there. "none". Or the kinds to offer, with commas: "ucx,zmq"; one that cannot be opened is an
  /// error then.
  std::string kinds = "auto";
  std::string control;  ///< The control socket's address, as it was bound.
  bool trusted_fabric = false;
};

/// `source` stays until the servers are gone.
Result<std::vector<std::unique_ptr<channel::ChannelServer>>> open_channel_servers(const ChannelServersOptions& options,
                                                                                  channel::FetchSource& source);

}  // namespace freshet::serve
