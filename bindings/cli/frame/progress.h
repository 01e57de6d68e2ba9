// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A line on stderr that is drawn anew while long work goes on; nothing where stderr is no terminal.

#include <cstdint>
#include <string>

#include "core/base/clock.h"

namespace freshet::cli {

/// One thread at a time. The line is gone when this is.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Bytes done, of so many in all (0: not known). Draws ten times a second at most, however often it is called.
  void show(std::uint64_t done, std::uint64_t total);

 private:
  const std::string label_;
  const bool visible_;
  const Time started_;
  Time drawn_{};
  bool shown_ = false;
};

/// How the line looks: "verify [=====>    ] 1.5 GB of 3 GB, 700 MB/s, 2 s left".
std::string progress_text(const std::string& label, std::uint64_t done, std::uint64_t total, Duration elapsed);

}  // namespace freshet::cli
