// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The schedules of one run behind one interface: every:N, epoch, Viper's planned schedules, online, and the schedule
/// for machines that fail. Without I/O and clock: the caller gives the time and the state (scheduler.h measures both).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "scheduler/online/lookahead.h"
#include "scheduler/scheduler_options.h"

namespace freshet {

struct Decision {
  bool publish = false;
  std::string_view reason = "";  ///< For people; points to static text.
};

/// A schedule that looks at losses goes by those of evaluations once it has so many of them; until then by training
/// losses. The two kinds are never compared with each other.
inline constexpr std::size_t kEvaluationsLeast = 8;

/// A schedule. One thread at a time.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Called once for each iteration. A publish that is due and does not happen is due again.
  virtual Decision decide(const Observation& observation, const Situation& situation) = 0;
  /// Reports a publish of the version of the last decided iteration (before any: of the initial version).
  virtual void published(const Observation& observation) = 0;
  /// As parse_policy() takes it.
  virtual std::string text() const = 0;
  virtual Explanation explain() const { return {}; }
  /// Work that takes too long for a training step, and that decide() has asked for: to be run by any thread, which
  /// need not wait for anybody, since it touches nothing of the policy. What it returns hands the result to the policy,
  /// in the policy's thread; the policy must live until then. Empty: there is none. It is given out once; until its
  /// result comes, the policy goes on without.
  using Work = std::function<std::function<void()>()>;
  virtual Work take_work() { return {}; }
  /// True: the policy learns, and needs a served version to compare with. The scheduler publishes the first version
  /// after the warm-up.
  virtual bool wants_first_version() const { return false; }
};

/// - "every:N" (N from 1): after each N steps since the last publish.
/// - "epoch": at each epoch's end.
/// - "online": online/online_policy.h, for training losses and, beside it, for evaluations. Training losses decide again
///   when no evaluation came for four usual intervals (the mean of the newest eight), until the next one.
/// - "fixed", "greedy", "optimal": predictor/plan.h. A version is published after `warmup_steps` iterations. The next
///   iteration asks for the plan, once, from all losses and times until then: as work for another thread (some 10 ms;
///   0.2 s if 100,000 steps are to come; most of a second after a warm-up of 1,000,000), for which no iteration waits.
///   What the plan would have published meanwhile is published once when it comes. After the plan's end, its longest
///   interval goes on.
/// - "failures:MTBF" and "failures:MTBF:RESTART" (seconds): failure_policy.h.
/// The message of invalid_argument lists the known schedules, or says that a planned schedule needs a warm-up of 1 to
/// 1,000,000 steps.
Result<std::unique_ptr<Policy>> parse_policy(std::string_view text, std::uint64_t warmup_steps = 100);

}  // namespace freshet
