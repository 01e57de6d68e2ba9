// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/shell_command.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr Duration kGrace = std::chrono::seconds(2);

/// Starts `sh -c command` with the signals that a program expects, whatever ours are.
Result<pid_t> start(const std::string& command, const ShellOptions& options) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  (void)::posix_spawn_file_actions_init(&actions);
  (void)::posix_spawnattr_init(&attributes);
  if (options.stdout_to_stderr) (void)::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  sigset_t defaults;
  sigset_t unblocked;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::sigemptyset(&unblocked);
  (void)::posix_spawnattr_setsigdefault(&attributes, &defaults);
  (void)::posix_spawnattr_setsigmask(&attributes, &unblocked);
  (void)::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::string text = command;
  char shell[] = "sh";
  char flag[] = "-c";
  char* arguments[] = {shell, flag, text.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments, environ);
  (void)::posix_spawn_file_actions_destroy(&actions);
  (void)::posix_spawnattr_destroy(&attributes);
  if (error != 0) return fail_errno(error, format("start: {}", command));
  return child;
}

/// The status when the child ended by the deadline or before a signal was noted.
std::optional<int> wait_for_end(pid_t child, Time deadline, const Interrupt* interrupt) {
  for (Duration pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kInterruptLatency)) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    const Time now = system_clock().now();
    if (now >= deadline || (interrupt != nullptr && interrupt->requested())) return std::nullopt;
    timespec sleep{.tv_sec = 0, .tv_nsec = static_cast<long>(pause.count())};
    (void)::nanosleep(&sleep, nullptr);
  }
}

void end(pid_t child) {
  (void)::kill(child, SIGTERM);
  if (wait_for_end(child, system_clock().now() + kGrace, nullptr)) return;
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
}

}  // namespace

std::string with_path(const std::string& command, const std::string& path) {
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  quoted += '\'';
  std::string text;
  std::size_t begin = 0;
  for (std::size_t at = command.find("{}"); at != std::string::npos; at = command.find("{}", begin)) {
    text += command.substr(begin, at - begin) + quoted;
    begin = at + 2;
  }
  return text + command.substr(begin);
}

Result<int> exit_code_of_shell(const std::string& command, const ShellOptions& options, const Interrupt& interrupt) {
  FRESHET_ASSIGN(const pid_t child, start(command, options));
  const std::optional<int> status = wait_for_end(child, Time::max(), &interrupt);
  if (!status) end(child);
  // The terminal interrupts both of us, and the command may be the first to end of it.
  if (!status || (WIFSIGNALED(*status) && interrupt.requested())) {
    return fail(Code::cancelled, "interrupted");
  }
  if (WIFSIGNALED(*status)) {
    return fail(Code::failed_precondition, format("{}: ended by signal {}", command, WTERMSIG(*status)));
  }
  return WEXITSTATUS(*status);
}

Status run_shell(const std::string& command, const ShellOptions& options, const Interrupt& interrupt) {
  FRESHET_ASSIGN(const int code, exit_code_of_shell(command, options, interrupt));
  if (code != 0) return fail(Code::failed_precondition, format("{}: exit code {}", command, code));
  return {};
}

}  // namespace freshet::cli
