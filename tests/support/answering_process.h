// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A program that a test starts, tells something by lines on its input, and hears answer by lines on its output; it can
/// be stopped, woken and killed.

#include <fcntl.h>
#include <poll.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"

namespace freshet::test {

/// Killed when destroyed. One thread at a time.
class AnsweringProcess {
 public:
  /// The first word is the program.
  explicit AnsweringProcess(std::vector<std::string> command) {
    int input[2];
    int output[2];
    if (::pipe2(input, O_CLOEXEC) != 0 || ::pipe2(output, O_CLOEXEC) != 0) return;
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(input[0], STDIN_FILENO);
      ::dup2(output[1], STDOUT_FILENO);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    ::close(input[0]);
    ::close(output[1]);
    input_ = FileDescriptor(input[1]);
    output_ = FileDescriptor(output[0]);
  }
  ~AnsweringProcess() { kill(); }
  AnsweringProcess(const AnsweringProcess&) = delete;
  AnsweringProcess& operator=(const AnsweringProcess&) = delete;

  /// A program that is gone does not hear it, and then does not answer.
  void say(const std::string& line) {
    const std::string text = line + "\n";
    [[maybe_unused]] const auto wrote = ::write(input_.get(), text.data(), text.size());
  }
  /// The next line of its output; "" when none came.
  std::string hear() {
    constexpr int kPatienceMs = 90'000;
    for (;;) {
      if (const std::size_t end = heard_.find('\n'); end != std::string::npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      pollfd ready{.fd = output_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, kPatienceMs) <= 0) return "";
      char bytes[4096];
      const ssize_t got = ::read(output_.get(), bytes, sizeof bytes);
      if (got <= 0) return "";
      heard_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  std::string ask(const std::string& line) {
    say(line);
    return hear();
  }

  pid_t pid() const { return pid_; }
  /// SIGSTOP; returns when it stands still.
  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  void go_on() {
    if (pid_ > 0) ::kill(pid_, SIGCONT);
  }
  /// kill -9.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor input_;
  FileDescriptor output_;
  std::string heard_;
};

}  // namespace freshet::test
