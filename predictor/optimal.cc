// SPDX-License-Identifier: Apache-2.0
#include "predictor/optimal.h"

#include "predictor/optimal/candidates.h"
#include "predictor/optimal/layers.h"

namespace freshet {
namespace {

/// Where stalls cost nothing the number of a publish is of no matter, and every candidate is worth one, unless the next
/// one is served at the same request.
std::vector<std::uint32_t> choice_without_stalls(const optimal::Candidates& candidates) {
  const optimal::Delay delay = candidates.delay(1);
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = 1; i < candidates.size(); ++i) {
    const bool last = i + 1 == candidates.size();
    if (last || candidates.before(i, delay) < candidates.before(i + 1, delay)) chosen.push_back(i);
  }
  return chosen;
}

}  // namespace

Result<OptimalSchedule> optimal_schedule(const ReplayClock& clock, std::span<const double> costs, PlanStart start,
                                         std::int64_t work_max) {
  FRESHET_ASSIGN(const auto candidates, optimal::Candidates::make(clock, costs, start));
  if (clock.timing().stall_ns == 0) {
    return OptimalSchedule{.rows = candidates.rows_of(choice_without_stalls(candidates)),
                           .work = static_cast<std::int64_t>(candidates.size())};
  }
  optimal::LayeredSearch search(candidates, optimal::relaxed_choice(candidates), work_max);
  OptimalSchedule schedule{.rows = candidates.rows_of(search.run())};
  schedule.exact = search.exact();
  schedule.work = search.work();
  return schedule;
}

Result<PublishRows> quick_schedule(const ReplayClock& clock, std::span<const double> costs, PlanStart start) {
  FRESHET_ASSIGN(const auto candidates, optimal::Candidates::make(clock, costs, start));
  return candidates.rows_of(optimal::relaxed_choice(candidates));
}

}  // namespace freshet
