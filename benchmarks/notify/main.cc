// SPDX-License-Identifier: Apache-2.0
/// How long news take: from a version's commit until the subscriber's callback runs, when every part of the swap is
/// done, against a bare message of the library that carries the news. And what waiting costs.

#include <thread>

#include "benchmarks/notify/raw_redis.h"
#include "benchmarks/stream/pair.h"
#include "benchmarks/stream/program.h"
#include "benchmarks/stream/raw_zmq.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr int kWarmUps = 20;
constexpr std::uint64_t kModelBytes = 4096;
/// News come now and then: both sides are asleep before each.
constexpr std::chrono::milliseconds kPause{2};

struct Ends {
  std::unique_ptr<PublisherPeer> publisher;
  std::unique_ptr<SubscriberPeer> subscriber;
};

Result<Ends> connect(const std::string& directory) {
  Ends ends;
  const PeerOptions options{.directory = directory, .bytes = kModelBytes, .tensors = 1};
  FRESHET_ASSIGN(ends.publisher, PublisherPeer::start({}, options));
  FRESHET_ASSIGN(ends.subscriber, SubscriberPeer::start({}, options));
  return ends;
}

/// The percentiles of both, and the ratio of their 99th.
void report_pair(const std::string& name, const Samples& ours, const Samples& raw, Report& report) {
  report.add_row(name, "freshet_p50", "us", ours);
  report.add_row(name, "freshet_p99", "us", ours.percentile(0.99));
  report.add_row(name, "raw_p50", "us", raw);
  report.add_row(name, "raw_p99", "us", raw.percentile(0.99));
  report.set_ratio(name + "_p50_vs_raw", raw.median() / ours.median());
  report.set_ratio(name + "_p99_vs_raw", raw.percentile(0.99) / ours.percentile(0.99));
}

Status measure_idle(const std::string& name, Ends& ends, std::chrono::seconds duration, Report& report) {
  FRESHET_ASSIGN(const std::int64_t publisher_before, ends.publisher->cpu_us());
  FRESHET_ASSIGN(const std::int64_t subscriber_before, ends.subscriber->cpu_us());
  std::this_thread::sleep_for(duration);
  FRESHET_ASSIGN(const std::int64_t publisher_after, ends.publisher->cpu_us());
  FRESHET_ASSIGN(const std::int64_t subscriber_after, ends.subscriber->cpu_us());
  const double percent_per_us = 100.0 / 1e6 / static_cast<double>(duration.count());
  report.add_row(name, "publisher_idle", "% of a core",
                 static_cast<double>(publisher_after - publisher_before) * percent_per_us);
  report.add_row(name, "subscriber_idle", "% of a core",
                 static_cast<double>(subscriber_after - subscriber_before) * percent_per_us);
  return {};
}

template <typename Raw>
Status measure_pair(const std::string& name, const std::string& directory, Raw& raw, const ProgramOptions& options,
                    Report& report) {
  FRESHET_ASSIGN(Ends ends, connect(directory));
  const int repetitions = options.repetitions_or(500, 3000);
  Samples ours;
  Samples theirs;
  for (int round = -kWarmUps; round < repetitions; ++round) {
    FRESHET_TRY(ends.publisher->rewrite(static_cast<std::uint64_t>(round + 1000)));
    std::this_thread::sleep_for(kPause);
    FRESHET_ASSIGN(const UpdateTimes times, update(*ends.publisher, *ends.subscriber));
    std::this_thread::sleep_for(kPause);
    FRESHET_ASSIGN(const double us, raw.notify());
    if (round < 0) continue;
    ours.add(times.commit_to_callback_us);
    theirs.add(us);
  }
  FRESHET_TRY(check_same(*ends.publisher, *ends.subscriber));
  report_pair(name, ours, theirs, report);
  return measure_idle(name, ends, std::chrono::seconds(options.quick ? 3 : 10), report);
}

Status measure_zmq(const ProgramOptions& options, Report& report) {
  FRESHET_ASSIGN(const auto scratch, ScratchFolder::create());
  FRESHET_ASSIGN(const std::string directory, scratch->folder("host"));
  FRESHET_ASSIGN(const auto raw, RawZmq::start({.sender = {},
                                                .receiver = {},
                                                .address = "ipc://" + scratch->path() + "/raw",
                                                .bytes = kModelBytes,
                                                .chunk_bytes = kModelBytes,
                                                .curve = false}));
  return measure_pair("zmq", directory, *raw, options, report);
}

Status measure_redis(const ProgramOptions& options, Report& report) {
  FRESHET_ASSIGN(const auto server, RedisServer::start());
  FRESHET_ASSIGN(const auto raw, RawRedis::start(*server));
  return measure_pair("redis", server->url(), *raw, options, report);
}

Status measure(const ProgramOptions& options, Report& report) {
  report.skip_failed("zmq", measure_zmq(options, report));
  report.skip_failed("redis", measure_redis(options, report));
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  return run_program(argc, argv,
                     {.name = "notify",
                      .about = "From commit to callback, against a bare message",
                      .measure = measure,
                      .roles = {{"raw-zmq-sender", run_raw_zmq_sender},
                                {"raw-zmq-receiver", run_raw_zmq_receiver},
                                {"raw-redis-sender", run_raw_redis_sender},
                                {"raw-redis-receiver", run_raw_redis_receiver}}});
}
