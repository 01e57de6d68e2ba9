// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/lanes_offered.h"

#include <algorithm>

namespace freshet::rpc {

bool take_lanes(std::string& channels, bool has_keys) {
  bool has_lanes = false;
  std::string others;
  for (std::size_t from = 0; from <= channels.size();) {
    const std::size_t comma = std::min(channels.find(',', from), channels.size());
    const std::string kind = channels.substr(from, comma - from);
    from = comma + 1;
    if (kind == "shm") {
      has_lanes = true;
    } else {
      others += (others.empty() ? "" : ",") + kind;
    }
  }
  channels = has_lanes && others.empty() ? "none" : others;
  return has_lanes && !has_keys;
}

}  // namespace freshet::rpc
