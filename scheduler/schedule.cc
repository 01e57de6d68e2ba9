// SPDX-License-Identifier: Apache-2.0
#include "scheduler/schedule.h"

#include "core/base/check.h"
#include "scheduler/online/online_policy.h"

namespace freshet {
namespace {

class OnlineSchedule final : public Schedule {
 public:
  explicit OnlineSchedule(const ReplayClock& clock) : clock_(clock) {}

  bool decide(std::int64_t row, double loss) override {
    policy_.learn(loss);
    if (row < clock_.horizon().warmup) return false;
    if (row == clock_.horizon().warmup) {
      policy_.published();
      return false;
    }
    if (!policy_.decide(situation(row))) return false;
    policy_.published();
    ++publishes_;
    return true;
  }

 private:
  Situation situation(std::int64_t row) const {
    const Timing& timing = clock_.timing();
    const Horizon& horizon = clock_.horizon();
    const std::int64_t now = clock_.served_at(row, publishes_) - timing.delivery_ns;
    return {.step = static_cast<double>(timing.step_ns),
            .stall = static_cast<double>(timing.stall_ns),
            .delivery = static_cast<double>(timing.delivery_ns),
            .interval = static_cast<double>(timing.infer_ns),
            .rows_left = static_cast<double>(horizon.rows - row),
            .requests_left = static_cast<double>(horizon.requests - clock_.requests_before(now))};
  }

  const ReplayClock clock_;
  OnlinePolicy policy_;
  std::int64_t publishes_ = 0;
};

}  // namespace

std::unique_ptr<Schedule> online_schedule(const ReplayClock& clock) { return std::make_unique<OnlineSchedule>(clock); }

PublishRows publishes_of(Schedule& schedule, const ReplayClock& clock, std::span<const double> losses) {
  const Horizon& horizon = clock.horizon();
  FRESHET_CHECK(static_cast<std::int64_t>(losses.size()) == horizon.rows);
  PublishRows rows;
  for (std::int64_t row = 1; row <= horizon.rows; ++row) {
    if (schedule.decide(row, losses[static_cast<std::size_t>(row - 1)]) && row > horizon.warmup) rows.push_back(row);
  }
  return rows;
}

}  // namespace freshet
