// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/ranks.h"

#include <algorithm>
#include <thread>

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/job.h"
#include "benchmarks/checkpoint/peers.h"
#include "benchmarks/checkpoint/watch.h"
#include "core/base/format.h"
#include "tests/support/net/lab/network.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kRankTensors = 16;
constexpr auto kIdle = std::chrono::milliseconds(500);

/// As many threads at once, each copies so many bytes to memory that it has used before: the slowest one's time.
double copies_ms(std::uint32_t threads, std::uint64_t bytes) {
  std::vector<double> ms(threads);
  std::vector<std::thread> all;
  for (std::uint32_t i = 0; i < threads; ++i) {
    all.emplace_back([&ms, i, bytes] {
      const State state(bytes, kRankTensors);
      std::vector<std::byte> copy(state.bytes());
      state.copy_to(copy);
      const Watch watch;
      state.copy_to(copy);
      ms[i] = watch.ms();
    });
  }
  for (std::thread& thread : all) thread.join();
  return *std::max_element(ms.begin(), ms.end());
}

class Ranks {
 public:
  Ranks(const CheckpointOptions& options, Report& report)
      : options_(options), bytes_(options.quick ? 32'000'000 : 256'000'000), report_(report) {}

  std::string name_of(std::uint32_t ranks) const { return format("{}_replicated_{}MB", ranks, bytes_ / 1'000'000); }
  std::uint64_t bytes() const { return bytes_; }

  Status measure(std::uint32_t ranks) {
    FRESHET_ASSIGN(const auto folder, MadeFolder::in(options_.memory_folder()));
    JobOptions job_options{.ranks = ranks, .folder = folder.path(), .bytes = bytes_, .tensors = kRankTensors};
    // In a network namespace, where such can be made: its loopback carries nothing else.
    if (lab::why_no_lab().empty()) {
      FRESHET_ASSIGN(network_, lab::Network::create({"alone"}));
      job_options.hosts.assign(ranks, &network_->host("alone"));
    }
    const auto versions = static_cast<std::size_t>(options_.repetitions());
    std::vector<std::vector<double>> blocked_ms(versions, std::vector<double>(ranks));
    Samples bytes;
    Samples packets;
    Job job(job_options);
    const Job::Life life = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer.restore(writable));
      double idle_each_ms = 0;
      for (std::size_t i = 0; i <= versions; ++i) {
        state.write(i + 1);
        const Watch watch;
        FRESHET_ASSIGN(const double before, packets_now(rank));
        const auto views = state.views();
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(i + 1, views));
        FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::local, kPatience));
        FRESHET_ASSIGN(const double after, packets_now(rank));
        const double took_ms = watch.ms();
        if (i == 0) {  // It warms up; then rank 0 lets all wait, to see what is said all the time.
          FRESHET_ASSIGN(idle_each_ms, idle_packets_each_ms(rank));
          continue;
        }
        blocked_ms[i - 1][rank] = ms_of(captured.blocked);
        if (rank != 0) continue;
        bytes.add(static_cast<double>(captured.bytes) / 1e6);
        if (network_) packets.add(std::max(0.0, after - before - took_ms * idle_each_ms));
      }
      return {};
    };
    FRESHET_TRY(job.run(life));
    Samples blocked;
    for (const auto& of_ranks : blocked_ms) blocked.add(*std::max_element(of_ranks.begin(), of_ranks.end()));
    Samples copies;
    for (std::size_t i = 0; i < versions; ++i) copies.add(copies_ms(ranks, bytes_ / ranks));
    const std::string name = name_of(ranks);
    report_.add_row(name, "bytes_of_a_rank", "MB", bytes);
    report_.add_row(name, "freshet_blocked", "ms", blocked);
    report_.add_row(name, "memcpy_by_as_many", "ms", copies);
    report_.add_row(name, "packets_for_a_version", "packets", packets);
    report_.set_ratio(format("blocked_vs_memcpy_{}_ranks", ranks), copies.median() / blocked.median());
    return {};
  }

  /// Each rank holds its rows, so that all numbers of ranks move the same bytes; from the disk.
  Status measure_resizing() {
    constexpr std::uint32_t kWriters = 4;
    const std::string name = format("4_split_{}MB", bytes_ / 1'000'000);
    double same_ms = 0;
    double worst_ms = 0;
    for (const std::uint32_t readers : {kWriters, 1u, 2u, 3u, 8u}) {
      Samples restore;
      for (int i = 0; i < options_.repetitions(); ++i) {
        FRESHET_ASSIGN(const auto folder, MadeFolder::in(options_.folder));
        FRESHET_TRY(write_once(kWriters, folder.path()));
        Job job(split_over(readers, folder.path()));
        FRESHET_TRY(forget(folder.path()));
        FRESHET_ASSIGN(const double ms, job.restore_ms());
        restore.add(ms);
      }
      report_.add_row(name, format("restore_by_{}", readers), "ms", restore);
      (readers == kWriters ? same_ms : worst_ms) = std::max(readers == kWriters ? 0 : worst_ms, restore.median());
    }
    report_.set_ratio("n_to_m_vs_n_to_n", same_ms / worst_ms);
    return {};
  }

 private:
  Result<double> packets_now(std::uint32_t rank) const {
    if (rank != 0 || !network_) return 0.0;
    FRESHET_ASSIGN(const auto counters, network_->host("alone").counters("lo"));
    return static_cast<double>(counters.sent_packets);
  }

  Result<double> idle_packets_each_ms(std::uint32_t rank) const {
    if (rank != 0 || !network_) return 0.0;
    const Watch watch;
    FRESHET_ASSIGN(const double before, packets_now(rank));
    std::this_thread::sleep_for(kIdle);
    FRESHET_ASSIGN(const double after, packets_now(rank));
    return (after - before) / watch.ms();
  }

  JobOptions split_over(std::uint32_t ranks, const std::string& folder) const {
    // 8 and 3 divide it, so every number of ranks has the same tensors.
    const std::uint64_t all = bytes_ / kRankTensors / 192 * 192 * kRankTensors;
    return {.ranks = ranks, .folder = folder, .bytes = all / ranks, .tensors = kRankTensors, .split = true};
  }

  Status write_once(std::uint32_t ranks, const std::string& folder) const {
    Job job(split_over(ranks, folder));
    return job.run([&](std::uint32_t, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer.restore(writable));
      const auto views = state.views();
      FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(1, views));
      return checkpointer.wait(captured.version, CheckpointLevel::local, kPatience);
    });
  }

  const CheckpointOptions& options_;
  const std::uint64_t bytes_;
  Report& report_;
  std::unique_ptr<lab::Network> network_;
};

}  // namespace

Status measure_ranks(const CheckpointOptions& options, Report& report) {
  Ranks ranks(options, report);
  for (const std::uint32_t count : {1u, 2u, 4u, 8u}) FRESHET_TRY(ranks.measure(count));
  const std::string name = ranks.name_of(4);
  const Status peer = run_torch(options, name, ranks.bytes(), kRankTensors, 4, report);
  if (!peer) report.skip("blocked_vs_dcp_async_4_ranks", peer.error().message());
  if (peer) {
    report.set_ratio("blocked_vs_dcp_async_4_ranks",
                     report.median(name, "dcp_async_blocked_4_ranks") / report.median(name, "freshet_blocked"));
  }
  return ranks.measure_resizing();
}

}  // namespace freshet::benchmarks
