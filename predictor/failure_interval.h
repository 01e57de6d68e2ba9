// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How often to checkpoint on machines that fail. With few checkpoints, a program computes much again after a failure.
/// With many checkpoints, the program often stands still.
///
/// Failures are independent of each other: one in `mtbf_s` on average, also during a checkpoint and during a restart.
/// After a failure, the program needs `restart_s` until it is back at the last checkpoint. So w seconds of computing
/// and the next checkpoint take, on average,
///
///   E(w) = M e^(R/M) (e^((w+C)/M) - 1)
///
/// (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006, eq. 13).

#include "core/base/result.h"

namespace freshet {

/// Seconds.
struct FailureCosts {
  double checkpoint_s = 0;  ///< C: the program stands still; above 0.
  double mtbf_s = 0;        ///< M: of the whole job, above 0.
  double restart_s = 0;     ///< R: from a failure until the program computes again; from 0.
};

/// Seconds of computing between two checkpoints.
struct FailureInterval {
  double young_s = 0;     ///< sqrt(2 C M) (J. W. Young, 1974).
  double daly_s = 0;      ///< Daly's higher order estimate, eq. 37: M where C is at least 2 M.
  double interval_s = 0;  ///< The one with the least waste.
  double waste = 0;       ///< With interval_s: the share of the time that is lost, from 0 to 1.
};

/// invalid_argument names the value that is out of range: each is finite and at most 10^12; C and M are at least 10^-9,
/// and C is at most 100 M.
Result<FailureInterval> failure_interval(const FailureCosts& costs);

/// The share of the time that is lost with `interval_s` of computing between checkpoints. REQUIRES: costs that
/// failure_interval() takes, interval_s above 0.
double waste_of(const FailureCosts& costs, double interval_s);

}  // namespace freshet
