// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The roles' processes: started from this very program, ended with it (the kernel sees to that, however it dies),
/// their stdout read line by line.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::live {

/// "trainer", "server-0".
struct ChildName {
  std::string role;
  std::uint32_t index = 0;
  std::string text() const;
};

/// One thread at a time, the one that made it (the kernel ends children when the thread that started them ends).
class Children {
 public:
  explicit Children(std::string run_folder) : run_folder_(std::move(run_folder)) {}
  /// Kills and reaps what is left.
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Starts a role; `life` counts its starts. `arguments` are added to the command line.
  Status start(const ChildName& name, std::uint32_t life, const std::vector<std::string>& arguments);

  void signal(const std::string& role, int signal_number);  ///< To every child of that role.
  bool alive(const std::string& role) const;

  struct Exit {
    ChildName name;
    std::uint32_t life = 0;
    Duration lived{};
    bool clean = false;  ///< By itself, with code 0.
    std::string how;     ///< "exit code 1", "killed by signal 9".
  };
  struct Handlers {
    std::function<void(const std::string& line, std::uint32_t start)> on_line;  ///< `start` numbers all starts.
    std::function<void(const Exit&)> on_exit;  ///< After the child's last line. May start another.
  };
  /// Waits for output, an exit or a signal, and hands over what came.
  void wait(Duration at_most, const Handlers& handlers);

 private:
  struct Child {
    ChildName name;
    std::uint32_t life = 0;
    std::uint32_t start = 0;
    pid_t pid = -1;
    int out = -1;
    Time started{};
    std::string unread;
  };
  void read_lines(Child& child, const Handlers& handlers);
  void reap(const Handlers& handlers);

  const std::string run_folder_;
  std::uint32_t starts_ = 0;
  std::vector<Child> children_;
};

}  // namespace freshet::live
