// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the roles have in common: they read the run's configuration, report to the supervisor as JSON lines on stdout,
/// and end when they are told to (SIGTERM).

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/result.h"
#include "examples/live_run/options.h"
#include "transport/subscriber.h"

namespace freshet::live {

/// Each runs until it is told to stop. An error is what ended it early.
Status run_relay(const RunConfig& config, const RoleOptions& role);
Status run_trainer(const RunConfig& config, const RoleOptions& role);
Status run_server(const RunConfig& config, const RoleOptions& role);
Status run_repository(const RunConfig& config, const RoleOptions& role);
Status run_load(const RunConfig& config, const RoleOptions& role);

/// What the plan says of this role; nothing special where there is none.
HostPlan plan_of(const RunConfig& config, const std::string& role);
/// For following the model in that role.
SubscriberOptions subscriber_options(const RunConfig& config, const std::string& role);

/// Reads the configuration, installs the signal handlers and runs the role; returns the exit code.
int role_main(const RoleOptions& role);

/// True once SIGTERM came: end. Any thread.
bool stop_requested();
/// True once SIGUSR1 came: a trainer trains no more, but goes on serving what it published. Any thread.
bool finish_requested();

/// Writes a line to stdout, whole. Any thread. A supervisor that is gone ends the process.
void report(const nlohmann::json& event);

}  // namespace freshet::live
