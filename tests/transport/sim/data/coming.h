// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A version that a simulated relay is fetching, as far as it has come, for those who fetch it from the relay
/// meanwhile.

#include <functional>
#include <vector>

#include "tests/transport/sim/connection.h"
#include "transport/protocol/publisher/held_versions.h"

namespace freshet::sim {

struct Coming {
  Coming() = default;
  Coming(const Coming&) = delete;
  Coming& operator=(const Coming&) = delete;
  ~Coming() {
    if (on_gone) on_gone();
  }

  protocol::CommittedVersion version;
  std::vector<std::uint64_t> came;  ///< Bytes, by tensor.
  bool over = false;                ///< The rest will never come.
  ConnectionPointer from;
  std::function<void()> on_gone;  ///< Nobody reads what came.
};

}  // namespace freshet::sim
