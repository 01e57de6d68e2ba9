// SPDX-License-Identifier: Apache-2.0
#include "scheduler/online/online_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace freshet {
namespace {

constexpr double kReach = 2;           ///< Of local lines, in units of the trend's memory.
constexpr double kServedReach = 0.5;   ///< About the served row, where rows of both sides count, in units of that.
constexpr double kReachMax = 2000;     ///< Rows; LossRecord keeps twice as many.
constexpr double kErrors = 2;          ///< Standard errors that a difference must exceed to be significant.
constexpr double kRefitShare = 0.03;   ///< The outlook is fitted again when the run is longer by this.
constexpr double kRounding = 1e-10;    ///< Of a loss: a fall by less is none.
constexpr std::int64_t kEarlyRow = 8;  ///< Nothing is decided before.

// How much fall is expected to come in any case, whatever the outlook says, so that stalls are never free.
constexpr double kLeastFallShare = 0.1;  ///< Of the fall so far, if the run doubles its length.
constexpr double kIntervalShare = 0.2;   ///< Of the rows to come, at the slope since the last publish,
constexpr double kFloorShare = 0.3;      ///< but no more than this share of a loss above 0.

// At which rows a decision is weighed.
constexpr double kIntervalShareLeast = 0.01;  ///< As k, before anything is computed.
constexpr double kLooksPerInterval = 16;
constexpr double kSurprise = 3;  ///< Standard errors by which the trend fell below where it was weighed last.

// Page's test of the newest losses against the served version's: their excess over it, in units of the noise, less what
// is usual, summed up.
constexpr double kExcessMax = 4;  ///< Of one row.
constexpr double kExcessUsual = 0.5;
constexpr double kExcessLimit = 10;  ///< Of the sum, so that it is soon forgotten.
constexpr double kAlarm = 3;         ///< A publish waits while the sum is above.
constexpr double kBreak = 8;         ///< The run has left its ways.

/// What of `difference` is beyond chance.
double significant(double difference, double error) {
  const double share = error / std::fabs(difference);
  return share < 1 ? difference * (1 - share * share) : 0;
}

}  // namespace

void OnlinePolicy::learn(double loss) {
  const double taken = trend_.push(loss);
  record_.push(taken);
  watch_served(std::isnan(taken) ? taken : loss);
  if (row() == kEarlyRow) early_level_ = trend_.level();
}

void OnlinePolicy::published() {
  // Of evaluations, several versions may be published between two rows.
  if (served_row_ > 0 && row() > served_row_) {
    const double interval = static_cast<double>(row() - served_row_);
    usual_interval_ = usual_interval_ > 0 ? (usual_interval_ + interval) / 2 : interval;
  }
  served_row_ = row();
  const double reach = std::clamp(kReach * trend_.memory(), 3.0, kReachMax);
  const auto local = record_.local(row(), {.reach = reach + 1});
  served_level_.reset();
  if (local) served_level_ = local->level;
  served_window_ = {.reach = kReachMax};
  own_loss_.reset();
  served_hurt_ = false;
  usual_row_ = row();
  excess_ = 0;
  next_look_ = row() + 1;
}

void OnlinePolicy::watch_served(double loss) {
  if (!served_level_) return;
  if (std::isfinite(loss)) {
    if (row() == served_row_ + 1) own_loss_ = loss;
    const double noise = std::max(trend_.noise(), 1e-300);
    const double excess = std::clamp((loss - *served_level_) / noise, -kExcessMax, kExcessMax);
    excess_ = std::clamp(excess_ + excess - kExcessUsual, 0.0, kExcessLimit);
  }
  if (excess_ <= 0) usual_row_ = row();
  if (excess_ <= kBreak || served_window_.last < std::numeric_limits<std::int64_t>::max()) return;
  // The run left its ways after usual_row_.
  served_window_.last = usual_row_;
  if (usual_row_ > served_row_ || !own_loss_) return;
  served_level_ = (*served_level_ + *own_loss_) / 2;
  served_hurt_ = true;
}

bool OnlinePolicy::alarmed() const { return excess_ > kAlarm; }

bool OnlinePolicy::surprised() const {
  return trend_.level() < level_looked_at_ - kSurprise * trend_.noise() / std::sqrt(trend_.memory());
}

