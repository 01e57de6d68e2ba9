// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the loss will be, and what a schedule costs. Pure functions of numbers: no I/O, no clock of the machine, no
/// thread. Read CUMULATIVE_LOSS.md with the Viper paper in hand.

#include "predictor/cumulative_loss.h"   // What a schedule costs, exactly.
#include "predictor/failure_interval.h"  // How often to checkpoint on machines that fail.
#include "predictor/fit.h"               // Learning curves: from the losses so far to those to come.
#include "predictor/optimal.h"           // The best schedule for given losses.
#include "predictor/plan.h"              // From a warm-up to schedules.
#include "predictor/schedules.h"         // every, epoch, fixed, greedy.
#include "predictor/timing.h"            // The clock of the trade-off, in whole nanoseconds.
