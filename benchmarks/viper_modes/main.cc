// SPDX-License-Identifier: Apache-2.0
/// Viper's Figures 8 and 9 on its model sizes (ICPP'24, section 5.3). Figure 8: the latency of an update from the
/// training process on one host to the serving one on another, through a file or from memory to memory, while the
/// training waits for it (sync) or goes on (async). Figure 9: what that means for training and for inference.

#include <fstream>

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/route.h"
#include "benchmarks/viper_modes/live.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kTensors = 40;
constexpr int kWarmUps = 1;
/// Copies of the model that a case holds at a time: the trainer's, 2.2 in its arena, 2.1 in the server's, a file's
/// worth of page cache, and some air.
constexpr std::uint64_t kCopiesInMemory = 8;

struct Application {
  const char* name;
  std::uint64_t bytes;  ///< As in the paper.
};
constexpr Application kApplications[] = {
    {"NT3.A", 600'000'000}, {"NT3.B", 1'700'000'000}, {"TC1", 4'700'000'000}, {"PtychoNN", 4'500'000'000}};

std::uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::string unit;
  for (std::uint64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

/// Scaled down to what this machine's memory holds.
std::uint64_t size_here(const Application& application, bool quick) {
  const std::uint64_t wanted = quick ? application.bytes / 16 : application.bytes;
  return std::min(wanted, available_bytes() / kCopiesInMemory);
}

struct Mode {
  const char* name;
  const char* channel;
  bool sync;
};
constexpr Mode kModes[] = {{"file_sync", "file", true},
                           {"file_async", "file", false},
                           {"host_sync", "ucx", true},
                           {"host_async", "ucx", false}};

class Figure8 {
 public:
  Figure8(const ProgramOptions& options, Report& report)
      : report_(report), repetitions_(options.repetitions_or(3, 3)) {}

  Status open() {
    if (!lab::why_no_lab().empty()) return fail(Code::unavailable, lab::why_no_lab());
    FRESHET_ASSIGN(network_, lab::Network::create({"producer", "consumer"}));
    return {};
  }

  Status measure(const std::string& name, const Mode& mode, std::uint64_t bytes) {
    const lab::Host& producer = network_->host("producer");
    FRESHET_ASSIGN(const auto route,
                   Route::between(producer, network_->host("consumer"), producer.address(), mode.channel));
    route->set_environment({"UCX_TLS=tcp", "UCX_NET_DEVICES=eth0"});
    FRESHET_ASSIGN(const auto publisher,
                   route->publish({.bytes = bytes, .tensors = kTensors, .sync = mode.sync, .arena_copies = 2.2}));
    FRESHET_ASSIGN(const auto subscriber, route->subscribe(*publisher, {}));
    Samples updated_ms;
    Samples blocked_ms;
    for (int round = -kWarmUps; round < repetitions_; ++round) {
      FRESHET_TRY(publisher->rewrite(static_cast<std::uint64_t>(round + 100)));
      FRESHET_ASSIGN(const UpdateTimes times, update(*publisher, *subscriber));
      if (round < 0) continue;
      updated_ms.add(times.swapped_ms);
      blocked_ms.add(times.blocked_ms);
    }
    FRESHET_TRY(check_same(*publisher, *subscriber));
    report_.add_row(name, std::string(mode.name) + "_update", "ms", updated_ms);
    report_.add_row(name, std::string(mode.name) + "_training_blocked", "ms", blocked_ms);
    return {};
  }

 private:
  Report& report_;
  const int repetitions_;
  std::unique_ptr<lab::Network> network_;
};

Status measure(const ProgramOptions& options, Report& report) {
  Figure8 figure(options, report);
  const Status opened = figure.open();
  report.skip_failed("update_latency", opened);
  for (const Application& application : kApplications) {
    const std::uint64_t bytes = size_here(application, options.quick);
    const std::string name = format("{}_{:.2f}GB", application.name, static_cast<double>(bytes) / 1e9);
    for (const Mode& mode : kModes) {
      if (!opened) break;
      report.skip_failed(format("{} {}", name, mode.name), figure.measure(name, mode, bytes));
    }
    const double file = report.median(name, "file_async_update");
    report.set_ratio(format("host_vs_file_{}", application.name), file / report.median(name, "host_async_update"));
  }
  measure_live_runs(options, report);
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "viper_modes",
                      .about = "Viper's Figures 8 and 9: update latency and inference loss by channel and mode",
                      .measure = measure});
}
