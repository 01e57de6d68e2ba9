// SPDX-License-Identifier: Apache-2.0
#include "scheduler/planned_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "predictor/plan.h"

namespace freshet {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"fixed", "greedy", "optimal"};
constexpr std::uint64_t kWarmupMax = 1'000'000;
/// Rows that are planned for at most; after the plan's last row its longest interval goes on. (The last ones are
/// short: so near its end a plan sees no later version that a stall would delay.)
constexpr double kRowsPlannedMax = 100'000;
/// The search ends after some 10 ms; what it has found by then is near enough, and the training goes on meanwhile.
constexpr std::int64_t kLiveWorkMax = 1'000'000;

std::int64_t whole_ns(double seconds, std::int64_t least) {
  return std::max(least, static_cast<std::int64_t>(std::llround(std::min(seconds, 1e6) * 1e9)));
}

std::string describe(const Forecast& forecast) {
  const FittedCurve& curve = forecast.chosen();
  std::string text = format("{} = {}", curve.name(), curve.family->formula());
  const auto& parameters = curve.family->parameters();
  for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
    text += format(", {} = {:.6g}", parameters[i].name, curve.parameters[i]);
  }
  return text;
}

/// What a plan is made from, and what it says. Both are values, so that any thread may make it.
struct PlanRequest {
  PlannedKind kind = PlannedKind::fixed;
  std::uint64_t row = 0;  ///< After which it begins.
  Situation situation;
  std::vector<double> losses;  ///< Of the training, of the rows up to it.
  /// Of the same rows, those that were evaluated, with their losses.
  std::vector<std::pair<std::uint64_t, double>> evaluations;

  /// The losses that the plan goes by; NaN for a row without one.
  std::vector<double> losses_that_count() const {
    if (evaluations.size() < kEvaluationsLeast) return losses;
    std::vector<double> counted(losses.size(), std::nan(""));
    for (const auto& [at, loss] : evaluations) counted[at - 1] = loss;
    return counted;
  }
};

struct LivePlan {
  PublishRows rows;
  std::uint64_t last_row = 0;          ///< That was planned for.
  std::uint64_t longest_interval = 0;  ///< Rows between two publishes; 0: it has none.
  std::string curve;
  std::string note;
};

LivePlan make_live_plan(const PlanRequest& request) {
  const Situation& situation = request.situation;
  LivePlan made;
  const Timing timing{.step_ns = whole_ns(situation.step, 1),
                      .stall_ns = whole_ns(situation.stall, 0),
                      .delivery_ns = whole_ns(situation.delivery, 0),
                      .infer_ns = whole_ns(situation.interval, 1)};
  const double rows = std::clamp(std::min(situation.rows_left, situation.useful_rows()), 1.0, kRowsPlannedMax);
  // A clock counts up to 73 years; nobody plans for more than one.
  constexpr double kYearNs = 365.0 * 86400 * 1e9;
  const double requests_max =
      std::clamp(kYearNs / static_cast<double>(timing.infer_ns), 1.0, static_cast<double>(ReplayClock::kRequestsMax));
  const Horizon horizon{.warmup = static_cast<std::int64_t>(request.row),
                        .rows = static_cast<std::int64_t>(request.row) + static_cast<std::int64_t>(rows),
                        .requests = static_cast<std::int64_t>(std::clamp(situation.requests_left, 1.0, requests_max))};
  const auto clock = ReplayClock::make(timing, horizon);
  if (!clock) {
    made.note = clock.error().message();
    return made;
  }
  auto plan = plan_schedules(*clock, request.losses_that_count(), planning_options(), kLiveWorkMax);
  if (!plan) {
    made.note = plan.error().message();
    made.rows = fallback_schedule(*clock).rows;
  } else {
    made.note = plan->note;
    made.rows = std::move(request.kind == PlannedKind::fixed    ? plan->fixed.rows
                          : request.kind == PlannedKind::greedy ? plan->greedy
                                                                : plan->optimal);
    if (made.note.empty()) made.curve = describe(plan->forecast);
  }
  made.last_row = static_cast<std::uint64_t>(horizon.rows);
  std::int64_t before = horizon.warmup;
  for (const std::int64_t row : made.rows) {
    made.longest_interval = std::max(made.longest_interval, static_cast<std::uint64_t>(row - before));
    before = row;
  }
  return made;
}

