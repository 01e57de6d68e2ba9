// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler_machine.h"

#include <algorithm>
#include <cmath>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr double kRateUnknown = 1000;  ///< Requests a second; any will do, since only ratios matter then.
constexpr double kStepUnknown = 0.01;  ///< Seconds; used for the first iteration alone.
/// Where nobody says how long a run goes on, it is expected to go on as long as it did, and at least this many steps,
/// or to the training's last step where that is known.
constexpr double kStepsToComeLeast = 200;

Duration duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, 1e9)));
}

Status check(const SchedulerOptions& options) {
  const SchedulerLimits& limits = options.limits;
  const auto bad = [](std::string_view what) { return fail(Code::invalid_argument, format("scheduler: {}", what)); };
  if (!(limits.requests_per_second >= 0) || !std::isfinite(limits.requests_per_second)) {
    return bad("requests_per_second must be a number from 0");
  }
  if (limits.inferences > 0 && limits.requests_per_second <= 0) return bad("inferences need requests_per_second");
  if (limits.serving && *limits.serving <= Duration::zero()) return bad("the time of serving must lie in the future");
  if (!(limits.overhead_percent >= 0)) return bad("overhead_percent must be a number from 0");
  if (limits.interval_steps_most > 0 && limits.interval_steps_most < limits.interval_steps_least) {
    return bad("the longest interval is shorter than the shortest");
  }
  if (options.stall_expected < Duration::zero()) return bad("stall_expected is negative");
  if (options.delivery_expected < Duration::zero()) return bad("delivery_expected is negative");
  return {};
}

}  // namespace

Result<ScheduleMachine> ScheduleMachine::make(const SchedulerOptions& options) {
  FRESHET_TRY(check(options));
  FRESHET_ASSIGN(auto policy, parse_policy(options.schedule, options.warmup_steps));
  return ScheduleMachine(options, std::move(policy));
}

void ScheduleMachine::measure_step(Time at) {
  if (!last_) return;
  const double spent = std::max(0.0, seconds(at - last_->at) - stalled_since_last_);
  stalled_since_last_ = 0;
  trained_ += spent;
  step_.add(spent);
}

double ScheduleMachine::serving_left(const Observation& observation) const {
  const SchedulerLimits& limits = options_.limits;
  const double since = serving_since_ ? std::max(0.0, seconds(observation.at - *serving_since_)) : 0;
  const double step = step_.value().value_or(kStepUnknown);
  double left = std::max(trained_ + stalled_, kStepsToComeLeast * step);
  if (limits.steps > observation.step)
    left = std::max(left, static_cast<double>(limits.steps - observation.step) * step);
  if (limits.serving || limits.inferences > 0) left = 1e12;
  if (limits.serving) left = std::min(left, seconds(*limits.serving) - since);
  if (limits.inferences > 0) {
    left = std::min(left, static_cast<double>(limits.inferences) / limits.requests_per_second - since);
  }
  return std::max(left, 0.0);
}

Situation ScheduleMachine::situation(const Observation& observation) const {
  const SchedulerLimits& limits = options_.limits;
  const double rate = limits.requests_per_second > 0 ? limits.requests_per_second : kRateUnknown;
  const double left = serving_left(observation);
  Situation now{.step = std::max(step_.value().value_or(kStepUnknown), 1e-9),
                .stall = stall_.value().value_or(seconds(options_.stall_expected)),
                .delivery = delivery_.value().value_or(seconds(options_.delivery_expected)),
                .interval = 1 / rate,
                .rows_left = 0,
                .requests_left = std::floor(left * rate)};
  now.rows_left = std::ceil(left / now.step);
  if (limits.steps > 0) {
    const double to_come = static_cast<double>(limits.steps) - static_cast<double>(observation.step);
    now.rows_left = std::clamp(to_come, 0.0, now.rows_left);
  }
  return now;
}

/// Why a publish that the policy wants must wait; empty when it need not.
std::string_view ScheduleMachine::objection() const {
  const SchedulerLimits& limits = options_.limits;
  const std::uint64_t since = observations_ - published_observation_;
  if (publishes_ > 0 && since < limits.interval_steps_least) return "the shortest interval is not over";
  const double stall = stall_.value().value_or(seconds(options_.stall_expected));
  if ((stalled_ + stall) * 100 > limits.overhead_percent * trained_) return "stalls would take more than their share";
  const double busy = persist_.value().value_or(0);
  if (publishes_ > 0 && serving_since_ && static_cast<double>(since) * step_.value().value_or(0) < busy) {
    return "the repository is busy with the last version";
  }
  return "";
}

bool ScheduleMachine::answer(bool publish, std::string_view reason) {
  answer_ = publish;
  if (!reason.empty()) reason_ = reason;
  return publish;
}

bool ScheduleMachine::observe(const Observation& observed) {
  Observation observation = observed;
  if (options_.epoch_steps > 0 && observation.step % options_.epoch_steps == 0) observation.epoch_end = true;
  measure_step(observation.at);
  last_ = observation;
  ++observations_;
  const Decision decision = policy_->decide(observation, situation(observation));
  if (publishes_ == 0 && policy_->wants_first_version()) {
    const bool warm = observations_ >= options_.warmup_steps;
    return answer(warm, warm ? "nothing is served yet" : "the warm-up is not over");
  }
  const std::uint64_t since = observations_ - published_observation_;
  const std::uint64_t most = options_.limits.interval_steps_most;
  const bool overdue = most > 0 && since >= most;
  if (!decision.publish && !overdue) return answer(false, decision.reason);
  const std::string_view reason = decision.publish ? decision.reason : "the longest interval is over";
  const std::string_view against = objection();
  if (!against.empty()) return answer(false, against);
  return answer(true, reason);
}

void ScheduleMachine::published(Time at, Duration stall) {
  const double stopped = std::max(0.0, seconds(stall));
  if (last_) {
    stall_.add(stopped);
    stalled_ += stopped;
    stalled_since_last_ += stopped;
  }
  if (!serving_since_) serving_since_ = at;
  ++publishes_;
  published_step_ = last_ ? last_->step : 0;
  published_observation_ = observations_;
  policy_->published(last_.value_or(Observation{.at = at}));
}

SchedulerDecision ScheduleMachine::last_decision() const {
  return {.step = last_ ? last_->step : 0,
          .publish = answer_,
          .reason = std::string(reason_),
          .schedule = policy_->text(),
          .explanation = policy_->explain(),
          .last_publish_step = published_step_,
          .publishes = publishes_,
          .step_time = duration(step_.value().value_or(0)),
          .stall_time = duration(stall_.value().value_or(seconds(options_.stall_expected))),
          .delivery_time = duration(delivery_.value().value_or(seconds(options_.delivery_expected))),
          .persist_time = duration(persist_.value().value_or(0)),
          .overhead_percent = trained_ > 0 ? stalled_ / trained_ * 100 : 0};
}

std::string SchedulerDecision::text() const {
  std::string line = format("step {}: {} ({}): {}", step, publish ? "publish" : "go on", schedule, reason);
  if (explanation.step > 0) {
    line +=
        format("; weighed at step {}: served {:.6g}, present {:.6g}, gain {:.6g}, stall costs {:.6g}", explanation.step,
               explanation.served_loss, explanation.present_loss, explanation.gain, explanation.stall_cost);
  }
  if (!explanation.curve.empty()) line += format("; curve {}", explanation.curve);
  if (!explanation.note.empty()) line += format("; {}", explanation.note);
  return line;
}

}  // namespace freshet
