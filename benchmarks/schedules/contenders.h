// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The schedules that are compared, each played through one case by the library's own code.

#include <map>
#include <string>

#include "benchmarks/schedules/cases.h"
#include "predictor/cumulative_loss.h"

namespace freshet::benchmarks {

struct Outcome {
  double loss = 0;  ///< Cumulative, over all requests.
  PublishRows rows;
};

inline constexpr const char* kOracle = "oracle";
inline constexpr const char* kEpoch = "epoch";
inline constexpr const char* kBestEvery = "best_every";  ///< The best fixed interval, in hindsight.
inline constexpr const char* kFixed = "fixed";
inline constexpr const char* kGreedy = "greedy";
inline constexpr const char* kOptimal = "optimal";
inline constexpr const char* kOnline = "online";
inline constexpr const char* kContenders[] = {kEpoch, kBestEvery, kFixed, kGreedy, kOptimal, kOnline};

/// By name; those of kContenders and the oracle. `oracle` and `best_every` see the trend, `online` the losses as they
/// come, the others those of the warm-up.
Result<std::map<std::string, Outcome>> play(const Case& played);

}  // namespace freshet::benchmarks
