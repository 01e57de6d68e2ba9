// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A person's configuration of tiers: one TOML file. For each fault of the file there is a message of one sentence. If
/// the file has a fault, Freshet starts nothing.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::tier {

struct TierConfig {
  std::string path;  ///< Absolute, without links.
  std::uint64_t quota_bytes = 0;
};

struct Config {
  std::string file;                  ///< Absolute.
  std::uint64_t hash = 0;            ///< Of its bytes; names the board.
  std::vector<std::string> sources;  ///< Absolute, without links.
  std::vector<TierConfig> tiers;     ///< Fastest first.
  bool first_open_waits = false;
  bool never_validates = false;  ///< The sources are promised not to change.
  bool evicts_unused = false;
  Duration wait = std::chrono::seconds(600);
  unsigned threads = 4;
};

/// invalid_argument for whatever is wrong with it, a file that is not there included. Makes nothing.
Result<Config> read_config(const std::string& file);

/// "100 GiB", "1.5GB", "4096": whole bytes. invalid_argument when it is no size.
Result<std::uint64_t> bytes_of(const std::string& text);

}  // namespace freshet::tier
