// SPDX-License-Identifier: Apache-2.0
#include "repo/records/placed.h"

#include <algorithm>

#include "core/base/format.h"
#include "repo/records/placement.h"

namespace freshet {

Status check(const Placed& placed, std::size_t tensors) {
  if (placed.placement == 0) return fail(Code::invalid_argument, "the version's record names no placement");
  if (placed.elsewhere.size() > tensors || placed.moved.size() > tensors) {
    return fail(Code::invalid_argument, format("the version's record places more than its {} tensors", tensors));
  }
  for (std::size_t i = 0; i < placed.elsewhere.size(); ++i) {
    if (placed.elsewhere[i] >= tensors || (i != 0 && placed.elsewhere[i - 1] >= placed.elsewhere[i])) {
      return fail(Code::invalid_argument, format("tensor {} cannot be at another provider", placed.elsewhere[i]));
    }
  }
  for (std::size_t i = 0; i < placed.moved.size(); ++i) {
    const Placed::Moved& moved = placed.moved[i];
    if (moved.provider.empty() || moved.provider.size() > kProviderIdBytesMax ||
        (i != 0 && placed.moved[i - 1].writer >= moved.writer)) {
      return fail(Code::invalid_argument,
                  format("the segments of {} cannot be at that provider", to_string(moved.writer)));
    }
  }
  return {};
}

bool is_elsewhere(const Placed& placed, std::uint32_t tensor) {
  return std::binary_search(placed.elsewhere.begin(), placed.elsewhere.end(), tensor);
}

}  // namespace freshet
