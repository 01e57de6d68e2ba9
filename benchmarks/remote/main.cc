// SPDX-License-Identifier: Apache-2.0
/// A dense update to another host: over UCX against UCX's own benchmark, over encrypted ZeroMQ against ZeroMQ used
/// directly. On loopback, and between two hosts in network namespaces, where the interface's counters tell whether the
/// bytes really went that way.

#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/perftest.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/raw_zmq.h"
#include "benchmarks/stream/route.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kWarmUps = 2;
constexpr std::uint64_t kTensors = 16;
constexpr std::uint64_t kChunkBytes = std::uint64_t{256} << 10;  ///< As the zmq channel has.

struct Sizes {
  std::uint64_t model_bytes;
  int repetitions;
};

Sizes sizes_of(const ProgramOptions& options) {
  const int repetitions = options.repetitions_or(5, 15);
  return {.model_bytes = std::uint64_t{options.quick ? 128u : 512u} << 20, .repetitions = repetitions};
}

/// Ours and the peer's, taking turns.
struct Case {
  const Route& route;
  const lab::Host* receiver = nullptr;                ///< Whose counters are read; null on loopback.
  std::function<Result<Samples>(int round)> peer_ms;  ///< Some values, or none, in that round.
};

struct Measured {
  Samples fetched_ms;  ///< From the announcement until swapped in.
  Samples updated_ms;  ///< From publish() until swapped in.
  Samples peer_ms;
  Samples on_the_wire;  ///< The share of the payload that crossed the interface.
};

Result<std::uint64_t> received_bytes(const Case& measured) {
  if (measured.receiver == nullptr) return 0;
  FRESHET_ASSIGN(const lab::InterfaceCounters counters, measured.receiver->counters());
  return counters.received_bytes;
}

Result<Measured> measure_case(const Case& one, const Sizes& sizes) {
  FRESHET_ASSIGN(const auto publisher, one.route.publish({.bytes = sizes.model_bytes, .tensors = kTensors}));
  FRESHET_ASSIGN(const auto subscriber, one.route.subscribe(*publisher, {}));
  Measured measured;
  for (int round = -kWarmUps; round < sizes.repetitions; ++round) {
    FRESHET_TRY(publisher->rewrite(static_cast<std::uint64_t>(round + 100)));
    FRESHET_ASSIGN(const std::uint64_t before, received_bytes(one));
    FRESHET_ASSIGN(const UpdateTimes times, update(*publisher, *subscriber));
    FRESHET_ASSIGN(const std::uint64_t after, received_bytes(one));
    if (round == -1) FRESHET_TRY(check_same(*publisher, *subscriber));
    FRESHET_ASSIGN(const Samples peer, one.peer_ms(round));
    if (round < 0) continue;
    measured.fetched_ms.add(times.swapped_ms - times.committed_ms);
    measured.updated_ms.add(times.swapped_ms);
    measured.peer_ms.add(peer);
    if (one.receiver != nullptr) {
      measured.on_the_wire.add(static_cast<double>(after - before) / static_cast<double>(sizes.model_bytes));
    }
  }
  return measured;
}

void report_case(const std::string& name, const std::string& peer, const Measured& measured, Report& report) {
  report.add_row(name, "freshet_fetch", "ms", measured.fetched_ms);
  report.add_row(name, "freshet_update", "ms", measured.updated_ms);
  report.add_row(name, peer, "ms", measured.peer_ms);
  report.add_row(name, "payload_on_the_wire", "share", measured.on_the_wire);
}

/// UCX's benchmark runs apart, a few times between our updates.
std::function<Result<Samples>(int)> perftest_every_third(PerftestOptions options) {
  options.runs = 1;
  return [options](int round) -> Result<Samples> {
    if (round < 0 || round % 3 != 0) return Samples();
    return run_perftest(options);
  };
}

