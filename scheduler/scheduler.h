#pragma once

/// When to publish. The loop calls observe() after every iteration with its loss; the answer is immediate and almost
/// always no. Policies stand behind one seam, Policy; `every:N` and `epoch` are the ones that need no prediction.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/result.h"

namespace freshet {

/// One iteration of the training loop, as it ended.
struct Observation {
  std::uint64_t step = 0;  ///< Counts from 1, grows.
  double loss = 0;         ///< NaN when there is none.
  bool epoch_end = false;
  Time at{};
};

struct Decision {
  bool publish = false;
  std::string_view reason = "";  ///< For people; points to static text.
};

/// A schedule. One thread at a time.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual Decision decide(const Observation& observation) = 0;
  /// The publish that the last decision asked for blocked the loop for `stall`; skipped ones are not reported.
  virtual void on_published(const Observation& observation, Duration stall) = 0;
  /// As parse_policy() takes it.
  virtual std::string text() const = 0;
};

/// "every:N" (N from 1) publishes after each N steps since the last publish; "epoch" at each epoch's end.
/// invalid_argument lists what is known.
Result<std::unique_ptr<Policy>> parse_policy(std::string_view text);

}  // namespace freshet
