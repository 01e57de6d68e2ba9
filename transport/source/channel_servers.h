// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which data channels a hub offers, and their servers.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/gpu/collective.h"
#include "transport/channel/channel.h"
#include "transport/channel_kind.h"
#include "transport/security/credentials.h"
#include "transport/security/socket_owner.h"

namespace freshet::source {

struct ChannelServersOptions {
  /// Nothing: where the control socket listens on TCP, zmq, and ucx if the fabric was declared trusted (ucx knows
  /// neither keys nor users), none elsewhere; one that cannot be opened is left out. (nccl only if it is named: it
  /// takes a GPU's memory.) Or the kinds to offer; one that cannot be opened is an error then.
  ChannelChoice kinds;
  std::string control;  ///< The control socket's address, as it was bound: channels listen on the same interface.
  bool trusted_fabric = false;
  Neighbours neighbours = Neighbours::same_user;  ///< That the channels admit which know users.
  /// Of the control socket; those channels that know keys have the same.
  std::optional<ServerCredentials> credentials;
  std::shared_ptr<gpu::Collective> collective;  ///< Of nccl. Null: NCCL's library.
};

/// `source` outlives the servers. invalid_argument for a kind that cannot be offered: shm, file.
Result<std::vector<std::unique_ptr<channel::ChannelServer>>> open_channel_servers(const ChannelServersOptions& options,
                                                                                  channel::FetchSource& source);

}  // namespace freshet::source
