// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/cases.h"

#include <cmath>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::int64_t kStepNs = 10'000'000;
constexpr std::int64_t kInferNs = 3'100'000;  // Not a divisor of the step: requests fall everywhere in it.
constexpr std::int64_t kWarmupShare = 10;
constexpr std::int64_t kEpochs = 16;

std::int64_t steps_ns(double steps) { return std::llround(steps * static_cast<double>(kStepNs)); }

}  // namespace

Result<Case> make_case(const LearningCurve& curve, Group group, const Price& price) {
  const auto rows = static_cast<std::int64_t>(curve.loss.size());
  const std::int64_t warmup = rows / kWarmupShare;
  const std::int64_t epoch_rows = (rows - warmup) / kEpochs;
  const Timing timing{.step_ns = kStepNs,
                      .stall_ns = steps_ns(price.stall_steps),
                      .delivery_ns = steps_ns(price.delivery_steps),
                      .infer_ns = kInferNs};
  const std::int64_t span = (rows - warmup) * kStepNs + kEpochs * timing.stall_ns + timing.delivery_ns;
  const Horizon horizon{.warmup = warmup, .rows = rows, .requests = span / kInferNs};
  FRESHET_ASSIGN(const ReplayClock clock, ReplayClock::make(timing, horizon));
  return Case{.name = format("{} {}", curve.name, price.name),
              .group = group,
              .overfits = curve.name.find("overfit") != std::string::npos,
              .loss = curve.loss,
              .trend = trend_of(curve.eval_loss, kTrendRows),
              .clock = clock,
              .epoch_rows = epoch_rows};
}

Result<std::vector<Case>> make_cases(const std::vector<LearningCurve>& recorded,
                                     const std::vector<LearningCurve>& synthetic) {
  std::vector<Case> cases;
  const auto add = [&cases](const LearningCurve& curve, Group group) -> Status {
    for (const Price& price : {kCheap, kDear}) {
      FRESHET_ASSIGN(Case found, make_case(curve, group, price));
      cases.push_back(std::move(found));
    }
    return {};
  };
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    FRESHET_TRY(add(recorded[i], i % 2 == 0 ? Group::tuned_on : Group::held_back));
  }
  for (const LearningCurve& curve : synthetic) FRESHET_TRY(add(curve, Group::synthetic));
  return cases;
}

}  // namespace freshet::benchmarks
