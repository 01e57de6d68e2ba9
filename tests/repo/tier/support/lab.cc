// SPDX-License-Identifier: Apache-2.0
#include "tests/repo/tier/support/lab.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "core/base/file_descriptor.h"

namespace freshet::test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(4);

/// Kills the program, and what it started, when it does not end by itself.
void end_within(std::chrono::milliseconds limit, pid_t child, const std::vector<std::string>& words) {
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd waiter{.fd = process.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&waiter, 1, static_cast<int>(limit.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready == 1) return;
  ADD_FAILURE() << "did not end: " << words.front() << " … " << words.back();
  (void)::kill(-child, SIGKILL);
}

}  // namespace

TierLab::TierLab(const std::string& more, int tiers, const std::string& quota) {
  std::filesystem::create_directories(source());
  std::ofstream out(config());
  out << "source = [\"" << source() << "\"]\n" << more << "\n";
  for (int i = 1; i <= tiers; ++i) out << "[[tier]]\npath = \"" << tier(i) << "\"\nquota = \"" << quota << "\"\n";
}

TierLab::~TierLab() { (void)tier_command({"stop"}); }

std::string TierLab::make(const std::string& name, std::size_t bytes, unsigned seed) const {
  std::string path = source(name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::mt19937_64 random(seed);
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

Ran TierLab::run(const std::vector<std::string>& words) const {
  // Two at once would share these.
  const std::string out = path("out." + std::to_string(::getpid()));
  const std::string err = path("err." + std::to_string(::getpid()));
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::setpgid(0, 0);
    ::setenv("FRESHET_TIER", config().c_str(), 1);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  end_within(kPatience, child, words);
  int status = 0;
  (void)::waitpid(child, &status, 0);
  return {.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .out = text_of(out),
          .err = text_of(err)};
}

Ran TierLab::tier_command(std::vector<std::string> words) const {
  words.insert(words.begin(), {FRESHET_PROGRAM, "tier"});
  return run(words);
}

Ran TierLab::served(const std::string& command) const { return tier_command({"run", "--", "/bin/sh", "-c", command}); }

void TierLab::fill() const {
  const Ran asked = tier_command({"prefetch"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  const Ran settled = tier_command({"settle"});
  ASSERT_EQ(settled.code, 0) << settled.err;
}

nlohmann::json TierLab::total() const {
  const Ran said = tier_command({"stat", "--json"});
  EXPECT_EQ(said.code, 0) << said.err;
  std::istringstream lines(said.out);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_object() && object.contains("total")) return object;
  }
  ADD_FAILURE() << "no total in: " << said.out;
  return {};
}

std::vector<std::string> TierLab::copies() const {
  std::vector<std::string> found;
  std::error_code error;
  for (int i = 1; i <= 8; ++i) {
    for (std::filesystem::recursive_directory_iterator at(tier(i), error), end; !error && at != end;
         at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (at->is_regular_file() && !name.starts_with(".freshet-")) found.push_back(at->path().string());
    }
    error.clear();
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace freshet::test
