// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/children.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "core/base/format.h"

namespace freshet::live {
namespace {

constexpr std::size_t kLineBytesMax = std::size_t{16} << 20;
constexpr int kPipeBytes = 1 << 20;

/// Runs between fork and exec: system calls only.
[[noreturn]] void become(char* const* arguments, int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // It died before the line above.
  const int in = ::open("/dev/null", O_RDONLY);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::signal(SIGINT, SIG_IGN);  // The supervisor ends its roles in order.
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGHUP, SIG_IGN);
  ::execv("/proc/self/exe", arguments);
  ::_exit(127);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return format("killed by signal {}", WTERMSIG(status));
  return format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

std::string ChildName::text() const { return role == "server" ? format("server-{}", index) : role; }

Children::~Children() {
  for (const Child& child : children_) {
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    if (child.out >= 0) ::close(child.out);
  }
}

Status Children::start(const ChildName& name, std::uint32_t life, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"live_run", format("--role={}", name.role), format("--run={}", run_folder_),
                                    format("--index={}", name.index), format("--life={}", life)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, format("start {}", name.text()));
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);  // So that a role hardly ever waits for the supervisor.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(pointers.data(), ends[1], parent);
  const int fork_error = errno;
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return fail_errno(fork_error, format("start {}", name.text()));
  }
  children_.push_back(
      {.name = name, .life = life, .start = ++starts_, .pid = pid, .out = ends[0], .started = system_clock().now()});
  return {};
}

void Children::signal(const std::string& role, int signal_number) {
  for (const Child& child : children_) {
    if (child.name.role == role) ::kill(child.pid, signal_number);
  }
}

bool Children::alive(const std::string& role) const {
  for (const Child& child : children_) {
    if (child.name.role == role) return true;
  }
  return false;
}

void Children::wait(Duration at_most, const Handlers& handlers) {
  std::vector<pollfd> polled;
  for (const Child& child : children_) polled.push_back({.fd = child.out, .events = POLLIN, .revents = 0});
  const auto at_most_ms = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(at_most_ms));  // A signal ends it early, and so it may.
  for (Child& child : children_) read_lines(child, handlers);
  reap(handlers);
}

/// Hands over whole lines; the half line that a killed role left goes with it.
void Children::read_lines(Child& child, const Handlers& handlers) {
  char piece[1 << 16];
  while (child.out >= 0) {
    const ssize_t n = ::read(child.out, piece, sizeof(piece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      ::close(child.out);
      child.out = -1;
      break;
    }
    child.unread.append(piece, static_cast<std::size_t>(n));
  }
  std::size_t begin = 0;
  for (std::size_t end; (end = child.unread.find('\n', begin)) != std::string::npos; begin = end + 1) {
    handlers.on_line(child.unread.substr(begin, end - begin), child.start);
  }
  child.unread.erase(0, begin);
  if (child.unread.size() > kLineBytesMax) child.unread.clear();
}

void Children::reap(const Handlers& handlers) {
  std::vector<Exit> exits;
  for (std::size_t i = 0; i < children_.size();) {
    Child& child = children_[i];
    int status = 0;
    if (::waitpid(child.pid, &status, WNOHANG) != child.pid) {
      ++i;
      continue;
    }
    read_lines(child, handlers);
    if (child.out >= 0) ::close(child.out);
    exits.push_back({.name = child.name,
                     .life = child.life,
                     .lived = system_clock().now() - child.started,
                     .clean = WIFEXITED(status) && WEXITSTATUS(status) == 0,
                     .how = how_it_ended(status)});
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (const Exit& exit : exits) handlers.on_exit(exit);
}

}  // namespace freshet::live
