// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/tests/live_program.h"
#include "tests/support/this_build.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace freshet::live {
namespace {

namespace fs = std::filesystem;

/// Only what hangs waits as long as that, and then the test says where; nothing is measured by it.
constexpr std::chrono::seconds kPatience{120};
constexpr std::chrono::milliseconds kLookAgain{20};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

pid_t parent_of(const std::string& pid) {
  const std::string stat = content_of("/proc/" + pid + "/stat");  // pid (name) state parent …
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > stat.size()) return -1;
  return std::atoi(stat.c_str() + name_end + 4);
}

}  // namespace

LiveProgram::LiveProgram() {
  char name[] = "/tmp/freshet-live-test-XXXXXX";
  folder_ = ::mkdtemp(name);
}

LiveProgram::~LiveProgram() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  fs::remove_all(folder_);
}

void LiveProgram::start(std::vector<std::string> arguments, const std::string& host_directory) {
  arguments.insert(arguments.begin(), "live_run");
  arguments.push_back("--report=" + report());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const std::string out_path = folder_ + "/out";
  const std::string err_path = folder_ + "/err";
  const std::string program = test::built(LIVE_RUN_PROGRAM);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A test that is killed leaves nothing behind.
  ::dup2(::open(out_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  ::dup2(::open(err_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  ::setenv("TMPDIR", folder_.c_str(), 1);
  ::unsetenv("FRESHET_RUN_DIR");
  if (!host_directory.empty()) ::setenv("FRESHET_RUN_DIR", host_directory.c_str(), 1);
  ::execv(program.c_str(), pointers.data());
  ::_exit(126);
}

int LiveProgram::wait() {
  int status = 0;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(kLookAgain);
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void LiveProgram::signal(int signal_number) const { ::kill(pid_, signal_number); }

std::string LiveProgram::out() const { return content_of(folder_ + "/out"); }
std::string LiveProgram::err() const { return content_of(folder_ + "/err"); }

nlohmann::json LiveProgram::summary() const {
  std::string text = out();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return nlohmann::json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
}

bool LiveProgram::wait_until(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    siginfo_t info = {};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid == pid_) return condition();
    std::this_thread::sleep_for(kLookAgain);
  }
  return true;
}

unsigned long LiveProgram::served() const {
  const std::string text = err();
  constexpr std::string_view kBefore = " served v";
  const std::size_t version = text.rfind(kBefore);
  return version == std::string::npos ? 0 : std::strtoul(text.c_str() + version + kBefore.size(), nullptr, 10);
}

std::vector<pid_t> LiveProgram::roles(const std::string& role) const {
  std::vector<std::pair<std::string, pid_t>> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || parent_of(pid) != pid_) continue;
    std::string command = content_of("/proc/" + pid + "/cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    const std::size_t index = command.find("--index=");
    if (index == std::string::npos || command.find("--role=" + role + " ") == std::string::npos) continue;
    found.emplace_back(command.substr(index), std::atoi(pid.c_str()));
  }
  std::sort(found.begin(), found.end());
  std::vector<pid_t> pids;
  for (const auto& [index, pid] : found) pids.push_back(pid);
  return pids;
}

}  // namespace freshet::live
