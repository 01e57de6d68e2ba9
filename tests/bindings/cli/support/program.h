// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The program `freshet` as a test runs it: a process with its output caught, in an environment of its own.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace freshet::cli_test {

using Json = nlohmann::ordered_json;
using Environment = std::map<std::string, std::string>;

/// A wait in these tests ends long after it could matter; a test that gets there has failed.
inline constexpr std::chrono::seconds kPatience{60};

struct Ended {
  int exit_code = -1;  ///< -1 when a signal ended it.
  std::string out;
  std::string err;

  /// The lines of stdout, each as JSON; a discarded value for one that is none.
  std::vector<Json> json_lines() const;
  /// The only line. Null when there are none or several.
  Json json() const;
};

/// A running process. Killed when destroyed. One thread at a time.
class Running {
 public:
  Running(const std::vector<std::string>& arguments, const Environment& environment);
  Running(Running&& other) noexcept;
  Running& operator=(Running&&) = delete;
  ~Running();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Closes our end of its stdout.
  void close_stdout();

  /// The next whole line of stdout (or stderr); nothing when it ended first, or when patience did.
  std::optional<std::string> next_line();
  std::optional<std::string> next_error_line();
  Json next_json();

  /// Waits for the end; everything that was not read before stands in the result.
  Ended wait();

 private:
  struct Pipe {
    int descriptor = -1;
    std::string text;  ///< Read, not yet taken.
    bool ended = false;
  };
  bool read_some(std::chrono::steady_clock::time_point deadline);
  std::optional<std::string> line_of(Pipe& pipe);

  pid_t pid_ = -1;
  Pipe out_;
  Pipe err_;
};

/// The exit code of a shell's line in which $FRESHET is the program: for streams that no pipe can be.
int run_in_shell(const std::string& line, const Environment& environment);

/// Of an object, in their order.
std::vector<std::string> keys_of(const Json& object);

/// Starts, waits, answers.
Ended run(const std::vector<std::string>& arguments, const Environment& environment = {});

}  // namespace freshet::cli_test
