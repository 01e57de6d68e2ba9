// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a person sees while it runs: one line that is written over on a terminal, plain lines elsewhere.

#include <cstdio>
#include <string>

#include "core/base/clock.h"
#include "examples/live_run/loops/loop_tools.h"
#include "examples/live_run/report/tally.h"

namespace freshet::live {

std::string progress_text(const Tally& tally, double seconds);

/// One thread at a time.
class Progress {
 public:
  explicit Progress(std::FILE* out);
  /// Shows the state, when it is time again.
  void show(const Tally& tally, double seconds, Time now);
  /// Says something on a line of its own.
  void say(const std::string& text);

 private:
  std::FILE* const out_;
  const bool terminal_;
  bool shown_ = false;
  Every due_;
};

}  // namespace freshet::live
