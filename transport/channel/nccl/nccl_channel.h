// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The data channel over NCCL, for servers whose weights live on other GPUs or other hosts: large chunks go from the
/// server to all members of a round at once (rounds.h), by one broadcast, or by send and receive where there is one
/// member. All else goes as in the channel zmq, by its messages: requests, small answers, who takes part in which
/// round, and chunks whenever there is no round for them. So a fetch never depends on a round: a round that breaks is
/// aborted within its deadline, and what a member did not get comes by messages.
///
/// A chunk is copied out of the owner's memory before it is sent, as in the channel zmq, and goes through a staging
/// buffer on each side's device. The trainer's streams do not wait for a round: communicators, streams and threads are
/// the channel's own. A round's kernels share the GPU with the trainer's, on at most 8 thread blocks.
///
/// NCCL's sockets are neither encrypted nor authenticated. So both sides want `trusted_fabric`, also on loopback: NCCL
/// listens on addresses of its own choice (NCCL_SOCKET_IFNAME and all its variables are obeyed).

#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/gpu/collective.h"
#include "transport/channel/channel.h"
#include "transport/channel/nccl/rounds.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet::channel {

namespace nccl {
/// failed_precondition if it is not.
Status check_fabric(bool trusted);
}  // namespace nccl

struct NcclServerOptions {
  ZmqServerOptions messages;  ///< `chunk_bytes` is the channel's own.
  bool trusted_fabric = false;
  nccl::RoundLimits rounds;
  std::shared_ptr<gpu::Collective> collective;  ///< Null: NCCL's library.
};

/// `source` outlives the server. As open_zmq_server; failed_precondition without `trusted_fabric`; unavailable where
/// NCCL is.
Result<std::unique_ptr<ChannelServer>> open_nccl_server(FetchSource& source, const NcclServerOptions& options);

struct NcclClientOptions {
  ZmqClientOptions messages;
  bool trusted_fabric = false;
  std::shared_ptr<gpu::Collective> collective;  ///< Null: NCCL's library.
};

Result<std::unique_ptr<ChannelClient>> open_nccl_client(const std::string& address, const NcclClientOptions& options);

}  // namespace freshet::channel
