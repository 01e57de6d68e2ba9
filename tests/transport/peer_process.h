#pragma once

/// A stream_peer (tests/transport/stream_peer.cc) under a test's control.

#include <fcntl.h>
#include <poll.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "tests/transport/model_fixture.h"

namespace freshet::testing {

class PeerProcess {
 public:
  /// Built beside the test program.
  static std::string program() {
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "stream_peer").string();
  }

  explicit PeerProcess(std::vector<std::string> arguments) {
    int input[2];
    int output[2];
    EXPECT_EQ(::pipe2(input, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(output, O_CLOEXEC), 0);
    arguments.insert(arguments.begin(), program());
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(input[0], STDIN_FILENO);
      ::dup2(output[1], STDOUT_FILENO);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    input_ = FileDescriptor(input[1]);
    output_ = FileDescriptor(output[0]);
    ::close(input[0]);
    ::close(output[1]);
  }
  ~PeerProcess() { kill(); }

  static PeerProcess publisher(const std::string& folder, std::size_t tensors, std::size_t elements) {
    return PeerProcess({"publish", "demo", folder, std::to_string(tensors), std::to_string(elements)});
  }
  /// One that is fetched from by that channel.
  static PeerProcess remote_publisher(const std::string& folder, std::size_t tensors, std::size_t elements,
                                      const std::string& channel) {
    return PeerProcess({"publish", "demo", folder, std::to_string(tensors), std::to_string(elements), channel});
  }
  static PeerProcess subscriber(const std::string& folder) { return PeerProcess({"subscribe", "demo", folder}); }

  void say(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(::write(input_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// The next line of its output; "" when none came.
  std::string hear() {
    for (;;) {
      if (const std::size_t end = heard_.find('\n'); end != std::string::npos) {
        const std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      pollfd ready{.fd = output_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(std::chrono::seconds(90)).count())) <= 0)
        return "";
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
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void go_on() { ::kill(pid_, SIGCONT); }
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

}  // namespace freshet::testing
