// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policy.h"

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

class Online final : public Policy {
 public:
  Decision decide(const Observation& observation, const Situation& situation) override {
    if (by_evaluations_) return decide_by_evaluations(observation, situation);
    policy_.learn(observation.loss);
    return weigh(observation, situation);
  }
  void published(const Observation&) override {
    policy_.published();
    any_published_ = true;
  }
  std::string text() const override { return "online"; }
  bool wants_first_version() const override { return true; }
  void forget_losses() override {
    policy_ = OnlinePolicy();
    if (any_published_) policy_.published();
    by_evaluations_ = true;
  }

  Explanation explain() const override {
    const OnlineVerdict& last = policy_.last();
    return {.step = weighed_at_,
            .curve = policy_.outlook().text(),
            .served_loss = last.served_loss,
            .present_loss = last.present_loss,
            .gain = last.gain,
            .stall_cost = last.stall_cost,
            .next_in_steps = last.next_in_rows * steps_each_,
            .note = {}};
  }

 private:
  Decision weigh(const Observation& observation, const Situation& situation) {
    const bool publish = policy_.decide(situation);
    if (policy_.last().row == policy_.row()) weighed_at_ = observation.step;
    return {.publish = publish, .reason = policy_.last().reason};
  }

  /// An evaluation is a row of the policy's, which comes after as many steps as they came on average. Between two of
  /// them nothing is learnt and nothing is published.
  Decision decide_by_evaluations(const Observation& observation, const Situation& situation) {
    ++steps_;
    if (!std::isfinite(observation.loss)) return {};
    if (evaluations_++ == 0) first_at_ = steps_;
    policy_.learn(observation.loss);
    if (evaluations_ < 2) return {};
    steps_each_ = static_cast<double>(steps_ - first_at_) / static_cast<double>(evaluations_ - 1);
    Situation by_rows = situation;
    by_rows.step *= steps_each_;
    by_rows.rows_left /= steps_each_;
    return weigh(observation, by_rows);
  }

  OnlinePolicy policy_;
  bool any_published_ = false;
  bool by_evaluations_ = false;
  std::uint64_t steps_ = 0;  ///< Since evaluations decide; so are the next two.
  std::uint64_t first_at_ = 0;
  std::uint64_t evaluations_ = 0;
  double steps_each_ = 1;
  std::uint64_t weighed_at_ = 0;
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
