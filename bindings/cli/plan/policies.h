// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The policies that `freshet plan` sets beside each other, each with what it costs.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/cli/plan/loss_table.h"
#include "core/base/result.h"
#include "predictor/cumulative_loss.h"
#include "predictor/plan.h"
#include "predictor/timing.h"

namespace freshet::cli {

struct Judged {
  PublishRows rows;
  double cumulative_loss = 0;
  bool exact = true;  ///< False: the search for the optimal list was cut off.
};

struct Contender {
  std::string name;
  std::optional<Judged> judged;  ///< Nothing for epoch where no epochs are known, and for online and oracle in a plan.
};

/// epoch, fixed, greedy, optimal, online, oracle, in this order.
using Contenders = std::vector<Contender>;

/// The schedules of the plan, at the losses that it predicts. `epoch_steps` is 0 where there are no epochs.
Result<Contenders> predicted_contenders(const ReplayClock& clock, const Plan& plan, std::int64_t epoch_steps);

/// All of them, at the costs that the whole run had. `losses` are those that `online` decides by, one for each row.
/// REQUIRES: table.rows() == clock.horizon().rows == losses.size().
Result<Contenders> replayed_contenders(const ReplayClock& clock, const Plan& plan, std::int64_t epoch_steps,
                                       const LossTable& table, std::span<const double> losses);

}  // namespace freshet::cli
