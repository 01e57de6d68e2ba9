// SPDX-License-Identifier: Apache-2.0
/// What a tensor costs besides its bytes: a model of ten thousand small tensors against one of a single tensor with as
/// many bytes, by every channel, in the same run and taking turns.

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/route.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kTensors = 10'000;
constexpr std::uint64_t kTensorBytes = 4096;
constexpr int kWarmUps = 2;

struct Ends {
  std::unique_ptr<PublisherPeer> publisher;
  std::unique_ptr<SubscriberPeer> subscriber;
  Samples ms;
};

Result<Ends> connect(const Route& route, const std::string& model, std::uint64_t tensors) {
  Ends ends;
  FRESHET_ASSIGN(ends.publisher, route.publish({.model = model, .bytes = kTensors * kTensorBytes, .tensors = tensors}));
  FRESHET_ASSIGN(ends.subscriber, route.subscribe(*ends.publisher, {.model = model}));
  return ends;
}

Status measure_route(const Route& route, int repetitions, Report& report) {
  FRESHET_ASSIGN(Ends many, connect(route, "many", kTensors));
  FRESHET_ASSIGN(Ends one, connect(route, "one", 1));
  for (int round = -kWarmUps; round < repetitions; ++round) {
    for (Ends* ends : {&many, &one}) {
      FRESHET_TRY(ends->publisher->rewrite(static_cast<std::uint64_t>(round + 100)));
      FRESHET_ASSIGN(const UpdateTimes times, update(*ends->publisher, *ends->subscriber));
      if (round == -1) FRESHET_TRY(check_same(*ends->publisher, *ends->subscriber));
      if (round >= 0) ends->ms.add(times.swapped_ms);
    }
  }
  report.add_row(route.name(), "10000_tensors", "ms", many.ms);
  report.add_row(route.name(), "1_tensor", "ms", one.ms);
  return {};
}

Status measure(const ProgramOptions& options, Report& report) {
  const int repetitions = options.repetitions_or(5, 15);
  double worst = 1e9;
  for (const std::string name : {"shm", "ucx", "zmq"}) {
    FRESHET_ASSIGN(const auto route, Route::on_this_host(name));
    if (const Status measured = measure_route(*route, repetitions, report); !measured) {
      report.skip(name, measured.error().message());
      continue;
    }
    const double ratio = report.median(name, "1_tensor") / report.median(name, "10000_tensors");
    report.set_ratio("vs_one_tensor_" + name, ratio);
    worst = std::min(worst, ratio);
  }
  if (worst < 1e9) report.set_ratio("vs_one_tensor", worst);
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "many_tensors",
                      .about = "An update of 10000 tensors of 4 KiB against one of a single tensor",
                      .measure = measure});
}
