// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <thread>

#include "bindings/runtime/repository_folder.h"
#include "examples/live_run/loops/loop_tools.h"
#include "examples/live_run/role.h"
#include "repo/repository.h"
#include "repo/sink.h"

namespace freshet::live {
namespace {

constexpr Duration kStatInterval = std::chrono::seconds(1);
constexpr Duration kSinkNap = std::chrono::milliseconds(20);

void report_stored(const SinkOptions::Event& event) {
  report({{"event", "stored"},
          {"version", event.version.number},
          {"stored", event.status.has_value()},
          {"error", event.status ? "" : event.status.error().message()},
          {"bytes", event.own_bytes},
          {"gap", event.gap_before},
          {"put_ms", std::chrono::duration<double, std::milli>(event.put_time).count()}});
}

Status report_stat(const Repository& repository) {
  FRESHET_ASSIGN(const RepositoryStat stat, repository.stat());
  report({{"event", "repository"},
          {"versions", stat.versions},
          {"live_bytes", stat.live_bytes},
          {"disk_bytes", stat.disk_bytes}});
  return {};
}

}  // namespace

Status run_repository(const RunConfig& config, const RoleOptions&) {
  FRESHET_ASSIGN(const auto repository, open_repository(config.repository, {.access = RepositoryAccess::own}));
  {
    const HostPlan plan = plan_of(config, "repository");
    SinkOptions options;
    options.model = kModelName;
    options.at = plan.at;
    options.security = plan.security;
    options.on_event = report_stored;
    FRESHET_ASSIGN(const auto sink, Sink::open(*repository, std::move(options)));
    Every stat_due(kStatInterval);
    while (!stop_requested()) {
      if (stat_due.due(system_clock().now())) FRESHET_TRY(report_stat(*repository));
      std::this_thread::sleep_for(kSinkNap);  // The sink's own thread does the work.
    }
  }
  return report_stat(*repository);
}

}  // namespace freshet::live
