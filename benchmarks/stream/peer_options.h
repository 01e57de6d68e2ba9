// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a publisher or subscriber process of a benchmark is to do, on its command line as one word of JSON.

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "transport/security.h"

namespace freshet::benchmarks {

struct PeerOptions {
  std::string model = "bench";
  std::string directory;  ///< Folder of the host directory: one for each host.
  SecurityOptions security;

  // A publisher's.
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  std::string listen;
  bool sync = false;        ///< publish() returns when the version is sealed and announced, not after the copy.
  double arena_copies = 0;  ///< 0: the default.
  std::string folder;       ///< Versions are written there, for those who follow by file.
  std::uint64_t keep = 0;   ///< Versions kept for going back; 0: the default.

  // A subscriber's.
  std::string at;
  std::string channel;  ///< The only one that it may use; empty: whatever the selector chooses.
  std::string serve;    ///< Where it serves the model again; empty: it doesn't.
};

std::string to_json(const PeerOptions& options);
Result<PeerOptions> parse_peer_options(const std::string& json);

}  // namespace freshet::benchmarks