Status measure_ucx(const std::string& name, Route& route, const lab::Host* receiver, const std::string& host,
                   const Sizes& sizes, Report& report) {
  route.set_environment(receiver == nullptr ? std::vector<std::string>{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo"}
                                            : std::vector<std::string>{"UCX_TLS=tcp", "UCX_NET_DEVICES=eth0"});
  const PerftestOptions perftest{.server = route.subscriber_place(),
                                 .client = route.publisher_place(),
                                 .server_host = host,
                                 .message_bytes = sizes.model_bytes};
  FRESHET_ASSIGN(
      const Measured measured,
      measure_case({.route = route, .receiver = receiver, .peer_ms = perftest_every_third(perftest)}, sizes));
  report_case(name + "_ucx", "ucx_perftest", measured, report);
  report.set_ratio(name + "_vs_perftest", measured.peer_ms.median() / measured.fetched_ms.median());
  if (receiver != nullptr) report.set_ratio("payload_on_the_wire_ucx", measured.on_the_wire.median());
  return {};
}

Status measure_zmq(const std::string& name, const Route& route, const lab::Host* receiver, const std::string& address,
                   const Sizes& sizes, Report& report) {
  FRESHET_ASSIGN(const auto raw, RawZmq::start({.sender = route.publisher_place(),
                                                .receiver = route.subscriber_place(),
                                                .address = address,
                                                .bytes = sizes.model_bytes,
                                                .chunk_bytes = kChunkBytes}));
  const auto transfer = [&](int) -> Result<Samples> {
    FRESHET_ASSIGN(const double ms, raw->transfer());
    return ms;
  };
  FRESHET_ASSIGN(const Measured measured,
                 measure_case({.route = route, .receiver = receiver, .peer_ms = transfer}, sizes));
  report_case(name + "_zmq", "zmq_curve", measured, report);
  report.set_ratio("zmq_vs_raw_" + name, measured.peer_ms.median() / measured.fetched_ms.median());
  if (receiver != nullptr) {
    report.set_ratio("zmq_vs_raw", measured.peer_ms.median() / measured.fetched_ms.median());
    report.set_ratio("payload_on_the_wire_zmq", measured.on_the_wire.median());
  }
  return {};
}

Status measure_loopback(const Sizes& sizes, Report& report) {
  FRESHET_ASSIGN(const auto ucx, Route::on_this_host("ucx"));
  report.skip_failed("loopback_ucx", measure_ucx("loopback", *ucx, nullptr, "127.0.0.1", sizes, report));
  FRESHET_ASSIGN(const auto zmq, Route::on_this_host("zmq"));
  report.skip_failed("loopback_zmq", measure_zmq("loopback", *zmq, nullptr, "tcp://127.0.0.1:7900", sizes, report));
  return {};
}

Status measure_namespaces(const Sizes& sizes, Report& report) {
  if (!lab::why_no_lab().empty()) return fail(Code::unavailable, lab::why_no_lab());
  FRESHET_ASSIGN(const auto network, lab::Network::create({"trainer", "server"}));
  const lab::Host& trainer = network->host("trainer");
  const lab::Host& server = network->host("server");
  FRESHET_ASSIGN(const auto ucx, Route::between(trainer, server, trainer.address(), "ucx"));
  report.skip_failed("namespaces_ucx", measure_ucx("namespaces", *ucx, &server, server.address(), sizes, report));
  FRESHET_ASSIGN(const auto zmq, Route::between(trainer, server, trainer.address(), "zmq"));
  report.skip_failed("namespaces_zmq", measure_zmq("namespaces", *zmq, &server,
                                                   format("tcp://{}:7900", trainer.address()), sizes, report));
  return {};
}

Status measure(const ProgramOptions& options, Report& report) {
  const Sizes sizes = sizes_of(options);
  report.skip_failed("loopback", measure_loopback(sizes, report));
  report.skip_failed("namespaces", measure_namespaces(sizes, report));
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "remote",
                      .about = "A dense update to another host, against ucx_perftest and against raw ZeroMQ with CURVE",
                      .measure = measure,
                      .roles = {{"raw-zmq-sender", run_raw_zmq_sender}, {"raw-zmq-receiver", run_raw_zmq_receiver}}});
}
