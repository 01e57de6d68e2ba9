// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/format.h"
#include "core/words/number.h"
#include "scheduler/failure_policy.h"
#include "scheduler/online/online_policy.h"
#include "scheduler/planned_policy.h"

namespace freshet {
namespace {

class EverySteps final : public Policy {
 public:
  explicit EverySteps(std::uint64_t steps) : steps_(steps) {}

  Decision decide(const Observation& observation, const Situation&) override {
    if (observation.step < last_step_) last_step_ = observation.step;
    if (observation.step - last_step_ < steps_) return {};
    return {.publish = true, .reason = "the interval is over"};
  }
  void published(const Observation& observation) override { last_step_ = observation.step; }
  std::string text() const override { return format("every:{}", steps_); }

 private:
  const std::uint64_t steps_;
  std::uint64_t last_step_ = 0;
};

class EpochEnd final : public Policy {
 public:
  Decision decide(const Observation& observation, const Situation&) override {
    due_ = due_ || observation.epoch_end;
    if (!due_) return {};
    return {.publish = true, .reason = "the epoch ended"};
  }
  void published(const Observation&) override { due_ = false; }
  std::string text() const override { return "epoch"; }

 private:
  bool due_ = false;
};

/// One policy learns the training losses and one the evaluations, all the time, so that either may decide at once.
class Online final : public Policy {
 public:
  Decision decide(const Observation& observation, const Situation& situation) override {
    ++steps_;
    training_.learn(observation.loss);
    const bool is_evaluated = std::isfinite(observation.eval_loss);
    if (is_evaluated) learn_evaluation(observation.eval_loss);
    if (!evaluations_decide()) return weigh(training_, observation, situation, 1);
    if (!is_evaluated) return {};
    // An evaluation is a row of the policy's, which comes after as many steps as they usually do.
    Situation by_rows = situation;
    by_rows.step *= usual_steps();
    by_rows.rows_left /= usual_steps();
    return weigh(evaluations_, observation, by_rows, usual_steps());
  }
  void published(const Observation&) override {
    training_.published();
    evaluations_.published();
  }
  std::string text() const override { return "online"; }
  bool wants_first_version() const override { return true; }

  Explanation explain() const override {
    const OnlinePolicy& policy = *weighed_by_;
    const OnlineVerdict& last = policy.last();
    return {.step = weighed_at_,
            .curve = policy.outlook().text(),
            .served_loss = last.served_loss,
            .present_loss = last.present_loss,
            .gain = last.gain,
            .stall_cost = last.stall_cost,
            .next_in_steps = last.next_in_rows * weighed_rows_,
            .note = {}};
  }

 private:
  static constexpr std::uint64_t kIntervals = kEvaluationsLeast;  ///< The newest, whose mean is the usual one.
  static constexpr double kIntervalsMissed = 4;

  void learn_evaluation(double loss) {
    evaluations_.learn(loss);
    at_[count_ % at_.size()] = steps_;
    ++count_;
  }
  std::uint64_t last_at() const { return at_[(count_ - 1) % at_.size()]; }
  /// Steps between two evaluations; from two evaluations on.
  double usual_steps() const {
    const std::uint64_t intervals = std::min(count_ - 1, kIntervals);
    const std::uint64_t first_at = at_[(count_ - 1 - intervals) % at_.size()];
    return static_cast<double>(last_at() - first_at) / static_cast<double>(intervals);
  }
  bool evaluations_decide() const {
    return count_ >= kEvaluationsLeast && static_cast<double>(steps_ - last_at()) <= kIntervalsMissed * usual_steps();
  }

  Decision weigh(OnlinePolicy& policy, const Observation& observation, const Situation& situation, double row_steps) {
    const bool publish = policy.decide(situation);
    if (policy.last().row == policy.row()) {
      weighed_by_ = &policy;
      weighed_at_ = observation.step;
      weighed_rows_ = row_steps;
    }
    return {.publish = publish, .reason = policy.last().reason};
  }

  OnlinePolicy training_;
  OnlinePolicy evaluations_;  ///< Its rows are the evaluations.
  std::uint64_t steps_ = 0;
  std::uint64_t count_ = 0;                         ///< Of evaluations.
  std::array<std::uint64_t, kIntervals + 1> at_{};  ///< The newest evaluations' steps_.
  const OnlinePolicy* weighed_by_ = &training_;
  std::uint64_t weighed_at_ = 0;
  double weighed_rows_ = 1;  ///< Steps of one of its rows.
};

}  // namespace

Result<std::unique_ptr<Policy>> parse_policy(std::string_view text, std::uint64_t warmup_steps) {
  if (text == "online") return std::make_unique<Online>();
  if (text == "epoch") return std::make_unique<EpochEnd>();
  if (const auto kind = planned_kind(text)) return planned_policy(*kind, warmup_steps);
  if (text.starts_with(kFailurePrefix)) return parse_failure_policy(text);
  constexpr std::string_view kEvery = "every:";
  if (text.starts_with(kEvery)) {
    const std::uint64_t steps = number_in<std::uint64_t>(text.substr(kEvery.size())).value_or(0);
    if (steps > 0) return std::make_unique<EverySteps>(steps);
    return fail(Code::invalid_argument, format("schedule {}: N in every:N is a number of steps from 1", text));
  }
  return fail(Code::invalid_argument,
              format("schedule {}: known are online, every:N, epoch, fixed, greedy, optimal and failures:MTBF", text));
}

}  // namespace freshet
