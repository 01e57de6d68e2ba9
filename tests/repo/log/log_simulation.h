// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Owners, standbys, challengers, readers and writers of one log, from one seed, over a store that delays, loses
/// requests and answers, applies writes late and twice, and lists late. Processes sleep, across snapshots too, are
/// killed and start again; their clocks' rates differ. The machines are the real ones (repo/log/log_machine.h).

#include <cstdint>
#include <string>

#include "repo/log/broken_rule.h"

namespace freshet::sim {

struct LogOutcome {
  std::string violation;  ///< Empty: all went as it must.
  std::uint64_t events = 0;
  std::uint64_t records = 0;
  std::uint64_t batches = 0;
  std::uint64_t shared = 0;  ///< Records with several batches.
  std::uint64_t challenges = 0;
  std::uint64_t ownerships = 0;
  std::uint64_t refused_claims = 0;
  std::uint64_t ends = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t kills = 0;
  std::uint64_t late_writes = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t emptied = 0;
  std::uint64_t erased = 0;
  std::uint64_t answers = 0;
  std::uint64_t unknown = 0;  ///< Batches whose end was not known in time.
};

LogOutcome simulate_log(std::uint64_t seed, log::BrokenRule broken);

}  // namespace freshet::sim
