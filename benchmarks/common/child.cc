// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/common/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <thread>

#include "core/base/format.h"

namespace freshet::benchmarks {

Result<std::unique_ptr<Child>> Child::start(const std::vector<std::string>& arguments,
                                            const std::vector<std::pair<int, int>>& inherit) {
  int input[2];
  int output[2];
  if (::pipe2(input, O_CLOEXEC) != 0) return fail_errno(errno, "pipe");
  if (::pipe2(output, O_CLOEXEC) != 0) {
    const int error = errno;
    ::close(input[0]);
    ::close(input[1]);
    return fail_errno(error, "pipe");
  }
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input[0], 0);
  ::posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  for (const auto& [here, there] : inherit) ::posix_spawn_file_actions_adddup2(&actions, here, there);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::unique_ptr<Child> child(new Child());
  const int error = ::posix_spawnp(&child->pid_, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(input[0]);
  ::close(output[1]);
  child->input_ = input[1];
  child->output_ = output[0];
  if (error != 0) {
    child->pid_ = -1;
    return fail_errno(error, format("start {}", arguments[0]));
  }
  return child;
}

Child::~Child() {
  if (input_ >= 0) ::close(input_);
  if (output_ >= 0) ::close(output_);
  if (pid_ <= 0) return;
  for (int i = 0; i < 100; ++i) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Status Child::write_line(const std::string& line) {
  const std::string text = line + "\n";
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(input_, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(errno, "write to the child");
    written += static_cast<std::size_t>(n);
  }
  return {};
}

Result<std::string> Child::read_line(std::chrono::milliseconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  for (;;) {
    const std::size_t end = unread_.find('\n');
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return fail(Code::timed_out, "the child said nothing in time");
    pollfd waiting{.fd = output_, .events = POLLIN};
    if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t n = ::read(output_, buffer.data(), buffer.size());
    if (n == 0) return fail(Code::unavailable, "the child ended");
    if (n > 0) unread_.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace freshet::benchmarks
