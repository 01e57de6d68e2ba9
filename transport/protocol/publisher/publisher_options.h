// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The options of a publisher's machine: its model, its offers, and the share of them that one peer may have.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/protocol/publisher/activation.h"

namespace freshet::protocol {

struct PublisherOptions {
  std::string model;
  RunId run;
  std::uint64_t incarnation = 0;
  VersionNumber first_number = 0;  ///< As Welcome has it.
  std::string door;
  std::string host;                    ///< Sessions of the same one are offered the door; empty: all sessions are.
  std::vector<ChannelOffer> channels;  ///< Where else bytes can be had; sessions of other hosts need one of them.
  std::uint64_t token_seed = 0;        ///< Secret.
  std::size_t every_queue_versions_max = 64;
  std::size_t sessions_max = 4096;
  std::size_t sessions_per_key_max = 2048;   ///< Where there are keys.
  std::size_t holds_per_session_max = 1024;  ///< A session that holds more is refused until it lets some go.
  std::size_t leases_per_session_max = 8;    ///< A subscriber fetches one version at a time.
  std::size_t leased_versions_per_key_max = 16;
  /// Numbers in a Hello are believed up to here, and up to the newest version.
  VersionNumber believed_number_max = kNumbersBelieved;
  Duration grant_again = std::chrono::milliseconds(100);  ///< Less than subscribers wait until they repeat a Want.
  std::size_t grants_at_once = 16;                        ///< Equal ones that a session saves up (grants.h).
  Duration silent_after = std::chrono::milliseconds(1000);
  Duration lease_silence = std::chrono::seconds(3);  ///< At least silent_after.
  Duration lease_idle = std::chrono::seconds(60);
  /// Of a lease, in bytes a second, when room is needed; after a first `fetch_grace`.
  std::uint64_t fetch_rate_min = std::uint64_t{64} << 10;
  Duration fetch_grace = std::chrono::seconds(10);
  std::size_t retained_versions = 1;  ///< The newest among them.
  Activation::Options activation;     ///< Its model is this one.
};

}  // namespace freshet::protocol
