// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/role.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "core/base/mutex.h"
#include "core/base/text.h"

namespace freshet::live {
namespace {

std::atomic<bool> g_stop{false};
std::atomic<bool> g_finish{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from signal handlers");

void on_stop_signal(int) { g_stop = true; }
void on_finish_signal(int) { g_finish = true; }

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction finish = {};
  finish.sa_handler = on_finish_signal;
  sigaction(SIGUSR1, &finish, nullptr);
  // Ctrl-C reaches every process of the terminal. Under a supervisor, which ends its roles in order, it is ignored
  // already.
  struct sigaction inherited = {};
  sigaction(SIGINT, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaction(SIGINT, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

Status run_role(const RunConfig& config, const RoleOptions& role) {
  if (role.role == "trainer") return run_trainer(config, role);
  if (role.role == "relay") return run_relay(config, role);
  if (role.role == "server") return run_server(config, role);
  if (role.role == "repository") return run_repository(config, role);
  return run_load(config, role);
}

/// Libraries under a role may throw (ZeroMQ, an allocation); nothing of that leaves the process as anything but an
/// error.
Status run_guarded(const RoleOptions& role) {
  try {
    FRESHET_ASSIGN(const RunConfig config, read_config(role.run_folder));
    FRESHET_TRY(enter_host(plan_of(config, role.role)));
    return run_role(config, role);
  } catch (const std::exception& error) {
    return fail(Code::unavailable, error.what());
  }
}

}  // namespace

bool stop_requested() { return g_stop; }
bool finish_requested() { return g_finish; }

HostPlan plan_of(const RunConfig& config, const std::string& role) {
  const auto found = config.options.hosts.find(role);
  return found == config.options.hosts.end() ? HostPlan{} : found->second;
}

SubscriberOptions subscriber_options(const RunConfig& config, const std::string& role) {
  const HostPlan plan = plan_of(config, role);
  SubscriberOptions options;
  options.model = kModelName;
  options.label = role;
  options.at = plan.at;
  options.security = plan.security;
  options.channel = plan.channel;
  return options;
}

void report(const nlohmann::json& event) {
  static Mutex mutex;
  const std::string line = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::size_t written = 0;
  MutexLock lock(mutex);  // Lines must not mix; the pipe behind stdout is read all the time.
  while (written < line.size()) {
    const ssize_t n = ::write(STDOUT_FILENO, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(1);
    written += static_cast<std::size_t>(n);
  }
}

int role_main(const RoleOptions& role) {
  install_signal_handlers();
  const Status status = run_guarded(role);
  if (status) return 0;
  std::fprintf(stderr, "live_run %s: %s\n", role.role.c_str(), printable(status.error().message()).c_str());
  return 1;
}

}  // namespace freshet::live
