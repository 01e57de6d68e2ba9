// SPDX-License-Identifier: Apache-2.0
// `freshet plan`: when to publish, from the losses of a warm-up; and how schedules would have done in a run that is
// over.

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/plan/loss_table.h"
#include "bindings/cli/plan/policies.h"
#include "bindings/cli/plan/report.h"
#include "core/base/format.h"
#include "predictor/plan.h"

namespace freshet::cli {
namespace {

constexpr const char* kEvalLoss = "eval_loss";

struct PlanArguments {
  std::string file;
  std::string step_ms;
  std::string stall_ms;
  std::string delivery_ms;
  std::string infer_ms;
  std::int64_t warmup = 0;
  std::int64_t inferences = 0;
  std::int64_t epoch_steps = 0;
  std::int64_t steps = 0;
  bool replay = false;
  std::string decide_on = "loss";
  LossColumnNames columns;
};

/// Checks a time, and says which option has it wrong.
CLI::Validator time_check(bool may_be_zero) {
  return CLI::Validator(
      [may_be_zero](std::string& text) {
        const Result<std::int64_t> ns = nanoseconds_of_ms(text);
        if (!ns) return ns.error().message();
        if (*ns < 0) return text + " ms: must not be negative";
        return *ns == 0 && !may_be_zero ? text + " ms: must be at least a nanosecond" : std::string();
      },
      "", "ms");
}

/// REQUIRES: time_check() passed.
std::int64_t ns_of(const std::string& text) { return nanoseconds_of_ms(text).value_or(0); }

Timing timing_of(const PlanArguments& arguments) {
  return {.step_ns = ns_of(arguments.step_ms),
          .stall_ns = ns_of(arguments.stall_ms),
          .delivery_ns = ns_of(arguments.delivery_ms),
          .infer_ns = ns_of(arguments.infer_ms)};
}

/// The last row: as given, the file's last one in a replay, or the last whose version could still be served.
Result<std::int64_t> last_row(const PlanArguments& arguments, const LossTable& table, const Timing& timing) {
  if (arguments.replay) {
    if (arguments.steps != 0 && arguments.steps != table.rows()) {
      return fail(Code::invalid_argument, format("--steps {}: {} has {} rows, and a replay takes the whole run",
                                                 arguments.steps, arguments.file, table.rows()));
    }
    return table.rows();
  }
  if (arguments.steps != 0) return arguments.steps;
  const __int128 end = static_cast<__int128>(arguments.inferences) * timing.infer_ns;
  const __int128 steps = end / timing.step_ns + 1;
  if (steps > ReplayClock::kRowsMax - arguments.warmup) {
    return fail(
        Code::invalid_argument,
        format("the inferences outlast {} steps: name the training's last row with --steps", ReplayClock::kRowsMax));
  }
  return arguments.warmup + static_cast<std::int64_t>(steps);
}

Result<ExitCode> plan(Program& program, const PlanArguments& arguments) {
  FRESHET_ASSIGN(const LossTable table, read_loss_table(arguments.file, arguments.columns));
  for (const std::string& note : table.notes) program.out.log(format("{}: {}", arguments.file, note));
  const std::int64_t rows_needed = arguments.warmup + (arguments.replay ? 1 : 0);
  if (table.rows() < rows_needed) {
    return fail(Code::invalid_argument, format("--warmup {}: {} has {} rows, at least {} are needed", arguments.warmup,
                                               arguments.file, table.rows(), rows_needed));
  }
  const Timing timing = timing_of(arguments);
  FRESHET_ASSIGN(const std::int64_t rows, last_row(arguments, table, timing));
  FRESHET_ASSIGN(
      const ReplayClock clock,
      ReplayClock::make(timing, {.warmup = arguments.warmup, .rows = rows, .requests = arguments.inferences}));
  if (arguments.decide_on == kEvalLoss && !table.has_eval_losses) {
    return fail(Code::invalid_argument, format("--decide-on {}: {} has no column {}; name one with --eval-column",
                                               kEvalLoss, arguments.file, kEvalLoss));
  }
  const std::span<const double> losses = arguments.decide_on == kEvalLoss ? table.costs : table.losses;
  const auto warmup_losses = losses.first(static_cast<std::size_t>(arguments.warmup));
  const auto is_finite = [](double loss) { return std::isfinite(loss); };
  if (!arguments.replay && std::ranges::none_of(warmup_losses, is_finite)) {
    return fail(Code::invalid_argument,
                format("--warmup {}: {} has no loss in these rows", arguments.warmup, arguments.file));
  }
  FRESHET_ASSIGN(const Plan planned, plan_schedules(clock, warmup_losses));
  if (planned.scale != 1) {
    program.out.log(
        format("all losses are beyond what a curve is fitted to: the curve is of losses times {:.3g}", planned.scale));
  }
  if (!planned.note.empty()) {
    program.out.log(format("nothing to plan with ({}): fixed, greedy and optimal are every {} steps", planned.note,
                           planned.fixed.interval));
  }
  FRESHET_ASSIGN(const Contenders contenders,
                 arguments.replay ? replayed_contenders(clock, planned, arguments.epoch_steps, table, losses)
                                  : predicted_contenders(clock, planned, arguments.epoch_steps));
  for (const Contender& contender : contenders) {
    if (!contender.judged || contender.judged->exact) continue;
    program.out.log(format("{}: the search was cut off, a slightly better list may exist", contender.name));
  }
  const std::span<const double> replayed_costs =
      std::span(table.costs).subspan(static_cast<std::size_t>(std::min(arguments.warmup, table.rows())));
  if (arguments.replay && !table.has_eval_losses && is_noisy(replayed_costs)) {
    program.out.log(
        "the losses of single rows are noisy, and there is no eval_loss: oracle picks lucky rows, and no schedule can "
        "reach its sum; compare the other schedules with each other");
  }
  const Report report{
      .clock = clock, .table = table, .plan = planned, .contenders = contenders, .replay = arguments.replay};
  FRESHET_TRY(program.out.emit(json_of(report), program.out.json ? std::string() : text_of(report)));
  return ExitCode::done;
}

void add_times(CLI::App& command, PlanArguments& arguments) {
  const auto add = [&](const char* name, std::string& value, bool may_be_zero, const char* description) {
    command.add_option(name, value, description)->required()->check(time_check(may_be_zero))->type_name("MS");
  };
  add("--step-ms", arguments.step_ms, false, "duration of a training step");
  add("--stall-ms", arguments.stall_ms, true, "how long a publish stops the training");
  add("--delivery-ms", arguments.delivery_ms, true, "time from the end of the stall until the version is served");
  add("--infer-ms", arguments.infer_ms, false, "time between two inferences");
}

}  // namespace

void add_plan(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App& command = *root.add_subcommand("plan", "plan publishes: schedules and their costs");
  add_json_flag(command, program);
  const auto count = [&](const char* name, std::int64_t& value, const char* description) {
    return command.add_option(name, value, description)->transform(positive_check())->type_name("N");
  };
  command
      .add_option("LOSSES", arguments->file,
                  "CSV with step,loss and, for --replay, eval_loss; or a log of Keras, Lightning, Hugging Face, W&B")
      ->required();
  count("--warmup", arguments->warmup, "number of rows to learn from; the version of the last row is served first")
      ->required();
  add_times(command, *arguments);
  count("--inferences", arguments->inferences, "number of inferences from the end of the warm-up on")->required();
  count("--epoch-steps", arguments->epoch_steps, "steps of an epoch, to compare with publishing at its end");
  count("--steps", arguments->steps, "the training's last row; default: as long as there are inferences");
  CLI::Option* const replay = command.add_flag(
      "--replay", arguments->replay, "the file has the whole run: compute each schedule's cost from its losses");
  command
      .add_option("--decide-on", arguments->decide_on,
                  "the losses that fixed, greedy, optimal and online see: loss (default) or eval_loss")
      ->check(CLI::IsMember({"loss", kEvalLoss}))
      ->type_name("COLUMN")
      ->needs(replay);
  const auto column = [&](const char* name, std::string& value, const char* description) {
    command.add_option(name, value, description)->type_name("COLUMN");
  };
  column("--step-column", arguments->columns.step, "the column that is the step; default: by its name");
  column("--loss-column", arguments->columns.loss, "the column that is the loss; default: by its name");
  column("--eval-column", arguments->columns.eval_loss, "the column that is the held-out loss; default: by its name");
  command.footer(
      "Times are decimal milliseconds. Rows count from 1 in the file's order, each is a step.\n"
      "example: freshet plan losses.csv --warmup 500 --step-ms 12.5 --stall-ms 40 --delivery-ms 90 --infer-ms 5 "
      "--inferences 50000 --steps 20000");
  act_with(command, program, arguments, plan);
  command.parse_complete_callback([arguments] {
    if (arguments->steps != 0 && arguments->steps <= arguments->warmup) {
      throw CLI::ValidationError(
          format("--steps: {} is not after the warm-up's last row, {}", arguments->steps, arguments->warmup));
    }
  });
}

}  // namespace freshet::cli
