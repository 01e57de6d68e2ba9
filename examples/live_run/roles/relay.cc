// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <thread>

#include "examples/live_run/role.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::live {
namespace {

constexpr Duration kRelayNap = std::chrono::milliseconds(20);

}  // namespace

/// Follows the trainer and serves what it has again: the trainer sends each version once, however many servers stand
/// behind the relay.
Status run_relay(const RunConfig& config, const RoleOptions&) {
  const HostPlan plan = plan_of(config, "relay");
  SubscriberOptions options = subscriber_options(config, "relay");
  FRESHET_ASSIGN(options.relay,
                 open_publisher_hub(
                     {.listen = plan.listen, .directory = plan.directory, .security = plan.security, .advertise = {}}));
  FRESHET_ASSIGN(const auto subscriber, Subscriber::open(std::move(options)));
  while (!stop_requested()) std::this_thread::sleep_for(kRelayNap);  // The subscriber's own threads do the work.
  return {};
}

}  // namespace freshet::live
