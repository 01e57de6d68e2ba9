// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One seeded run: a publisher, two subscribers to the latest version, one to every version, and a sink on its host; a
/// relay on another host with two behind it, and two on hosts of their own; a while of loss, reordering, crashes, stops
/// and broken channels; then a calm in which everything must come right.

#include <cstdint>
#include <string>

#include "tests/transport/sim/host.h"

namespace freshet::sim {

struct Outcome {
  std::string violation;  ///< Empty when every property held.
  std::uint64_t versions = 0;
  std::uint64_t installs = 0;
  std::uint64_t fetches = 0;             ///< Installs of what came over a data channel.
  std::uint64_t installs_on_device = 0;  ///< Of versions that lie in the trainer's device memory too.
  std::uint64_t gaps = 0;
  std::uint64_t skipped = 0;
  std::uint64_t shed = 0;
  std::uint64_t incarnations = 0;
};

Outcome simulate(std::uint64_t seed, Sabotage sabotage);

}  // namespace freshet::sim
