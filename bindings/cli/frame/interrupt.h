// SPDX-License-Identifier: Apache-2.0
#pragma once

/// SIGINT and SIGTERM. Where ending at once is harmless (a repository is safe against a crash at any instant) the
/// signal ends the program with 130. A command that has something to close (a publisher, a subscriber, a half-written
/// file) holds a Deferral: the first signal is then only noted, and the command is to look; a second one ends the
/// program anyway.

#include <signal.h>

#include <chrono>

#include "core/base/clock.h"

namespace freshet::cli {

/// Any thread. There is one, since a process has one set of signal handlers.
class Interrupt {
 public:
  /// Installs the handlers. Call once, before any thread is started.
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
  /// Sleeps until then or until a signal was noted, whichever comes first. True for the latter. REQUIRES: a Deferral.
  bool wait_until(Time deadline) const;
  /// Becomes readable, and stays so, when a signal was noted.
  int descriptor() const;
  /// The signals that this program handles or ignores, without those that its caller ignored already. A command that
  /// this program starts gets the default of these.
  const sigset_t& own_signals() const { return own_signals_; }

  class Deferral {
   public:
    Deferral();
    ~Deferral();
    Deferral(const Deferral&) = delete;
    Deferral& operator=(const Deferral&) = delete;
  };

 private:
  sigset_t own_signals_;
};

/// How often a wait that cannot watch the descriptor looks whether it was interrupted.
inline constexpr Duration kInterruptLatency = std::chrono::milliseconds(50);

}  // namespace freshet::cli
