// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which data channels this process can fetch through, and how each is opened.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/gpu/collective.h"
#include "transport/channel/channel.h"
#include "transport/protocol/channel_selector.h"
#include "transport/security.h"
#include "transport/security/credentials.h"

namespace freshet {

/// Opens a client of an address that a publisher offered, which is hostile until parsed. Connects in the background.
using ChannelOpener = std::function<Result<std::unique_ptr<channel::ChannelClient>>(const std::string& address)>;
using ChannelOpeners = std::map<protocol::ChannelKind, ChannelOpener>;

/// Those that this build and machine have. `credentials`, where there are keys, are what encrypted channels show.
/// `collective`: of nccl; null is NCCL's library.
ChannelOpeners channel_openers(const SecurityOptions& security, const std::optional<ClientCredentials>& credentials,
                               const std::shared_ptr<gpu::Collective>& collective = nullptr);

/// The kinds that can be used: memory of this host, and those with an opener.
std::uint32_t usable_channels(const ChannelOpeners& openers);

}  // namespace freshet
