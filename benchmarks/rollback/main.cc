// SPDX-License-Identifier: Apache-2.0
/// Back to yesterday's version: from the command until the server serves the version before, of which one element in a
/// hundred differs, against a memcpy of the model.

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/route.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kWarmUps = 2;
constexpr std::uint64_t kTensors = 16;
constexpr double kShare = 0.01;

struct Plan {
  std::uint64_t model_bytes;
  int repetitions;
};

Status measure_route(const std::string& channel, const Plan& plan, Report& report) {
  FRESHET_ASSIGN(const auto route, Route::on_this_host(channel));
  FRESHET_ASSIGN(const auto publisher, route->publish({.bytes = plan.model_bytes, .tensors = kTensors, .keep = 4}));
  FRESHET_ASSIGN(const auto subscriber, route->subscribe(*publisher, {}));
  Samples rollback_ms;
  Samples memcpy_ms;
  Samples fetched_mb;
  FRESHET_ASSIGN(UpdateTimes before, update(*publisher, *subscriber));
  FRESHET_ASSIGN(std::string digest_before, publisher->digest());
  for (int round = -kWarmUps; round < plan.repetitions; ++round) {
    FRESHET_TRY(publisher->step(kShare, static_cast<std::uint64_t>(round + 100)));
    FRESHET_ASSIGN(const UpdateTimes after, update(*publisher, *subscriber));
    FRESHET_ASSIGN(const std::string start_ns, publisher->ask(format("rollback {}", before.published.version)));
    FRESHET_ASSIGN(const Swapped back, subscriber->wait_for(before.published.version));
    if (back.version != before.published.version)
      return fail(Code::corrupt, format("version {} instead of {}", back.version, before.published.version));
    FRESHET_ASSIGN(const std::string digest, subscriber->digest());
    if (digest != digest_before) return fail(Code::corrupt, "it does not serve the bytes of the version before");
    FRESHET_TRY(publisher->ask("release"));
    FRESHET_ASSIGN(const Swapped forth, subscriber->wait_for(after.published.version));
    FRESHET_ASSIGN(const std::string copy_ms, publisher->ask("memcpy"));
    before = after;
    FRESHET_ASSIGN(digest_before, publisher->digest());
    if (round < 0) continue;
    rollback_ms.add(static_cast<double>(back.at_ns - std::strtoll(start_ns.c_str(), nullptr, 10)) / 1e6);
    fetched_mb.add(static_cast<double>(back.bytes_fetched) / 1e6);
    memcpy_ms.add(std::strtod(copy_ms.c_str(), nullptr));
  }
  report.add_row(channel, "rollback", "ms", rollback_ms);
  report.add_row(channel, "fetched", "MB", fetched_mb);
  report.add_row(channel, "memcpy", "ms", memcpy_ms);
  report.set_ratio("rollback_vs_memcpy_" + channel, memcpy_ms.median() / rollback_ms.median());
  if (channel == "zmq") report.set_ratio("rollback_vs_memcpy", memcpy_ms.median() / rollback_ms.median());
  return {};
}

Status measure(const ProgramOptions& options, Report& report) {
  const int repetitions = options.repetitions_or(5, 11);
  const std::uint64_t mebibytes = options.quick ? 64 : 512;
  const Plan plan{.model_bytes = mebibytes << 20, .repetitions = repetitions};
  for (const std::string channel : {"shm", "zmq", "ucx"}) {
    report.skip_failed(channel, measure_route(channel, plan, report));
  }
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "rollback",
                      .about = "From the command until the version before is served, against a memcpy",
                      .measure = measure});
}
