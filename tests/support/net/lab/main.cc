// SPDX-License-Identifier: Apache-2.0
/// Some hosts at a switch for as long as a command runs, for scripts:
///
///     net_lab --host trainer --host server --loss 0.01 -- COMMAND ARG…
///
/// COMMAND starts outside of them and finds in its environment, for each host, LAB_TRAINER_NETNS (a path for `nsenter
/// --net=…`) and LAB_TRAINER_ADDRESS. Ends with the command's exit code; the hosts go with it.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <thread>

#include "core/base/format.h"
#include "tests/support/net/lab/network.h"

namespace freshet::lab {
namespace {

struct Options {
  std::vector<std::string> hosts;
  std::vector<std::string> command;
  double loss = 0;
  std::uint64_t rate = 0;
  bool big_packets = false;
  std::string cut;  ///< The host whose cable is pulled now and then.
  double cut_every_s = 30;
  double cut_for_s = 2;
};

volatile sig_atomic_t g_child = 0;

void hand_on(int signal_number) {
  if (g_child > 0) ::kill(g_child, signal_number);
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

Status shape(Network& network, const Options& options) {
  for (const std::string& name : options.hosts) {
    Host& host = network.host(name);
    if (!options.big_packets) FRESHET_TRY(host.set_big_packets(false));
    if (options.rate > 0) FRESHET_TRY(host.set_rate(options.rate));
    FRESHET_TRY(host.set_loss(options.loss));
    ::setenv(format("LAB_{}_NETNS", upper(name)).c_str(), host.space().path().c_str(), 1);
    ::setenv(format("LAB_{}_ADDRESS", upper(name)).c_str(), host.address().c_str(), 1);
  }
  return {};
}

pid_t start(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // Without the hosts it has nothing to do.
  if (::getppid() != parent) ::_exit(127);
  ::execvp(argv[0], argv.data());
  std::perror(argv[0]);
  ::_exit(127);
}

/// Pulls a cable now and then until the command has ended.
void pull_cable(Host& host, const Options& options, const std::atomic<bool>& ended) {
  using Seconds = std::chrono::duration<double>;
  bool cut = false;
  Time next = system_clock().now() + std::chrono::duration_cast<Duration>(Seconds(options.cut_every_s));
  while (!ended) {
    if (system_clock().now() >= next) {
      cut = !cut;
      if (const Status set = host.set_loss(cut ? 1 : options.loss); !set)
        std::fprintf(stderr, "net_lab: %s\n", set.error().message().c_str());
      next = system_clock().now() +
             std::chrono::duration_cast<Duration>(Seconds(cut ? options.cut_for_s : options.cut_every_s));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Result<int> run(const Options& options) {
  if (!why_no_lab().empty()) return fail(Code::unavailable, why_no_lab());
  FRESHET_ASSIGN(const auto network, Network::create(options.hosts));
  FRESHET_TRY(shape(*network, options));
  const pid_t pid = start(options.command);
  if (pid < 0) return fail(Code::unavailable, "cannot start the command");
  g_child = pid;
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal_number, hand_on);
  std::atomic<bool> ended = false;
  std::thread cable;
  if (!options.cut.empty()) cable = std::thread([&] { pull_cable(network->host(options.cut), options, ended); });
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ended = true;
  if (cable.joinable()) cable.join();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_main(int argc, char** argv) {
  CLI::App app("Hosts in network namespaces for as long as a command runs", "net_lab");
  Options options;
  app.add_option("--host", options.hosts, "A host's name; may be given several times")->required();
  app.add_option("--loss", options.loss, "The share of packets that each host loses")->check(CLI::Range(0.0, 1.0));
  app.add_option("--rate", options.rate, "Bits a second that each host sends at most");
  app.add_flag("--big-packets", options.big_packets, "Segments of 64 KiB instead of single frames");
  app.add_option("--cut", options.cut, "The host whose cable is pulled now and then")
      ->check([&options](const std::string& name) {
        const bool known = std::find(options.hosts.begin(), options.hosts.end(), name) != options.hosts.end();
        return known ? std::string() : "no --host " + name;
      });
  app.add_option("--cut-every", options.cut_every_s, "Seconds")->check(CLI::Range(0.1, 1e6));
  app.add_option("--cut-for", options.cut_for_s, "Seconds")->check(CLI::Range(0.1, 1e6));
  app.add_option("command", options.command, "What to run")->required();
  CLI11_PARSE(app, argc, argv);
  const auto code = run(options);
  if (code) return *code;
  std::fprintf(stderr, "net_lab: %s\n", code.error().message().c_str());
  return code.error().code() == Code::unavailable ? 5 : 1;
}

}  // namespace
}  // namespace freshet::lab

int main(int argc, char** argv) { return freshet::lab::run_main(argc, argv); }
