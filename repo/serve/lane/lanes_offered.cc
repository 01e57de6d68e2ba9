// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/lane/lanes_offered.h"

#include "core/base/text.h"

namespace freshet::rpc {

bool take_lanes(std::string& channels, bool has_keys) {
  bool has_lanes = false;
  std::string others;
  for (const std::string_view kind : split_list(channels)) {
    if (kind == "shm") {
      has_lanes = true;
    } else {
      if (!others.empty()) others += ',';
      others += kind;
    }
  }
  channels = has_lanes && others.empty() ? "none" : others;
  return has_lanes && !has_keys;
}

}  // namespace freshet::rpc
