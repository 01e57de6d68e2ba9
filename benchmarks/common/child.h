// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A process that a benchmark starts and talks with in lines, over its standard input and output.

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

/// One thread at a time.
class Child {
 public:
  /// Starts a program (found in PATH). `inherit`: descriptors that it gets, as (here, there) pairs, there > 2.
  static Result<std::unique_ptr<Child>> start(const std::vector<std::string>& arguments,
                                              const std::vector<std::pair<int, int>>& inherit = {});
  /// Closes its input, waits a second, then ends it by force.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Status write_line(const std::string& line);
  /// unavailable when the child closed its output, timed_out at the deadline.
  Result<std::string> read_line(std::chrono::milliseconds at_most = std::chrono::seconds(60));
  pid_t pid() const { return pid_; }

 private:
  Child() = default;
  pid_t pid_ = -1;
  int input_ = -1;   ///< The child's.
  int output_ = -1;  ///< The child's.
  std::string unread_;
};

/// The path of the running program, for starting it again in another role.
std::string own_path();
/// CLOCK_MONOTONIC, the same for all processes of the host.
std::int64_t monotonic_ns();

}  // namespace freshet::benchmarks
