// SPDX-License-Identifier: Apache-2.0
#include "scheduler/planned_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
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
/// The training waits for the search, so it must end after some 10 ms; what it has found by then is near enough.
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

class PlannedPolicy final : public Policy {
 public:
  PlannedPolicy(PlannedKind kind, std::uint64_t warmup_steps) : kind_(kind), warmup_(warmup_steps) {}

  Decision decide(const Observation& observation, const Situation& situation) override {
    ++row_;
    if (!planned_) {
      losses_.push_back(observation.loss);
      if (row_ < warmup_) return {.publish = false, .reason = "the warm-up is not over"};
      // The version at the warm-up's end tells what a stall costs, so the plan is made after it.
      if (published_row_ < warmup_ && row_ < warmup_ + kWarmupMax)
        return {.publish = true, .reason = "the warm-up is over"};
      plan(situation);
      planned_at_ = observation.step;
    }
    if (next_ < rows_.size()) {
      if (static_cast<std::uint64_t>(rows_[next_]) > row_) return {};
      return {.publish = true, .reason = "the plan says so"};
    }
    if (longest_interval_ == 0 || row_ <= last_planned_ || row_ - published_row_ < longest_interval_) return {};
    return {.publish = true, .reason = "the plan is over, its longest interval is too"};
  }

  void published(const Observation&) override {
    published_row_ = row_;
    while (next_ < rows_.size() && static_cast<std::uint64_t>(rows_[next_]) <= row_) ++next_;
  }

  std::string text() const override { return std::string(kNames[static_cast<std::size_t>(kind_)]); }

  Explanation explain() const override {
    Explanation explanation{.step = planned_at_, .curve = curve_, .note = note_};
    if (next_ < rows_.size()) {
      explanation.next_in_steps = std::max(0.0, static_cast<double>(rows_[next_]) - static_cast<double>(row_));
    }
    return explanation;
  }

 private:
  void plan(const Situation& situation) {
    planned_ = true;
    const Timing timing{.step_ns = whole_ns(situation.step, 1),
                        .stall_ns = whole_ns(situation.stall, 0),
                        .delivery_ns = whole_ns(situation.delivery, 0),
                        .infer_ns = whole_ns(situation.interval, 1)};
    const double rows = std::clamp(std::min(situation.rows_left, situation.useful_rows()), 1.0, kRowsPlannedMax);
    // A clock counts up to 73 years; nobody plans for more than one.
    constexpr double kYearNs = 365.0 * 86400 * 1e9;
    const double requests_max =
        std::clamp(kYearNs / static_cast<double>(timing.infer_ns), 1.0, static_cast<double>(ReplayClock::kRequestsMax));
    const Horizon horizon{
        .warmup = static_cast<std::int64_t>(row_),
        .rows = static_cast<std::int64_t>(row_) + static_cast<std::int64_t>(rows),
        .requests = static_cast<std::int64_t>(std::clamp(situation.requests_left, 1.0, requests_max))};
    const auto clock = ReplayClock::make(timing, horizon);
    if (!clock) {
      note_ = clock.error().message();
      return;
    }
    auto plan = plan_schedules(*clock, losses_, planning_options(), kLiveWorkMax);
    losses_ = {};
    if (!plan) {
      note_ = plan.error().message();
      rows_ = fallback_schedule(*clock).rows;
    } else {
      note_ = plan->note;
      rows_ = std::move(kind_ == PlannedKind::fixed    ? plan->fixed.rows
                        : kind_ == PlannedKind::greedy ? plan->greedy
                                                       : plan->optimal);
      if (note_.empty()) curve_ = describe(plan->forecast);
    }
    last_planned_ = static_cast<std::uint64_t>(horizon.rows);
    std::int64_t before = horizon.warmup;
    for (const std::int64_t row : rows_) {
      longest_interval_ = std::max(longest_interval_, static_cast<std::uint64_t>(row - before));
      before = row;
    }
  }

  const PlannedKind kind_;
  const std::uint64_t warmup_;
  std::uint64_t row_ = 0;
  bool planned_ = false;
  std::uint64_t planned_at_ = 0;
  std::vector<double> losses_;
  PublishRows rows_;
  std::size_t next_ = 0;
  std::uint64_t published_row_ = 0;     ///< Of the last publish; 0: none.
  std::uint64_t last_planned_ = 0;      ///< Row.
  std::uint64_t longest_interval_ = 0;  ///< Rows between two publishes of the plan; 0: it has none.
  std::string curve_;
  std::string note_;
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
