// SPDX-License-Identifier: Apache-2.0
// `freshet tier prefetch`, `upcoming`, `settle` and `stop`, which send the keeper its orders.

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/progress.h"
#include "bindings/cli/tier/tier.h"
#include "core/base/format.h"
#include "repo/tier/order.h"

namespace freshet::cli {
namespace {

constexpr Duration kBetweenLooks = std::chrono::milliseconds(200);
constexpr std::size_t kToldAtOnce = 1024;
constexpr Duration kAnswerAtOnce = std::chrono::milliseconds(500);
constexpr Duration kAnswerWithin = std::chrono::seconds(60);

Result<ExitCode> prefetch(Program& /*program*/, const tier::Config& config, const std::vector<std::string>& paths) {
  std::vector<std::string> whole;
  for (const std::string& path : paths.empty() ? config.sources : paths) {
    std::error_code error;
    const auto real = std::filesystem::canonical(path, error);
    if (error) return fail(Code::not_found, format("{}: {}", path, error.message()));
    bool below = false;
    for (const std::string& source : config.sources)
      below |= (real.string() + "/").starts_with(source + "/") || source == "/";
    if (!below) return refuse(format("{} is not below a source", path));
    whole.push_back(real.string());
  }
  FRESHET_ASSIGN(tier::KeeperLine keeper, reach_keeper(config));
  for (const std::string& path : whole)
    FRESHET_TRY(keeper.say("prefetch " + path, system_clock().now() + kAnswerWithin));
  return ExitCode::done;
}

/// Paths from stdin, each ended by `end`, told as they come.
Result<ExitCode> upcoming(Program& /*program*/, const tier::Config& config, char end) {
  FRESHET_ASSIGN(tier::KeeperLine keeper, reach_keeper(config));
  tier::Order order(config, std::move(keeper));
  std::vector<std::string> paths;
  for (std::string path; std::getline(std::cin, path, end);) {
    paths.push_back(std::move(path));
    if (paths.size() < kToldAtOnce) continue;
    FRESHET_TRY(order.tell(paths));
    paths.clear();
  }
  FRESHET_TRY(order.tell(paths));
  FRESHET_TRY(order.leave());
  return ExitCode::done;
}

/// How far it is stands on the board. What waits is known by number alone: its bytes are taken to be as those that were
/// copied.
void show_progress(const tier::Board& board, std::uint64_t copied_before, ProgressBar& bar) {
  const std::uint64_t copied = tier::load(board.counters.copied_bytes);
  const std::uint64_t files = tier::load(board.counters.copied_files);
  const std::uint64_t done = copied - std::min(copied, copied_before);
  bar.show(done, files == 0 ? 0 : done + copied / files * tier::load(board.queued_files));
}

Status settle_with_progress(const tier::Config& config, tier::KeeperLine& keeper, Time deadline) {
  FRESHET_ASSIGN(const tier::BoardFile file, tier::BoardFile::open(config));
  const tier::Board& board = file.board();
  const std::uint64_t copied_before = tier::load(board.counters.copied_bytes);
  ProgressBar bar("settle");
  FRESHET_TRY(keeper.send(std::string("settle") + '\0', deadline));
  for (;;) {
    show_progress(board, copied_before, bar);
    Status settled = keeper.hear(std::min(deadline, system_clock().now() + kBetweenLooks));
    if (settled || settled.error().code() != Code::timed_out || system_clock().now() >= deadline) return settled;
  }
}

/// Without a time: waits as long as it takes.
Result<ExitCode> settle(Program& /*program*/, const tier::Config& config, std::optional<double> timeout_s) {
  Result<tier::KeeperLine> keeper = tier::KeeperLine::connect(config);
  if (!keeper) return ExitCode::done;
  // Rounded down to what a clock can hold. A keeper with nothing left needs a moment to say so.
  const bool ends = timeout_s && *timeout_s < 1e9;
  const Time deadline = ends ? system_clock().now() + std::max(seconds(*timeout_s), kAnswerAtOnce) : Time::max();
  const Status settled = settle_with_progress(config, *keeper, deadline);
  // A keeper that ended by itself had nothing left.
  if (settled || settled.error().code() == Code::unavailable) return ExitCode::done;
  if (settled.error().code() != Code::timed_out) return fail(settled.error());
  tell_tier(format("after {} s there is still something to copy", timeout_s.value_or(0)));
  return ExitCode::unavailable;
}

Result<ExitCode> stop_keeper(Program& /*program*/, const tier::Config& config) {
  Result<tier::KeeperLine> keeper = tier::KeeperLine::connect(config);
  if (!keeper) return ExitCode::done;
  (void)keeper->say("stop", system_clock().now() + kAnswerWithin);
  // It closes the connection when its copies are put away; that is the end of it.
  (void)keeper->say("hold", system_clock().now() + kAnswerWithin);
  return ExitCode::done;
}

}  // namespace

void add_tier_copies(CLI::App& tier, Program& program) {
  {
    CLI::App& command = *tier.add_subcommand("prefetch", "copy files and folders, in order, while quotas last");
    auto file = std::make_shared<std::string>();
    auto paths = std::make_shared<std::vector<std::string>>();
    add_tier_config(command, *file);
    command.add_option("PATH", *paths, "default: the sources");
    act_on_tiers(command, program, file,
                 [paths](Program& inner, const tier::Config& config) { return prefetch(inner, config, *paths); });
  }
  {
    CLI::App& command =
        *tier.add_subcommand("upcoming", "copy the files that stdin names ahead of who opens them in that order");
    auto file = std::make_shared<std::string>();
    auto null = std::make_shared<bool>(false);
    add_tier_config(command, *file);
    command.add_flag("-0,--null", *null, "paths end with a zero byte, not with a line");
    act_on_tiers(command, program, file, [null](Program& inner, const tier::Config& config) {
      return upcoming(inner, config, *null ? '\0' : '\n');
    });
  }
  {
    CLI::App& command = *tier.add_subcommand("settle", "return when nothing is left to copy");
    auto file = std::make_shared<std::string>();
    auto timeout = std::make_shared<std::optional<double>>();
    add_tier_config(command, *file);
    add_seconds(command, "--timeout", *timeout, "give up after that (exit 5); default: never");
    act_on_tiers(command, program, file,
                 [timeout](Program& inner, const tier::Config& config) { return settle(inner, config, *timeout); });
  }
  {
    CLI::App& command = *tier.add_subcommand("stop", "end the keeper");
    auto file = std::make_shared<std::string>();
    add_tier_config(command, *file);
    act_on_tiers(command, program, file, stop_keeper);
  }
}

}  // namespace freshet::cli
