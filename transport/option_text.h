// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Options of publishers, subscribers and providers as people write them: in a command line, a call from Python, or a
/// file. A text is parsed once, here. All other code has the types.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "transport/channel_kind.h"
#include "transport/subscriber.h"

namespace freshet {

/// "auto" or "": the best channel that both ends have. "shm", "ucx", "nccl", "zmq", "file": this one.
Result<std::optional<ChannelKind>> parse_channel(std::string_view text);
/// "auto", "none", or kinds with commas: "ucx,zmq".
Result<ChannelChoice> parse_channel_choice(std::string_view text);
/// "zmq" or "": the publisher. "redis": the directory.
Result<Notifier> parse_notifier(std::string_view text);
/// Addresses with commas, which nobody has checked yet; "" for none. The path of a folder's address ("file://…") may
/// have commas, so that address stands alone.
std::vector<std::string> parse_addresses(std::string_view text);

}  // namespace freshet
