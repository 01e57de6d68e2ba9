// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A program's VELOC configuration: lines of `word = value`. VELOC_<WORD> in the environment goes before them.

#include <map>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "core/base/result.h"
#include "repo/levels/checkpointer.h"

namespace freshet::veloc {

struct Config {
  std::string scratch;
  std::string persistent;  ///< A repository; empty: none.
  bool sync = false;
  std::string host;
  std::string meet;  ///< Empty: a free port of this machine, if all ranks are on it.
  levels::GroupScheme group;
  std::map<CheckpointLevel, std::uint32_t> keep;
  std::uint64_t limit_bytes_per_second = 0;
  Duration patience = std::chrono::minutes(5);
  SecurityOptions security;
  std::string persistent_server_key;        ///< Of the provider at `persistent`.
  std::vector<std::string> without_effect;  ///< Of the file; known, and without meaning here.
};

/// An empty `path`: all comes from the environment. invalid_argument names the word.
Result<Config> read_config(Env& env, const std::string& path, std::uint32_t rank);

}  // namespace freshet::veloc
