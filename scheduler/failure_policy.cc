// SPDX-License-Identifier: Apache-2.0
#include "scheduler/failure_policy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "core/base/format.h"
#include "core/words/number.h"
#include "predictor/failure_interval.h"

namespace freshet {
namespace {

constexpr double kStallLeast = 1e-6;  ///< Seconds; a stall that is no time at all asks for a checkpoint at each step.
/// The interval is computed anew when the measured stall moved by this share.
constexpr double kStallMoves = 0.02;

class BetweenFailures final : public Policy {
 public:
  BetweenFailures(double mtbf_s, double restart_s) : mtbf_s_(mtbf_s), restart_s_(restart_s) {}

  Decision decide(const Observation&, const Situation& situation) override {
    ++since_;
    if (!known_ && situation.stall <= 0) return {.publish = true, .reason = "nobody knows yet what a checkpoint costs"};
    weigh(situation.stall);
    // To the nearest observation: a checkpoint comes between two. Several steps may lie between these.
    if ((static_cast<double>(since_) + 0.5) * situation.step < interval_s_)
      return {.publish = false, .reason = "a failure now costs less than a checkpoint"};
    return {.publish = true, .reason = "the interval that loses least is over"};
  }

  void published(const Observation&) override {
    since_ = 0;
    known_ = true;
  }

  std::string text() const override {
    return restart_s_ > 0 ? format("{}{}:{}", kFailurePrefix, mtbf_s_, restart_s_)
                          : format("{}{}", kFailurePrefix, mtbf_s_);
  }

  Explanation explain() const override {
    if (weighed_stall_ <= 0) return {};
    return {.note = format("a checkpoint costs {:.3g} s, so one each {:.4g} s loses {:.2g} % of the time",
                           weighed_stall_, interval_s_, waste_ * 100)};
  }

 private:
  void weigh(double stall_s) {
    // As failure_interval() takes it.
    const double cost = std::clamp(stall_s, std::min(kStallLeast, 50 * mtbf_s_), 50 * mtbf_s_);
    if (weighed_stall_ > 0 && std::abs(cost - weighed_stall_) <= kStallMoves * weighed_stall_) return;
    const auto found = failure_interval({.checkpoint_s = cost, .mtbf_s = mtbf_s_, .restart_s = restart_s_});
    if (!found) return;  // Its values were checked, so this does not happen; the last interval stays.
    weighed_stall_ = cost;
    interval_s_ = found->interval_s;
    waste_ = found->waste;
  }

  const double mtbf_s_;
  const double restart_s_;
  bool known_ = false;        ///< A checkpoint was taken.
  std::uint64_t since_ = 0;   ///< Observations since the last one, or since the job began or went on.
  double weighed_stall_ = 0;  ///< Seconds; 0: not weighed yet.
  double interval_s_ = 0;
  double waste_ = 0;
};

std::optional<double> seconds_in(std::string_view text) {
  const auto value = number_in<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

Result<std::unique_ptr<Policy>> parse_failure_policy(std::string_view text) {
  const std::string_view given = text.substr(std::min(kFailurePrefix.size(), text.size()));
  const std::size_t colon = given.find(':');
  const std::optional<double> mtbf = seconds_in(given.substr(0, colon));
  const std::optional<double> restart = colon == std::string_view::npos ? 0.0 : seconds_in(given.substr(colon + 1));
  if (!mtbf || !restart) {
    return fail(Code::invalid_argument,
                format("schedule {}: write failures:MTBF or failures:MTBF:RESTART, both in seconds", text));
  }
  const auto checked = failure_interval({.checkpoint_s = std::min(1.0, *mtbf), .mtbf_s = *mtbf, .restart_s = *restart});
  if (!checked) return fail(Error(checked.error()).with_context(format("schedule {}", text)));
  return std::make_unique<BetweenFailures>(*mtbf, *restart);
}

}  // namespace freshet
