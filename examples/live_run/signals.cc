// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/signals.h"

#include <atomic>
#include <csignal>

namespace freshet::live {
namespace {

std::atomic<int> g_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free, "counted in a signal handler");

void on_interrupt(int) { ++g_interrupts; }

}  // namespace

void count_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal_number, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

int interrupt_count() { return g_interrupts; }

}  // namespace freshet::live
