// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The command line, and the same as the file through which the supervisor tells it to the roles that it starts.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "examples/live_run/hosts.h"
#include "examples/live_run/model/layout.h"

namespace freshet::live {

inline constexpr const char* kModelName = "live";
inline constexpr std::uint32_t kOrdersThatFreeze = 3;  ///< n-grams of 1, 2 and 3 bytes are learnt soonest.

/// What a run is asked to do.
struct RunOptions {
  double seconds = 30;         ///< 0: no limit.
  std::uint64_t versions = 0;  ///< 0: no limit.
  double rate = 200;           ///< Requests a second.
  std::uint32_t servers = 2;
  std::string schedule = "online";
  double pace = 200;  ///< Steps a second at most; 0: as fast as it goes.
  std::uint64_t model_bytes = kModelBytesDefault;
  std::vector<std::string> text;
  std::uint64_t freeze_after = 600;  ///< Steps; 0: nothing freezes.
  std::uint64_t seed = 1;
  std::uint64_t deadline_ms = 2000;  ///< Of a request.
  std::string report;                ///< Empty: a folder of its own in the current one.
  bool json = false;
  HostPlans hosts;              ///< By role; what is not in it is on this host.
  bool make_torn_read = false;  ///< For the tests: servers mix two versions now and then, and the checker must see it.
};

/// What a process is started as. The role is empty for the supervisor.
struct RoleOptions {
  std::string role;
  std::string run_folder;
  std::uint32_t index = 0;          ///< Which server.
  std::uint32_t life = 1;           ///< Counts the starts of this role.
  std::uint64_t versions_left = 0;  ///< For a trainer: how many to publish; 0: no limit.
};

struct CommandLine {
  RunOptions run;
  RoleOptions role;
};

/// Parses; prints help or the error itself and returns the exit code (0 after --help, 2 for wrong usage) instead.
struct ParsedCommandLine {
  std::optional<CommandLine> command_line;
  int exit_code = 0;
};
ParsedCommandLine parse_command_line(int argc, char** argv);

/// "600MB", "4GiB", "1.5GB": that many bytes of parameters; a bare number or "75x": that many times the default.
Result<std::uint64_t> parse_scale(std::string_view text);

/// A run as its roles see it: what was asked, and where things are. Kept as RUN_FOLDER/run.json.
struct RunConfig {
  RunOptions options;
  std::string repository;  ///< Folder.
};
Status write_config(const std::string& run_folder, const RunConfig& config);
Result<RunConfig> read_config(const std::string& run_folder);

/// Where a server answers.
std::string server_address(const std::string& run_folder, std::uint32_t index);

}  // namespace freshet::live
