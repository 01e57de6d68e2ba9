// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A live_run program under test: started in a folder of its own, its output read while it runs, its roles found and
/// killed as a person would.

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace freshet::live {

class LiveProgram {
 public:
  LiveProgram();
  /// Kills what is left and removes the folder.
  ~LiveProgram();
  LiveProgram(const LiveProgram&) = delete;
  LiveProgram& operator=(const LiveProgram&) = delete;

  /// Adds --report, in the folder. `host_directory`: empty for one of the run's own.
  void start(std::vector<std::string> arguments, const std::string& host_directory = "");
  /// The exit code, or minus the signal that ended it. Kills it when it hangs.
  int wait();
  void signal(int signal_number) const;

  /// What it wrote so far.
  std::string out() const;
  std::string err() const;
  /// The JSON of the last line of stdout.
  nlohmann::json summary() const;

  /// Looks again and again until it holds; false when the program ended before, or hangs.
  bool wait_until(const std::function<bool()>& condition);
  /// The newest version that the last progress line told as served; 0 when none did.
  unsigned long served() const;

  /// Process ids of a role ("trainer", "server", …), ascending by --index.
  std::vector<pid_t> roles(const std::string& role) const;

  std::string report() const { return folder_ + "/report"; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

}  // namespace freshet::live
