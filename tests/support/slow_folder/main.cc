// SPDX-License-Identifier: Apache-2.0
/// slow_folder: shows a folder as a slow file system would, until its standard input ends. It answers each command, a
/// line on its standard input, with a line of JSON:
///
///   counters                            what was asked of the folder since the last reset
///   reset
///   invalidate                          the kernel forgets names, attributes and pages
///   pace LATENCY_US BYTES_PER_SECOND    0: none, no limit
///   fail OPERATION ERRNO AFTER PATH     an operation (read, open, lookup, write, …; any) on a path below the mount (*:
///   on any)
///                                       fails once AFTER of them worked
///   die OPERATION AFTER PATH            the process that asks for that is killed, once
///   cut BYTES PATH                      reads of the file end there
///   heal                                takes all fail and cut back
///
/// usage: slow_folder --backing FOLDER --mount FOLDER [--latency-us N] [--bandwidth BYTES_PER_SECOND] [--uncached]

#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <thread>

#include "core/base/format.h"
#include "tests/support/slow_folder/operations.h"

namespace freshet::slow {
namespace {

constexpr unsigned kThreads = 64;
int g_signal_pipe[2];

struct Options {
  std::string backing;
  std::string mount;
  std::int64_t latency_us = 0;
  double bytes_per_second = 0;
  bool uncached = false;
};

void invalidate(fuse_session* session, const SlowFs& fs) {
  for (const Remembered& one : fs.backing.remembered()) {
    (void)fuse_lowlevel_notify_inval_inode(session, one.node, 0, 0);
    if (one.parent != 0) {
      (void)fuse_lowlevel_notify_inval_entry(session, one.parent, one.name.data(), one.name.size());
    }
  }
}

ssize_t read_request(int fd, void* room, std::size_t bytes, void* /*data*/) { return ::read(fd, room, bytes); }

/// libfuse 3.14 takes FUSE_CAP_PARALLEL_DIROPS and forgets to tell the kernel, which then has one lookup at a time in a
/// folder. It is told here: the first answer is that to FUSE_INIT.
ssize_t write_answer(int fd, iovec* parts, int count, void* /*data*/) {
  static std::atomic<bool> is_first = true;
  if (count > 1 && parts[1].iov_len >= offsetof(fuse_init_out, flags) + sizeof(std::uint32_t) &&
      is_first.exchange(false)) {
    static_cast<fuse_init_out*>(parts[1].iov_base)->flags |= FUSE_PARALLEL_DIROPS;
  }
  return ::writev(fd, parts, count);
}

std::string counters_of(SlowFs& fs) {
  std::string text = "{";
  for (int i = 0; i < kCounters; ++i) {
    text += format("{}\"{}\":{}", i == 0 ? "" : ",", kCounterNames[i], fs.counters[static_cast<std::size_t>(i)].load());
  }
  return text + "}";
}

std::string rest_of(std::istringstream& words) {
  std::string rest;
  words >> std::ws;
  std::getline(words, rest);
  return rest;
}

std::string answer_to(const std::string& line, fuse_session* session, SlowFs& fs) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  if (verb == "counters") return counters_of(fs);
  if (verb == "reset") {
    for (auto& counter : fs.counters) counter = 0;
  } else if (verb == "invalidate") {
    invalidate(session, fs);
  } else if (verb == "pace") {
    std::int64_t latency_us = -1;
    double bytes_per_second = -1;
    if (!(words >> latency_us >> bytes_per_second) || latency_us < 0 || bytes_per_second < 0) return "{\"ok\":false}";
    fs.pace.set(latency_us * 1000, bytes_per_second);
  } else if (verb == "fail") {
    Fault fault;
    if (!(words >> fault.operation >> fault.error >> fault.after) || fault.error <= 0) return "{\"ok\":false}";
    fault.path = rest_of(words);
    fs.faults.add(std::move(fault));
  } else if (verb == "die") {
    Fault fault{.operation = "", .error = kDies, .after = 0, .path = ""};
    if (!(words >> fault.operation >> fault.after)) return "{\"ok\":false}";
    fault.path = rest_of(words);
    fs.faults.add(std::move(fault));
  } else if (verb == "cut") {
    Fault fault;
    if (!(words >> fault.after)) return "{\"ok\":false}";
    fault.path = rest_of(words);
    fs.faults.add(std::move(fault));
  } else if (verb == "heal") {
    fs.faults.clear();
  } else {
    return "{\"ok\":false}";
  }
  return "{\"ok\":true}";
}

void on_signal(int /*signal*/) { (void)!::write(g_signal_pipe[1], "x", 1); }

/// Until the input ends, or a signal comes.
void serve_commands(fuse_session* session, SlowFs& fs) {
  std::string heard;
  for (;;) {
    pollfd polled[2] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                        {.fd = g_signal_pipe[0], .events = POLLIN, .revents = 0}};
    if (::poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    if (polled[0].revents == 0) continue;
    char bytes[4096];
    const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (got <= 0) return;
    heard.append(bytes, static_cast<std::size_t>(got));
    for (std::size_t end = heard.find('\n'); end != std::string::npos; end = heard.find('\n')) {
      std::cout << answer_to(heard.substr(0, end), session, fs) << std::endl;
      heard.erase(0, end + 1);
    }
    if (!std::cout) return;
  }
}

/// A node is a descriptor.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(const Options& options) {
  FileDescriptor root(::open(options.backing.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) {
    std::cerr << "slow_folder: " << options.backing << ": " << std::strerror(errno) << "\n";
    return 1;
  }
  raise_descriptor_limit();
  ::umask(0);
  (void)::prctl(PR_SET_TIMERSLACK, 1UL);  // Threads that are made later have it too.
  SlowFs fs(std::move(root), !options.uncached);
  fs.pace.set(options.latency_us * 1000, options.bytes_per_second);

  // Whatever ends this process, its mount goes: fusermount3 waits beside it for that.
  fuse_args arguments = FUSE_ARGS_INIT(0, nullptr);
  for (const char* word : {"slow_folder", "-oauto_unmount,default_permissions,fsname=slow_folder,subtype=freshet"}) {
    if (fuse_opt_add_arg(&arguments, word) != 0) return 1;
  }
  if (::geteuid() == 0 && fuse_opt_add_arg(&arguments, "-oallow_other") != 0) return 1;
  fuse_session* const session = fuse_session_new(&arguments, &operations(), sizeof(fuse_lowlevel_ops), &fs);
  fuse_opt_free_args(&arguments);
  if (session == nullptr) return 1;
  if (fuse_session_mount(session, options.mount.c_str()) != 0) {
    std::cerr << "slow_folder: cannot mount at " << options.mount << "\n";
    fuse_session_destroy(session);
    return 1;
  }
  const fuse_custom_io io = {
      .writev = write_answer, .read = read_request, .splice_receive = nullptr, .splice_send = nullptr};
  if (::pipe2(g_signal_pipe, O_CLOEXEC) != 0 || fuse_session_custom_io(session, &io, fuse_session_fd(session)) != 0)
    return 1;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) (void)std::signal(signal, on_signal);
  (void)std::signal(SIGPIPE, SIG_IGN);
  std::thread loop([session] {
    fuse_loop_config* const config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, kThreads);
    fuse_loop_cfg_set_idle_threads(config, kThreads);
    (void)fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
  });
  std::cout << "{\"ready\":true}" << std::endl;
  serve_commands(session, fs);
  // The loop's threads find the device closed, which is no news.
  (void)::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
  fuse_session_unmount(session);
  // Programs may still have files open there, which would keep the loop alive; with this process they get errors.
  loop.detach();
  std::cout.flush();
  ::_exit(0);
}

}  // namespace
}  // namespace freshet::slow

int main(int count, char** words) {
  freshet::slow::Options options;
  CLI::App app("Shows a folder as a slow file system would, until its standard input ends", "slow_folder");
  app.add_option("--backing", options.backing, "What is shown")->required();
  app.add_option("--mount", options.mount, "Where; a folder that is there")->required();
  app.add_option("--latency-us", options.latency_us, "What each operation takes")->check(CLI::NonNegativeNumber);
  app.add_option("--bandwidth", options.bytes_per_second, "Bytes a second, of all together; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--uncached", options.uncached, "The kernel remembers nothing");
  CLI11_PARSE(app, count, words);
  return freshet::slow::run(options);
}
