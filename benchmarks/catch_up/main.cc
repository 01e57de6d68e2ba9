// SPDX-License-Identifier: Apache-2.0
/// What a server that fell behind fetches: one folded difference, however many versions it missed. It is stopped while
/// versions go by, and wakes. Beside it: the difference itself, encoded once between the two versions.

#include <signal.h>

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/route.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kTensors = 16;
constexpr double kShare = 0.005;
constexpr int kVersionsBehind[] = {1, 8, 64};
constexpr std::uint64_t kKeep = 80;  ///< Versions that the publisher keeps, more than anybody is behind.

struct Plan {
  std::uint64_t model_bytes;
  int repetitions;
};

double megabytes(double bytes) { return bytes / 1e6; }

/// Publishes `versions` while the subscriber is stopped; gives what it then fetched, and the size of the difference.
Status fall_behind(PublisherPeer& publisher, SubscriberPeer& subscriber, int versions, std::uint64_t& seed,
                   Samples& fetched_mb, Samples& folded_mb, Samples& ms) {
  FRESHET_TRY(publisher.ask("remember"));
  ::kill(subscriber.pid(), SIGSTOP);
  Published last;
  Status published;
  for (int i = 0; i < versions && published; ++i) {
    published = publisher.step(kShare, ++seed);
    if (!published) break;
    auto next = publisher.publish();
    if (!next)
      published = fail(next.error());
    else
      last = *next;
  }
  ::kill(subscriber.pid(), SIGCONT);
  const std::int64_t woken_ns = monotonic_ns();
  FRESHET_TRY(std::move(published));
  FRESHET_ASSIGN(const Swapped swapped, subscriber.wait_for(last.version));
  FRESHET_TRY(check_same(publisher, subscriber));
  FRESHET_ASSIGN(const std::string folded, publisher.ask("folded"));
  fetched_mb.add(megabytes(static_cast<double>(swapped.bytes_fetched)));
  folded_mb.add(megabytes(std::strtod(folded.c_str(), nullptr)));
  ms.add(static_cast<double>(swapped.at_ns - woken_ns) / 1e6);
  return {};
}

Status measure_behind(PublisherPeer& publisher, SubscriberPeer& subscriber, int versions, const Plan& plan,
                      Report& report) {
  static std::uint64_t seed = 0;
  Samples fetched_mb;
  Samples folded_mb;
  Samples ms;
  for (int round = 0; round < plan.repetitions; ++round)
    FRESHET_TRY(fall_behind(publisher, subscriber, versions, seed, fetched_mb, folded_mb, ms));
  const std::string name = format("{}_behind", versions);
  report.add_row(name, "fetched", "MB", fetched_mb);
  report.add_row(name, "folded_difference", "MB", folded_mb);
  report.add_row(name, "from_waking_until_swapped", "ms", ms);
  const double base = megabytes(static_cast<double>(plan.model_bytes));
  report.set_ratio(format("base_and_folded_vs_fetched_{}", versions),
                   (base + folded_mb.median()) / (base + fetched_mb.median()));
  report.set_ratio(format("folded_vs_fetched_{}", versions), folded_mb.median() / fetched_mb.median());
  return {};
}

Status measure_catching_up(const Plan& plan, Report& report) {
  FRESHET_ASSIGN(const auto route, Route::on_this_host("zmq"));
  FRESHET_ASSIGN(const auto publisher, route->publish({.bytes = plan.model_bytes, .tensors = kTensors, .keep = kKeep}));
  FRESHET_ASSIGN(const auto subscriber, route->subscribe(*publisher, {}));
  FRESHET_TRY(update(*publisher, *subscriber));
  for (const int versions : kVersionsBehind)
    FRESHET_TRY(measure_behind(*publisher, *subscriber, versions, plan, report));
  return {};
}

Status measure(const ProgramOptions& options, Report& report) {
  const int repetitions = options.repetitions_or(2, 5);
  const std::uint64_t mebibytes = options.quick ? 16 : 64;
  const Plan plan{.model_bytes = mebibytes << 20, .repetitions = repetitions};
  report.skip_failed("catch_up", measure_catching_up(plan, report));
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(
      argc, argv,
      {.name = "catch_up", .about = "What a server fetches that fell 1, 8 or 64 versions behind", .measure = measure});
}
