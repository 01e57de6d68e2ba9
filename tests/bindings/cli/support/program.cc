// SPDX-License-Identifier: Apache-2.0
#include "tests/bindings/cli/support/program.h"
#include "tests/support/this_build.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <utility>

namespace freshet::cli_test {
namespace {

std::vector<std::string> environment_with(const Environment& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string key = text.substr(0, text.find('='));
    if (!changes.contains(key) && !key.starts_with("FRESHET_")) entries.push_back(text);
  }
  for (const auto& [key, value] : changes) entries.push_back(key + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

std::vector<Json> Ended::json_lines() const {
  std::vector<Json> lines;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line, nullptr, false));
  return lines;
}

Json Ended::json() const {
  const std::vector<Json> lines = json_lines();
  return lines.size() == 1 ? lines.front() : Json();
}

Running::Running(const std::vector<std::string>& arguments, const Environment& environment) {
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) return;
  std::vector<std::string> words = {test::built(FRESHET_PROGRAM)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> entries = environment_with(environment);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  if (::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(entries).data()) !=
      0) {
    pid_ = -1;
  }
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(err[1]);
  out_.descriptor = out[0];
  err_.descriptor = err[0];
}

Running::Running(Running&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      out_(std::exchange(other.out_, Pipe{})),
      err_(std::exchange(other.err_, Pipe{})) {}

Running::~Running() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_.descriptor >= 0) ::close(out_.descriptor);
  if (err_.descriptor >= 0) ::close(err_.descriptor);
}

void Running::signal(int number) const {
  ::kill(pid_, number);
  if (number == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);  // It may run on for a while.
}

void Running::close_stdout() {
  ::close(std::exchange(out_.descriptor, -1));
  out_.ended = true;
}

bool Running::read_some(std::chrono::steady_clock::time_point deadline) {
  if (out_.ended && err_.ended) return false;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  if (left.count() <= 0) return false;
  pollfd waiters[] = {{.fd = out_.ended ? -1 : out_.descriptor, .events = POLLIN, .revents = 0},
                      {.fd = err_.ended ? -1 : err_.descriptor, .events = POLLIN, .revents = 0}};
  if (::poll(waiters, 2, static_cast<int>(left.count())) <= 0) return false;
  Pipe* pipes[] = {&out_, &err_};
  for (int i = 0; i < 2; ++i) {
    if (waiters[i].revents == 0) continue;
    char buffer[4096];
    const ssize_t bytes = ::read(pipes[i]->descriptor, buffer, sizeof(buffer));
    if (bytes > 0) pipes[i]->text.append(buffer, static_cast<std::size_t>(bytes));
    if (bytes <= 0) pipes[i]->ended = true;
  }
  return true;
}

std::optional<std::string> Running::line_of(Pipe& pipe) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const std::size_t end = pipe.text.find('\n');
    if (end != std::string::npos) {
      std::string line = pipe.text.substr(0, end);
      pipe.text.erase(0, end + 1);
      return line;
    }
    if (pipe.ended || !read_some(deadline)) return std::nullopt;
  }
}

std::optional<std::string> Running::next_line() { return line_of(out_); }

std::optional<std::string> Running::next_error_line() { return line_of(err_); }

Json Running::next_json() {
  const std::optional<std::string> line = next_line();
  return line ? Json::parse(*line, nullptr, false) : Json();
}

Ended Running::wait() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (read_some(deadline)) {
  }
  Ended ended{.out = std::move(out_.text), .err = std::move(err_.text)};
  if (pid_ <= 0) return ended;
  // Whoever is still there after both its outputs closed, or patience ended, is not going to end by itself.
  if (!out_.ended || !err_.ended) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  return ended;
}

Ended run(const std::vector<std::string>& arguments, const Environment& environment) {
  return Running(arguments, environment).wait();
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

int run_in_shell(const std::string& line, const Environment& environment) {
  std::string text = "FRESHET='" + test::built(FRESHET_PROGRAM) + "'; ";
  for (const auto& [key, value] : environment) text += "export " + key + "='" + value + "'; ";
  const int status = std::system((text + line).c_str());  // NOLINT(cert-env33-c): a line of the test's own.
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace freshet::cli_test
