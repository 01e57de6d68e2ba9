// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The data channel over ZeroMQ, for every network: with keys it is CURVE, so that what travels is encrypted and both
/// ends are known; without, for loopback alone. Bytes come in chunks, and a server sends no more than the client has
/// given credit for, so what a client costs, awake or not, is bounded by its window.
///
/// Chunks are copied into buffers that the channel owns before they are sent: when its connection is gone, nothing
/// refers to a segment any more but the thread that still makes a delta of it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "transport/channel/channel.h"
#include "transport/security/credentials.h"
#include "transport/security/socket_owner.h"

namespace freshet::channel {

struct ZmqServerOptions {
  /// "tcp://ADDRESS:PORT" as transport/zmq/address.h has it; port "*" takes a free one. Beyond loopback with
  /// credentials only.
  std::string address = "tcp://127.0.0.1:*";
  std::optional<ServerCredentials> credentials;
  Neighbours neighbours = Neighbours::same_user;  ///< Of this host, without credentials.
  std::uint64_t chunk_bytes = 256 << 10;          ///< 4 KiB to 1 MiB.
  std::uint64_t window_bytes = 8 << 20;  ///< On its way to one peer at most; at least a chunk, at most 256 MiB.
  std::size_t peers_max = 1024;
};

/// `source` outlives the server. invalid_argument for options and addresses, unavailable, already_exists for a port
/// that is taken.
Result<std::unique_ptr<ChannelServer>> open_zmq_server(FetchSource& source, const ZmqServerOptions& options = {});

struct ZmqClientOptions {
  std::optional<ClientCredentials> credentials;
  Neighbours believed = Neighbours::same_user;  ///< Of this host, without credentials.
  std::uint64_t window_bytes = 8 << 20;         ///< The server's, if it is smaller. 64 KiB to 256 MiB.
};

/// Connects in the background: requests may be queued at once; that nobody is there, or that a key is refused, is found
/// out by progress(). It does not connect again: open another.
Result<std::unique_ptr<ChannelClient>> open_zmq_client(const std::string& address,
                                                       const ZmqClientOptions& options = {});

}  // namespace freshet::channel
