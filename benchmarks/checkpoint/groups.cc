// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/groups.h"

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "benchmarks/checkpoint/state.h"
#include "repo/levels/checkpointer.h"

namespace freshet::benchmarks {
namespace {

using Watch = std::chrono::steady_clock;

constexpr std::uint32_t kHosts = 4;
constexpr auto kPatience = std::chrono::minutes(10);

double since(Watch::time_point began) {
  return std::chrono::duration<double, std::milli>(Watch::now() - began).count();
}

/// One life of a job of kHosts ranks, each a thread.
class Job {
 public:
  using Life = std::function<Status(std::uint32_t rank, Checkpointer& checkpointer, State& state)>;

  Job(std::string folder, std::uint64_t bytes) : folder_(std::move(folder)) {
    for (std::uint32_t rank = 0; rank < kHosts; ++rank) states_.push_back(std::make_unique<State>(bytes, 16));
  }

  Status run(const levels::GroupScheme& scheme, const Life& life) {
    const std::string meet = format("tcp://127.0.0.1:{}", next_port_++);
    std::array<Status, kHosts> ended;
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < kHosts; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto work = [&]() -> Status {
          Checkpointer::Options options{
              .model = "model", .rank = rank, .ranks = kHosts, .meet = meet, .host = format("host{}", rank)};
          options.local = {local(rank)};
          options.group = scheme;
          options.when_behind = levels::WhenBehind::wait;
          options.keep = {{CheckpointLevel::local, 1}, {CheckpointLevel::group, 1}};
          FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(options, states_[rank]->laid()));
          FRESHET_TRY(life(rank, *checkpointer, *states_[rank]));
          return checkpointer->finish(kPatience);
        };
        ended[rank] = work();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Status& status : ended) FRESHET_TRY(status);
    return {};
  }

  std::string local(std::uint32_t rank) const { return format("{}/host{}", folder_, rank); }
  const State& state() const { return *states_.front(); }

  /// What all folders hold of files with such names, in percent of the state.
  double stored_percent(const std::string& suffix) const {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      struct stat status {};
      const bool counts = suffix.empty() || entry.path().extension() == suffix;
      if (counts && ::stat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
      }
    }
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(state().bytes());
  }

 private:
  const std::string folder_;
  std::vector<std::unique_ptr<State>> states_;
  int next_port_ = 20'400;
};

struct Way {
  const char* name;
  levels::GroupScheme scheme;
};

Status restore_timed(Job& job, const Way& way, double& ms) {
  const Job::Life life = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
    const auto writable = state.writable();
    const auto began = Watch::now();
    FRESHET_ASSIGN(const auto restored, checkpointer.restore(writable));
    if (!restored) return fail(Code::not_found, "nothing was restored");
    if (rank == 0) ms = since(began);
    return {};
  };
  return job.run(way.scheme, life);
}

}  // namespace

Status measure_groups(const std::string& folder, bool quick, Report& report) {
  using Kind = levels::GroupScheme::Kind;
  const std::uint64_t bytes = quick ? 32'000'000 : 256'000'000;
  const std::string name = quick ? "4_ranks_32MB" : "4_ranks_256MB";
  const int repetitions = quick ? 3 : 5;
  const std::vector<Way> ways = {{"partner", {.kind = Kind::partner}},
                                 {"xor", {.kind = Kind::parity}},
                                 {"rs2", {.kind = Kind::parity, .losses = 2}}};
  std::map<std::string, double> group_ms;
  for (const Way& way : ways) {
    Job job(folder, bytes);
    Samples local;
    Samples group;
    const Job::Life train = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer.restore(writable));
      for (int i = 0; i <= repetitions; ++i) {  // The first one warms up.
        state.write(static_cast<std::uint64_t>(i + 1));
        const auto views = state.views();
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(static_cast<std::uint64_t>(i + 1), views));
        const auto began = Watch::now();
        FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::local, kPatience));
        const double local_time = since(began);
        FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::group, kPatience));
        if (i == 0 || rank != 0) continue;
        local.add(local_time);
        group.add(since(began) - local_time);
      }
      return {};
    };
    FRESHET_TRY(job.run(way.scheme, train));
    const double stored = job.stored_percent("");
    Samples whole;
    Samples rebuilt;
    const Job::Life write_again = [&](std::uint32_t, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN(const auto restored, checkpointer.restore(writable));
      state.write(restored->step + 1);
      const auto views = state.views();
      FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(restored->step + 1, views));
      return checkpointer.wait(captured.version, CheckpointLevel::group, kPatience);
    };
    for (int i = 0; i < repetitions; ++i) {
      double whole_ms = 0;
      double lost_ms = 0;
      FRESHET_TRY(restore_timed(job, way, whole_ms));
      for (std::uint32_t lost = 0; lost < way.scheme.losses; ++lost) std::filesystem::remove_all(job.local(3 - lost));
      FRESHET_TRY(restore_timed(job, way, lost_ms));
      whole.add(whole_ms);
      rebuilt.add(lost_ms - whole_ms);
      FRESHET_TRY(job.run(way.scheme, write_again));
    }
    report.add_row(name, format("{}_local", way.name), "ms", local);
    report.add_row(name, format("{}_group", way.name), "ms", group);
    report.add_row(name, format("{}_restore", way.name), "ms", whole);
    report.add_row(name, format("{}_restore_more_when_lost", way.name), "ms", rebuilt);
    Samples percent;
    percent.add(stored);
    report.add_row(name, format("{}_stored", way.name), "percent", percent);
    group_ms[way.name] = group.median();
    if (way.scheme.losses == 2) report.set_ratio("rs2_rebuild_vs_encode", group.median() / rebuilt.median());
    std::filesystem::remove_all(folder);
  }
  report.set_ratio("xor_vs_partner", group_ms["partner"] / group_ms["xor"]);
  report.set_ratio("rs2_vs_partner", group_ms["partner"] / group_ms["rs2"]);
  return {};
}

}  // namespace freshet::benchmarks
