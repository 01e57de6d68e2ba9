// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The rows that an optimal list can have, with what the search needs of them. Inner part of optimal.h;
/// CUMULATIVE_LOSS.md, "Which rows matter".

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "predictor/optimal.h"
#include "predictor/timing.h"

namespace freshet::optimal {

/// The part of a publish's time that its number gives: k B + C, in intervals between requests.
struct Delay {
  std::int64_t whole = 0;
  std::int64_t rest = 0;
};

/// Entry 0 is the version held at the start; the others are rows whose cost is below all before, as far as they can be
/// served in time. Immutable once made.
class Candidates {
 public:
  static Result<Candidates> make(const ReplayClock& clock, std::span<const double> costs, PlanStart start);

  std::size_t size() const { return rows_.size(); }
  std::int64_t row(std::size_t i) const { return rows_[i]; }
  /// Above the lowest cost of all, so that sums keep their digits.
  double cost(std::size_t i) const { return costs_[i]; }
  double requests() const { return static_cast<double>(requests_); }

  /// Of the k-th publish since the start.
  Delay delay(std::int64_t k) const;
  /// Requests that come before candidate i is served, M when it comes too late. REQUIRES: i > 0.
  double before(std::size_t i, const Delay& delay) const {
    const std::int64_t carry = rests_[i] + delay.rest >= infer_ns_ ? 1 : 0;
    return static_cast<double>(std::min(requests_, wholes_[i] + delay.whole + carry));
  }

  /// In requests, as real numbers: when candidate i would be served without any stall after the start, and what one
  /// stall costs.
  double moment(std::size_t i) const;
  double stall() const { return static_cast<double>(stall_ns_) / static_cast<double>(infer_ns_); }

  /// Above the lowest cost, times all requests. REQUIRES: chosen grows, and begins with an entry above 0.
  double total(std::span<const std::uint32_t> chosen) const;
  PublishRows rows_of(std::span<const std::uint32_t> chosen) const;

 private:
  std::vector<std::int64_t> rows_;
  std::vector<double> costs_;
  std::vector<std::int64_t> wholes_;  // (row - N) A - 1 in whole intervals, and the rest in nanoseconds.
  std::vector<std::int64_t> rests_;
  std::int64_t requests_ = 0;
  std::int64_t infer_ns_ = 1;
  std::int64_t stall_ns_ = 0;
  std::int64_t delay_ns_ = 0;  // C and the stalls before the start.
};

/// The best list by the continuous reckoning, as quick_schedule() has it.
std::vector<std::uint32_t> relaxed_choice(const Candidates& candidates);

}  // namespace freshet::optimal