class PlannedPolicy final : public Policy {
 public:
  PlannedPolicy(PlannedKind kind, std::uint64_t warmup_steps) : kind_(kind), warmup_(warmup_steps) {}

  Decision decide(const Observation& observation, const Situation& situation) override {
    ++row_;
    if (phase_ == Phase::learns) {
      losses_.push_back(observation.loss);
      if (std::isfinite(observation.eval_loss)) evaluations_.emplace_back(row_, observation.eval_loss);
      if (row_ < warmup_) return {.publish = false, .reason = "the warm-up is not over"};
      // The version at the warm-up's end tells what a stall costs, so the plan is made after it.
      if (published_row_ < warmup_ && row_ < warmup_ + kWarmupMax)
        return {.publish = true, .reason = "the warm-up is over"};
      request_ = {.kind = kind_,
                  .row = row_,
                  .situation = situation,
                  .losses = std::move(losses_),
                  .evaluations = std::move(evaluations_)};
      phase_ = Phase::wants_plan;
      planned_at_ = observation.step;
    }
    if (phase_ != Phase::follows_plan) return {.publish = false, .reason = "the plan is being made"};
    if (next_ < plan_.rows.size()) {
      if (static_cast<std::uint64_t>(plan_.rows[next_]) > row_) return {};
      return {.publish = true, .reason = "the plan says so"};
    }
    const std::uint64_t interval = plan_.longest_interval;
    if (interval == 0 || row_ <= plan_.last_row || row_ - published_row_ < interval) return {};
    return {.publish = true, .reason = "the plan is over, its longest interval is too"};
  }

  Work take_work() override {
    if (phase_ != Phase::wants_plan) return {};
    phase_ = Phase::waits_for_plan;
    return [this, request = std::move(request_)] {
      auto plan = std::make_shared<LivePlan>(make_live_plan(request));
      return [this, plan = std::move(plan)] { take_plan(std::move(*plan)); };
    };
  }

  void published(const Observation&) override {
    published_row_ = row_;
    pass_over(row_);
  }

  std::string text() const override { return std::string(kNames[static_cast<std::size_t>(kind_)]); }

  Explanation explain() const override {
    const bool is_coming = phase_ == Phase::wants_plan || phase_ == Phase::waits_for_plan;
    Explanation explanation{
        .step = planned_at_, .curve = plan_.curve, .note = is_coming ? "the plan is being made" : plan_.note};
    if (next_ < plan_.rows.size()) {
      explanation.next_in_steps = std::max(0.0, static_cast<double>(plan_.rows[next_]) - static_cast<double>(row_));
    }
    return explanation;
  }

 private:
  enum class Phase : std::uint8_t { learns, wants_plan, waits_for_plan, follows_plan };

  void take_plan(LivePlan plan) {
    plan_ = std::move(plan);
    phase_ = Phase::follows_plan;
    pass_over(published_row_);
  }

  void pass_over(std::uint64_t row) {
    while (next_ < plan_.rows.size() && static_cast<std::uint64_t>(plan_.rows[next_]) <= row) ++next_;
  }

  const PlannedKind kind_;
  const std::uint64_t warmup_;
  Phase phase_ = Phase::learns;
  std::uint64_t row_ = 0;
  std::uint64_t planned_at_ = 0;  ///< The step.
  std::vector<double> losses_;
  std::vector<std::pair<std::uint64_t, double>> evaluations_;
  PlanRequest request_;
  LivePlan plan_;
  std::size_t next_ = 0;
  std::uint64_t published_row_ = 0;  ///< Of the last publish; 0: none.
};

}  // namespace

std::optional<PlannedKind> planned_kind(std::string_view text) {
  const auto name = std::find(kNames.begin(), kNames.end(), text);
  if (name == kNames.end()) return std::nullopt;
  return static_cast<PlannedKind>(name - kNames.begin());
}

Result<std::unique_ptr<Policy>> planned_policy(PlannedKind kind, std::uint64_t warmup_steps) {
  if (warmup_steps == 0 || warmup_steps > kWarmupMax) {
    return fail(Code::invalid_argument,
                format("a warm-up of {} steps: a planned schedule needs 1 to {}", warmup_steps, kWarmupMax));
  }
  return std::make_unique<PlannedPolicy>(kind, warmup_steps);
}

}  // namespace freshet
