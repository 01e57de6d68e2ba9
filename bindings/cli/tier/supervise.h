// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `freshet tier run --via seccomp`: the kernel asks a supervisor at each open for reading that the command, or whoever
/// it starts, makes by itself (seccomp's user notifications, Linux 5.14). The supervisor answers with a descriptor of
/// the copy, or lets the open go on. So static programs and Go programs are served. The supervisor is a process of its
/// own, since it must outlive the command: what the command left behind could open nothing without it.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/tier/config.h"

namespace freshet::cli {

/// Starts the supervisor, then the command under it. The command begins with the default action for each signal in
/// `defaults`. unsupported when the kernel does not let a process be supervised.
Result<pid_t> start_supervised(const tier::Config& config, const std::vector<std::string>& command,
                               const std::string& program, std::vector<std::string> environment,
                               const sigset_t& defaults);

/// The supervisor: takes the listener from its standard input, and answers until nobody is left to ask.
Status supervise(const tier::Config& config);

/// Whether the kernel lets a process that this one starts be supervised. Tried in a process of its own, which ends.
bool can_supervise();

}  // namespace freshet::cli
