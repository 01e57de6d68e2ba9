// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When to publish, as far as one run knows: every:N, epoch, the planned ones of Viper, and online, behind one seam.
/// Without I/O and clock: whoever calls says what time it is and how things stand (scheduler.h measures both).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/result.h"
#include "scheduler/online/lookahead.h"

namespace freshet {

/// One iteration of the training loop, as it ended.
struct Observation {
  std::uint64_t step = 0;  ///< Grows by one from iteration to iteration; one that jumps back starts a new count.
  double loss = 0;         ///< NaN when there is none.
  bool epoch_end = false;
  Time at{};
};

struct Decision {
  bool publish = false;
  std::string_view reason = "";  ///< For people; points to static text.
};

/// What the last decision that was weighed rests on. Empty and zero where a policy predicts nothing.
struct Explanation {
  std::uint64_t step = 0;    ///< At which it was weighed; 0: none was yet.
  std::string curve;         ///< The fitted curve with its parameters, for people.
  double served_loss = 0;    ///< What the served version's loss is taken for.
  double present_loss = 0;   ///< And the newest one's, without the noise of its batch.
  double gain = 0;           ///< Expected of publishing now against never again: loss x requests.
  double stall_cost = 0;     ///< Expected of the stall for the versions after it: loss x requests.
  double next_in_steps = 0;  ///< How far off the best next publish seems; 0: now, or not known.
  std::string note;          ///< Why it plans otherwise than asked; mostly empty.
};

/// A schedule. One thread at a time.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Called once for each iteration. A publish that is due and does not happen is due again.
  virtual Decision decide(const Observation& observation, const Situation& situation) = 0;
  /// The version of the iteration last decided about (or, before any, the initial one) was published.
  virtual void published(const Observation& observation) = 0;
  /// As parse_policy() takes it.
  virtual std::string text() const = 0;
  virtual Explanation explain() const { return {}; }
  /// It learns, and needs a version out to compare with: the scheduler has the first one published after the warm-up.
  virtual bool wants_first_version() const { return false; }
};

/// - "every:N" (N from 1): after each N steps since the last publish.
/// - "epoch": at each epoch's end.
/// - "online": online/online_policy.h.
/// - "fixed", "greedy", "optimal": predictor/plan.h, planned once, from the losses of the first `warmup_steps`
///   iterations and the times measured until then. That one iteration waits for the fit and the plan
///   (some 10 ms, 0.1 s where 100,000 steps are to come). After the plan's end its longest interval goes on.
/// invalid_argument lists what is known, or says that a planned schedule needs a warm-up of 1 to 1,000,000 steps.
Result<std::unique_ptr<Policy>> parse_policy(std::string_view text, std::uint64_t warmup_steps = 100);

}  // namespace freshet
