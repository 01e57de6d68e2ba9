// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/common/command_cost.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

double milliseconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1000 + static_cast<double>(time.tv_usec) / 1000;
}

}  // namespace

Result<CommandCost> cost_of(const std::vector<std::string>& arguments) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto start = std::chrono::steady_clock::now();
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail_errno(error, "start " + arguments[0]);
  int status = 0;
  rusage use{};
  while (::wait4(pid, &status, 0, &use) != pid) {
    if (errno != EINTR) return fail_errno(errno, "wait for " + arguments[0]);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::string words;
    for (const std::string& argument : arguments) words += (words.empty() ? "" : " ") + argument;
    return fail(Code::unavailable, format("{} ended with status {}", words, status));
  }
  return CommandCost{
      .wall_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(),
      .processor_ms = milliseconds_of(use.ru_utime) + milliseconds_of(use.ru_stime)};
}

}  // namespace freshet::benchmarks
