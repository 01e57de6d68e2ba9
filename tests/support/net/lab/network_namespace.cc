// SPDX-License-Identifier: Apache-2.0
#include "tests/support/net/lab/network_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <thread>

#include "core/base/format.h"

extern char** environ;

namespace freshet::lab {
namespace {

/// Runs a program to its end from the calling thread, in whatever namespace that stands.
Result<std::string> run_program(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string said;
  std::array<char, 1024> piece;
  for (ssize_t n; (n = ::read(ends[0], piece.data(), piece.size())) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) said.append(piece.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  if (error != 0) return fail_errno(error, words[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return said;
  std::string line;
  for (const std::string& word : words) line += word + " ";
  return fail(Code::io_error, format("{}: {}", line, said.substr(0, said.find_last_not_of('\n') + 1)));
}

Result<FileDescriptor> unshare_here() {
  if (::unshare(CLONE_NEWNET) != 0) return fail_errno(errno, "unshare");
  const int descriptor = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail_errno(errno, "open /proc/thread-self/ns/net");
  return FileDescriptor(descriptor);
}

std::string try_lab() {
  auto created = NetworkNamespace::create();
  if (!created) return "network namespaces cannot be made: " + created.error().message();
  if (const Status veth = created->command({"ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"});
      !veth)
    return "network links cannot be made: " + veth.error().message();
  if (const Status rule = created->command(
          {"iptables", "-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "DROP"});
      !rule)
    return "packets cannot be dropped: " + rule.error().message();
  if (::access("/dev/net/tun", R_OK | W_OK) != 0) return "/dev/net/tun cannot be opened";
  return {};
}

}  // namespace

Result<NetworkNamespace> NetworkNamespace::create() {
  Result<FileDescriptor> made = fail(Code::unavailable, "not tried");
  std::thread([&] { made = unshare_here(); }).join();
  if (!made) return fail(std::move(made).error());
  NetworkNamespace created(std::move(*made));
  FRESHET_TRY(created.command({"ip", "link", "set", "lo", "up"}));
  return created;
}

std::string NetworkNamespace::path() const { return format("/proc/{}/fd/{}", ::getpid(), descriptor_.get()); }

Status NetworkNamespace::run(const std::function<Status()>& work) const {
  Status result;
  std::thread([&] {
    if (::setns(descriptor_.get(), CLONE_NEWNET) != 0) {
      result = fail_errno(errno, "enter a network namespace");
    } else {
      result = work();
    }
  }).join();
  return result;
}

Status NetworkNamespace::command(const std::vector<std::string>& words) const {
  FRESHET_TRY(output_of(words));
  return {};
}

Result<std::string> NetworkNamespace::output_of(const std::vector<std::string>& words) const {
  Result<std::string> output = std::string();
  FRESHET_TRY(run([&]() -> Status {
    output = run_program(words);
    return {};
  }));
  return output;
}

Status NetworkNamespace::set_kernel_parameter(const std::string& name, const std::string& value) const {
  return run([&]() -> Status {
    std::ofstream file("/proc/sys/" + name);
    file << value << std::flush;
    if (!file) return fail(Code::io_error, format("{} cannot be set to {}", name, value));
    return {};
  });
}

const std::string& why_no_lab() {
  static const std::string reason = try_lab();
  return reason;
}

}  // namespace freshet::lab
