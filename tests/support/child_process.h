// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A program that a test starts, reads line by line, and ends.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

extern char** environ;

namespace freshet {

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> words) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_ = ::fdopen(ends[0], "r");
  }
  ~ChildProcess() {
    end(SIGKILL);
    if (out_ != nullptr) std::fclose(out_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  /// Its next line without the newline; nothing when it has closed its output.
  std::optional<std::string> line() {
    std::string text;
    for (int c = std::fgetc(out_); c != EOF; c = std::fgetc(out_)) {
      if (c == '\n') return text;
      text.push_back(static_cast<char>(c));
    }
    return std::nullopt;
  }

  /// SIGSTOP; returns when it stands still.
  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() {
    if (pid_ > 0) ::kill(pid_, SIGCONT);
  }

  /// Waits for its end. The status of waitpid; 0 when it was gone.
  int wait() {
    int status = 0;
    if (pid_ > 0) {
      ::waitpid(pid_, &status, 0);
      pid_ = -1;
    }
    return status;
  }

  /// Sends the signal and waits for the end. The status of waitpid; 0 when it was gone.
  int end(int signal) {
    int status = 0;
    if (pid_ > 0) {
      ::kill(pid_, signal);
      ::waitpid(pid_, &status, 0);
      pid_ = -1;
    }
    return status;
  }

 private:
  pid_t pid_ = -1;
  FILE* out_ = nullptr;
};

}  // namespace freshet
