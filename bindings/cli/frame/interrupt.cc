// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/interrupt.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "bindings/cli/frame/exit_code.h"
#include "core/base/check.h"
#include "core/base/wake.h"

namespace freshet::cli {
namespace {

// A handler reaches nothing but what is static.
std::atomic<int> g_event{-1};
std::atomic<bool> g_requested{false};
std::atomic<int> g_deferrals{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int /*signal*/) {
  const int saved_errno = errno;
  if (g_deferrals.load() == 0 || g_requested.exchange(true)) ::_exit(static_cast<int>(ExitCode::interrupted));
  const std::uint64_t one = 1;
  (void)!::write(g_event.load(), &one, sizeof(one));
  errno = saved_errno;
}

}  // namespace

Interrupt::Interrupt() {
  FRESHET_CHECK(g_event.load() == -1);
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  FRESHET_CHECK(event >= 0);
  g_event.store(event);
  ::sigemptyset(&own_signals_);
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM}) {
    struct sigaction before {};
    const bool is_ignored = ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!is_ignored) ::sigaddset(&own_signals_, signal);
  }
  struct sigaction handled {};
  handled.sa_handler = on_signal;
  handled.sa_flags = SA_RESTART;
  FRESHET_CHECK(::sigaction(SIGINT, &handled, nullptr) == 0 && ::sigaction(SIGTERM, &handled, nullptr) == 0);
  // A closed pipe is an error of write(), answered by Output.
  FRESHET_CHECK(::signal(SIGPIPE, SIG_IGN) != SIG_ERR);
}

bool Interrupt::requested() const { return g_requested.load(); }

int Interrupt::descriptor() const { return g_event.load(); }

bool Interrupt::wait_until(Time deadline) const {
  while (!requested()) {
    if (system_clock().now() >= deadline) return false;
    (void)wait_readable(descriptor(), deadline);
  }
  return true;
}

Interrupt::Deferral::Deferral() { ++g_deferrals; }
Interrupt::Deferral::~Deferral() { --g_deferrals; }

}  // namespace freshet::cli
