// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/viper_modes/live.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "benchmarks/stream/route.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

using nlohmann::json;

constexpr const char* kSchedule = "every:40";
constexpr const char* kScale = "64MB";

/// Every role on this host; trainer and servers as strangers who must fetch, unless the channel is shared memory.
Result<json> hosts_of(const std::string& channel, const ScratchFolder& scratch, const KeyFolder& keys) {
  FRESHET_ASSIGN(const std::string trainer_host, scratch.folder("trainer-host"));
  json hosts = {{"trainer", {{"directory", trainer_host}}},
                {"repository", {{"directory", trainer_host}}},
                {"server", {{"directory", trainer_host}, {"channel", channel}}}};
  if (channel == "shm") return hosts;
  FRESHET_ASSIGN(const std::string server_host, scratch.folder("server-host"));
  const std::string address = format("tcp://127.0.0.1:{}", next_port());
  const SecurityOptions trainer = keys.trainer();
  const SecurityOptions server = keys.server(false);
  hosts["trainer"].update(
      {{"listen", address}, {"keys", trainer.key_file}, {"allow", trainer.allow_file}, {"trusted_fabric", true}});
  hosts["repository"].update({{"keys", server.key_file}, {"server_key", server.server_key}});
  hosts["server"].update({{"directory", server_host},
                          {"at", address},
                          {"keys", server.key_file},
                          {"server_key", server.server_key},
                          {"trusted_fabric", true}});
  return hosts;
}

Result<json> run_live(const std::string& channel, int seconds) {
  const auto program = std::filesystem::path(own_path()).parent_path().parent_path() / "live_run";
  if (!std::filesystem::exists(program)) return fail(Code::unavailable, program.string() + " is not there");
  FRESHET_ASSIGN(const auto scratch, ScratchFolder::create());
  FRESHET_ASSIGN(const KeyFolder keys, KeyFolder::create(scratch->path()));
  FRESHET_ASSIGN(const json hosts, hosts_of(channel, *scratch, keys));
  const std::string plan = scratch->path() + "/hosts.json";
  std::ofstream(plan) << hosts.dump();
  FRESHET_ASSIGN(const auto child,
                 Child::start({program.string(), "--json", "--hosts=" + plan, "--report=" + scratch->path() + "/report",
                               std::string("--schedule=") + kSchedule, std::string("--scale=") + kScale, "--servers=1",
                               format("--seconds={}", seconds)}));
  FRESHET_ASSIGN(const std::string line, child->read_line(std::chrono::seconds(seconds + 120)));
  json summary = json::parse(line, nullptr, false);
  if (!summary.is_object()) return fail(Code::corrupt, "live_run said no summary");
  return summary;
}

Status measure_channel(const std::string& channel, int seconds, Report& report) {
  FRESHET_ASSIGN(const json summary, run_live(channel, seconds));
  const auto number = [&](const char* key) { return summary.value(key, 0.0); };
  if (number("torn_reads") > 0 || number("failed_requests") > 0 || number("versions_served") < 2)
    return fail(Code::failed_precondition, "torn reads, failed requests, or nothing served: " + summary.dump());
  const std::string name = "live_" + channel;
  report.add_row(name, "cumulative_inference_loss", "nats per byte and request",
                 number("cumulative_inference_loss") / number("requests"));
  report.add_row(name, "training_overhead", "% of the time", number("blocked_ms_total") / number("seconds") / 10);
  report.add_row(name, "blocked_a_version", "ms", summary["blocked_ms"].value("p50", 0.0));
  report.add_row(name, "update_latency", "ms", summary["update_latency_ms"].value("p50", 0.0));
  report.add_row(name, "versions", "count", number("versions_published"));
  return {};
}

}  // namespace

void measure_live_runs(const ProgramOptions& options, Report& report) {
  const int seconds = options.quick ? 6 : 30;
  for (const std::string channel : {"shm", "ucx", "zmq"}) {
    report.skip_failed("live_" + channel, measure_channel(channel, seconds, report));
  }
}

}  // namespace freshet::benchmarks
