// SPDX-License-Identifier: Apache-2.0
#include "predictor/optimal/candidates.h"

#include <cmath>

#include "core/base/format.h"

namespace freshet::optimal {

Result<Candidates> Candidates::make(const ReplayClock& clock, std::span<const double> costs, PlanStart start) {
  const Horizon& horizon = clock.horizon();
  const Timing& timing = clock.timing();
  if (start.row == 0) start.row = horizon.warmup;
  if (start.row < horizon.warmup || start.row > horizon.rows) {
    return fail(Code::invalid_argument,
                format("plan from row {}: must be from {} to {}", start.row, horizon.warmup, horizon.rows));
  }
  if (start.published < 0 || start.published > start.row - horizon.warmup) {
    return fail(Code::invalid_argument,
                format("plan from row {} after {} publishes: more than there were rows, or less than none", start.row,
                       start.published));
  }
  if (static_cast<std::int64_t>(costs.size()) != horizon.rows - start.row + 1) {
    return fail(Code::invalid_argument, format("{} costs for rows {} to {}", costs.size(), start.row, horizon.rows));
  }
  Candidates made;
  made.requests_ = horizon.requests;
  made.infer_ns_ = timing.infer_ns;
  made.stall_ns_ = timing.stall_ns;
  made.delay_ns_ = timing.delivery_ns + start.published * timing.stall_ns;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const std::int64_t row = start.row + static_cast<std::int64_t>(i);
    if (!std::isfinite(costs[i])) return fail(Code::invalid_argument, format("the cost of row {} is not finite", row));
    if (i > 0 && costs[i] >= made.costs_.back()) continue;
    const std::int64_t served = clock.served_at(row, start.published + 1);
    if (i > 0 && clock.requests_before(served) >= horizon.requests) continue;
    const std::int64_t reached = (row - horizon.warmup) * timing.step_ns - 1;
    made.rows_.push_back(row);
    made.costs_.push_back(costs[i]);
    made.wholes_.push_back(reached / timing.infer_ns);
    made.rests_.push_back(reached % timing.infer_ns);
  }
  const double lowest = made.costs_.back();
  for (double& cost : made.costs_) cost -= lowest;
  if (!std::isfinite(made.costs_.front() * made.requests())) {
    return fail(Code::invalid_argument, "the costs times the requests are not finite");
  }
  return made;
}

Delay Candidates::delay(std::int64_t k) const {
  const std::int64_t ns = delay_ns_ + k * stall_ns_;
  return {.whole = ns / infer_ns_, .rest = ns % infer_ns_};
}

double Candidates::moment(std::size_t i) const {
  const auto interval = static_cast<double>(infer_ns_);
  return static_cast<double>(wholes_[i]) + static_cast<double>(rests_[i] + 1) / interval +
         static_cast<double>(delay_ns_) / interval;
}

double Candidates::total(std::span<const std::uint32_t> chosen) const {
  double sum = 0;
  double served = cost(0);
  std::int64_t k = 0;
  for (const std::uint32_t i : chosen) {
    sum += before(i, delay(++k)) * (served - cost(i));
    served = cost(i);
  }
  return sum + requests() * served;
}

PublishRows Candidates::rows_of(std::span<const std::uint32_t> chosen) const {
  PublishRows rows;
  rows.reserve(chosen.size());
  for (const std::uint32_t i : chosen) rows.push_back(row(i));
  return rows;
}

}  // namespace freshet::optimal
