// SPDX-License-Identifier: Apache-2.0
#pragma once

/// UCX's own benchmark (Debian's ucx-utils) as a peer: the bandwidth of active messages between two places.

#include <cstdint>
#include <string>

#include "benchmarks/common/statistics.h"
#include "benchmarks/stream/stream_peer.h"

namespace freshet::benchmarks {

struct PerftestOptions {
  Place server;
  Place client;             ///< Sends.
  std::string server_host;  ///< As the client reaches it.
  std::uint64_t message_bytes = 0;
  int messages = 8;
  int runs = 3;
};

/// Milliseconds for a message of that size, one value per run: `ucx_perftest -e -t ucp_am_bw -s BYTES`. unavailable
/// when the program is not there.
Result<Samples> run_perftest(const PerftestOptions& options);

}  // namespace freshet::benchmarks
