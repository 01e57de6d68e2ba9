// SPDX-License-Identifier: Apache-2.0
#include "scheduler/schedule.h"

#include <utility>

#include "core/base/check.h"

namespace freshet {
namespace {

class PlannedSchedule final : public Schedule {
 public:
  explicit PlannedSchedule(PublishRows rows) : rows_(std::move(rows)) {}

  bool decide(std::int64_t row, double) override {
    while (next_ < rows_.size() && rows_[next_] < row) ++next_;
    return next_ < rows_.size() && rows_[next_] == row;
  }

 private:
  const PublishRows rows_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Schedule> planned_schedule(PublishRows rows) {
  return std::make_unique<PlannedSchedule>(std::move(rows));
}

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
