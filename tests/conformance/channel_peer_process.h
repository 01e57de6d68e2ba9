#pragma once

/// A channel_peer (tests/conformance/channel_peer.cc) under a test's control.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace freshet::channel {

class ChannelPeerProcess {
 public:
  explicit ChannelPeerProcess(std::vector<std::string> command) {
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
  ~ChannelPeerProcess() { kill(); }
  ChannelPeerProcess(const ChannelPeerProcess&) = delete;
  ChannelPeerProcess& operator=(const ChannelPeerProcess&) = delete;

  void say(const std::string& line) {
    const std::string text = line + "\n";
    [[maybe_unused]] const auto wrote = ::write(input_.get(), text.data(), text.size());
  }
  /// The next line of its output; "" when none came.
  std::string hear() {
    constexpr int kPatienceMs = 60'000;
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
  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  void go_on() {
    if (pid_ > 0) ::kill(pid_, SIGCONT);
  }
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

}  // namespace freshet::channel
