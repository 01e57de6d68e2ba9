// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The common parts of the commands of `freshet tier`: config, keeper, and lines that begin with `freshet tier:`.

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "bindings/cli/frame/output.h"
#include "bindings/cli/frame/program.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/tier/board_file.h"
#include "repo/tier/config.h"
#include "repo/tier/keeper/keeper_door.h"

namespace freshet::cli {

/// "freshet tier: TEXT" on stderr, one line whatever the text holds.
void tell_tier(std::string_view text);

/// --config F, else FRESHET_TIER, which `file` is given.
void add_tier_config(CLI::App& command, std::string& file);

/// Sets the action: reads the config first, and says what went wrong as the commands of `tier` do. A wrong config is
/// wrong usage.
using TierAction = std::function<Result<ExitCode>(Program&, const tier::Config&)>;
void act_on_tiers(CLI::App& command, Program& program, std::shared_ptr<std::string> file, TierAction act);

/// A connection to the keeper; starts one, which ends by itself, when there is none.
Result<tier::KeeperLine> reach_keeper(const tier::Config& config);

/// The reader's library, beside this program. not_found when it is not there.
Result<std::string> reader_library();

/// The `total` line: what `board` counted since `before` was read; all of it when `before` is nullptr.
Json total_of(const tier::Board& board, const tier::Counters* before);

/// The troubles of tiers and sources during a run. One thread at a time.
class Troubles {
 public:
  /// Counts from now on. REQUIRES: the board outlives it.
  explicit Troubles(const tier::Board& board);

  /// A line for each cause that was not told yet (tell_tier). A tier that worked again has a new cause when it fails
  /// for another reason.
  void tell();
  /// The counters as they were when it was made.
  const tier::Counters& before() const { return *before_; }

 private:
  void tell_once(const std::string& cause, const std::string& line);

  const tier::Board& board_;
  std::unique_ptr<tier::Counters> before_;
  std::set<std::string> told_;
  std::set<std::uint32_t> off_;  ///< Tiers, when tell() last looked.
  bool was_any_off_ = false;
};

void add_tier_run(CLI::App& tier, Program& program);
void add_tier_keep(CLI::App& tier, Program& program);
void add_tier_copies(CLI::App& tier, Program& program);
void add_tier_stat(CLI::App& tier, Program& program);
void add_tier_verify(CLI::App& tier, Program& program);

}  // namespace freshet::cli
