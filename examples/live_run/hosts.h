// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Roles on different hosts: where each one runs, where it listens, and whom it connects to. Without a plan all of them
/// are on this host and meet in its directory.
///
/// A plan is a JSON file (`live_run --hosts FILE`): an object for each role that is not as usual, with any of
///   netns      a network namespace to live in, a path (scripts/three_hosts.sh makes some)
///   directory  folder of the host directory; roles that share one are on one host, as far as files go
///   listen     address at which a trainer or a relay serves the model, tcp://10.77.0.1:7070
///   at         address of the trainer or relay that a relay, server or repository follows
///   keys, allow, server_key, trusted_fabric    as in SecurityOptions
///   channel    the only data channel that it may use; the selector's choice without
/// A plan with the role `relay` starts one: a process that follows `at` and serves again at `listen`.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "transport/channel_kind.h"
#include "transport/security.h"

namespace freshet::live {

/// What a plan says of one role; empty texts where it says nothing.
struct HostPlan {
  std::string netns;
  std::string directory;
  std::string listen;
  std::vector<std::string> at;
  std::optional<ChannelKind> channel;
  SecurityOptions security;
};

using HostPlans = std::map<std::string, HostPlan>;

/// invalid_argument for a role or a key that nobody knows, naming it.
Result<HostPlans> parse_host_plans(const std::string& json_text);
Result<HostPlans> read_host_plans(const std::string& path);
std::string to_json(const HostPlans& plans);

/// Moves this process to its host. REQUIRES: it has one thread and no socket.
Status enter_host(const HostPlan& plan);

}  // namespace freshet::live
