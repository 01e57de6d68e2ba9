// SPDX-License-Identifier: Apache-2.0
#include "transport/option_text.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/file/folder_follower.h"

namespace freshet {
namespace {

std::optional<ChannelKind> kind_named(std::string_view text) {
  const auto at = std::ranges::find(kChannelTraits, text, &ChannelTraits::name);
  const auto kind = static_cast<ChannelKind>(at - kChannelTraits.begin());
  if (at == kChannelTraits.end() || kind == ChannelKind::cuda_ipc) return std::nullopt;
  return kind;
}

}  // namespace

Result<std::optional<ChannelKind>> parse_channel(std::string_view text) {
  if (text.empty() || text == "auto") return std::nullopt;
  if (const auto kind = kind_named(text)) return kind;
  return fail(Code::invalid_argument,
              format("channel {} is not known; expected auto, shm, ucx, nccl, zmq or file", shown(text)));
}

Result<ChannelChoice> parse_channel_choice(std::string_view text) {
  if (text == "auto") return ChannelChoice();
  std::vector<ChannelKind> kinds;
  if (text == "none") return ChannelChoice(kinds);
  for (const std::string_view name : split_list(text)) {
    const auto kind = kind_named(name);
    if (!kind) {
      return fail(Code::invalid_argument, format("no channel {} can be offered; there are ucx, nccl and zmq", shown(name)));
    }
    kinds.push_back(*kind);
  }
  return ChannelChoice(std::move(kinds));
}

Result<Notifier> parse_notifier(std::string_view text) {
  if (text.empty() || text == "zmq") return Notifier::publisher;
  if (text == "redis") return Notifier::directory;
  return fail(Code::invalid_argument, format("notifier \"{}\" is neither zmq nor redis", shown(text)));
}

std::vector<std::string> parse_addresses(std::string_view text) {
  if (text.empty()) return {};
  if (file::is_folder_address(std::string(text))) return {std::string(text)};
  const std::vector<std::string_view> parts = split_list(text);
  return {parts.begin(), parts.end()};
}

}  // namespace freshet
