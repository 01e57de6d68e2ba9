// SPDX-License-Identifier: Apache-2.0
// `freshet checkpoint interval`: how often to checkpoint on machines that fail.

#include <memory>
#include <string>
#include <vector>

#include "bindings/cli/checkpoint/checkpoint.h"
#include "bindings/cli/frame/arguments.h"
#include "core/base/format.h"
#include "predictor/failure_interval.h"

namespace freshet::cli {
namespace {

struct IntervalArguments {
  double cost_ms = 0;
  double mtbf_s = 0;
  double restart_ms = 0;
};

Result<ExitCode> interval(Program& program, const IntervalArguments& arguments) {
  const FailureCosts costs{
      .checkpoint_s = arguments.cost_ms / 1000, .mtbf_s = arguments.mtbf_s, .restart_s = arguments.restart_ms / 1000};
  const Result<FailureInterval> found = failure_interval(costs);
  if (!found) {  // failure_interval() refuses only values of the command line.
    program.out.log(found.error().message());
    return ExitCode::usage;
  }
  const auto line = [&](const char* name, double interval_s) {
    const double waste = waste_of(costs, interval_s);
    return std::vector<std::string>{name, format("{:.4g} s", interval_s), format("{:.3g} %", 100 * waste)};
  };
  FRESHET_TRY(program.out.emit({{"young_s", found->young_s},
                                {"daly_s", found->daly_s},
                                {"interval_s", found->interval_s},
                                {"waste", found->waste}},
                               table({{"RULE", "COMPUTE", "LOST"},
                                      line("best", found->interval_s),
                                      line("Daly", found->daly_s),
                                      line("Young", found->young_s)})));
  return ExitCode::done;
}

}  // namespace

void add_checkpoint_interval(CLI::App& group, Program& program) {
  auto arguments = std::make_shared<IntervalArguments>();
  CLI::App& command = *group.add_subcommand("interval", "the best time between two checkpoints");
  add_json_flag(command, program);
  command.add_option("--cost-ms", arguments->cost_ms, "the time that the program stands still for a checkpoint")
      ->required()
      ->check(number_check());
  command.add_option("--mtbf-s", arguments->mtbf_s, "mean time between two failures of the whole job, in seconds")
      ->required()
      ->check(number_check());
  command
      .add_option("--restart-ms", arguments->restart_ms, "from a failure until the program computes again (default: 0)")
      ->check(number_check());
  command.footer(
      "Failures are memoryless, and also come during checkpoints and restarts. LOST is the share of the time that is "
      "lost.\n"
      "  freshet checkpoint interval --cost-ms 800 --mtbf-s 14400 --restart-ms 90000");
  act_with(command, program, arguments, interval);
}

}  // namespace freshet::cli
