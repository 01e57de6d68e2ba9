// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Matches through a provider: a server on loopback whose repository, in memory, has the catalog's graphs, and clients
/// of this process, each with a connection and a thread of its own.

#include "benchmarks/match/cases.h"

namespace freshet::benchmarks {

struct ThroughProvider {
  double per_second = 0;
  double per_cpu_second = 0;  ///< Of all threads: the server's, and the clients' with their sockets.
};

/// Fills a provider once; then measures.
class ProviderWithCatalog {
 public:
  static Result<std::unique_ptr<ProviderWithCatalog>> start(const MatchCase& match_case);
  virtual ~ProviderWithCatalog() = default;
  /// Each client asks every query once.
  virtual Result<ThroughProvider> ask(std::size_t clients) = 0;
};

}  // namespace freshet::benchmarks
