// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The command line of checkpoint_ranks.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "repo/levels/checkpointer.h"
#include "transport/security.h"

namespace freshet::ranks {

struct Options {
  std::string model;
  std::string state;
  std::uint64_t steps = 0;
  std::uint64_t every = 1;
  double step_ms = 0;
  std::vector<std::string> local;
  std::string host;
  std::string external;
  std::string external_server_key;
  levels::GroupScheme group;
  std::map<CheckpointLevel, std::uint32_t> keep;
  std::uint64_t limit_bytes_per_second = 0;
  levels::WhenBehind when_behind = levels::WhenBehind::skip;
  levels::RestartChoice restore;
  std::string dump;
  std::string die_point;
  std::uint64_t die_step = 0;
  double patience_s = 30;
  double lost_after_s = 10;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::string meet;
  std::string job;
  SecurityOptions security;
};

/// The options, or the exit code when there is nothing more to do (help, or a line on stderr).
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};
Parsed parse(int argc, char** argv);

}  // namespace freshet::ranks