bool OnlinePolicy::decide(const Situation& situation) {
  if (row() < next_look_ && !surprised()) return false;
  return weigh(situation);
}

bool OnlinePolicy::say(bool publish, std::string_view reason) {
  verdict_.publish = publish;
  verdict_.reason = reason;
  return publish;
}

void OnlinePolicy::refit_if_old() {
  const double age = static_cast<double>(row() - outlook_.fitted_at());
  if (age >= std::max(1.0, kRefitShare * static_cast<double>(row()))) outlook_.fit(record_.blocks(), row());
}

std::optional<double> OnlinePolicy::served_level(double reach) {
  if (served_hurt_) return served_level_;
  if (row() - served_row_ < LossRecord::kRecentRows - static_cast<std::int64_t>(reach)) {
    LossRecord::Window window = served_window_;
    window.reach = std::min(window.reach, reach);
    const auto local = record_.local(served_row_, window);
    if (local) served_level_ = local->level;
  }
  return served_level_;
}

bool OnlinePolicy::weigh(const Situation& situation) {
  if (row() < kEarlyRow) return false;
  const double since = static_cast<double>(row() - served_row_);
  const double matter = situation.useful_rows();
  const double stall_rows = situation.stall / situation.step;
  if (since < std::sqrt(2 * kIntervalShareLeast * stall_rows * matter)) return false;

  verdict_ = {.row = row()};
  level_looked_at_ = trend_.level();
  // Never past the last row that matters: its version is the one that the requests after the training get.
  next_look_ = row() + static_cast<std::int64_t>(std::max(1.0, std::min(since / kLooksPerInterval, matter)));
  refit_if_old();

  const double reach = std::clamp(kReach * trend_.memory(), 3.0, kReachMax);
  const auto now = record_.local(row(), {.reach = reach + 1});
  const auto served = served_level(std::max(3.0, kServedReach * reach) + 1);
  if (!now || !served) return say(false, "no loss is known");

  const double noise = trend_.noise();
  const double foretold = outlook_.at(static_cast<double>(row()));
  const double foretold_fall = outlook_.at(static_cast<double>(served_row_)) - foretold;
  const double fall_error = kErrors * noise * std::sqrt(4 / reach * std::min(1.0, since / reach));
  const double fall = foretold_fall + significant(*served - now->level - foretold_fall, fall_error);
  const double present = now->level;
  verdict_.present_loss = present;
  verdict_.served_loss = present + fall;
  if (fall <= kRounding * std::max(std::fabs(present), std::fabs(*served)))
    return say(false, "the served version is no worse");

  const double slope = fall / since;
  const double to_come = std::min(kIntervalShare * slope * matter, present > 0 ? kFloorShare * present : 1e300);
  if (since < std::sqrt(2 * stall_rows * to_come / slope)) return say(false, "the last publish is too near");

  // The local slope goes on for about as long as it was seen, then the outlook's does.
  const double foretold_slope = outlook_.at(static_cast<double>(row() + 1)) - foretold;
  const double own_slope = significant(now->slope - foretold_slope, noise * now->slope_error);
  const auto loss = [&](double distance) {
    return present + outlook_.at(static_cast<double>(row()) + distance) - foretold +
           own_slope * reach * (1 - std::exp(-distance / reach));
  };
  const double seen = static_cast<double>(row());
  const double least_fall = kLeastFallShare * std::max(0.0, early_level_ - present) * matter / (matter + seen);
  const double interval = usual_interval_ > 0 ? usual_interval_ : std::sqrt(0.6 * stall_rows * matter);
  const Lookahead ahead =
      look_ahead(situation, {.served = present + fall, .first_distance = interval / 8, .least_fall = least_fall}, loss);
  verdict_.gain = ahead.gain;
  verdict_.stall_cost = ahead.stall_cost;
  verdict_.next_in_rows = ahead.distance;
  if (!ahead.publish) return say(false, "no publish is worth its stall");
  if (ahead.distance > 0) return say(false, "a later version is worth waiting for");
  next_look_ = row() + 1;
  if (alarmed()) {
    return say(false, "the newest losses are suspiciously high");
  }
  return say(true, "what is gained until the next publish outweighs the stall");
}

}  // namespace freshet
