// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/nas/simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <queue>
#include <utility>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

double seconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e9; }

class Simulation {
 public:
  Simulation(Arm& arm, const nas::Space& space, const SimulationOptions& options)
      : arm_(arm),
        space_(space),
        options_(options),
        trainer_(options.trainer),
        evolution_(space.choices(), options.evolution) {}

  Result<SimulationResult> run() {
    for (std::uint64_t worker = 0; worker < options_.workers; ++worker) FRESHET_TRY(start(worker, 0));
    while (!running_.empty()) {
      const Running next = running_.top();
      running_.pop();
      FRESHET_ASSIGN(const double now_s, finish(next));
      FRESHET_TRY(start(next.worker, now_s));
    }
    return std::move(result_);
  }

 private:
  struct Running {
    double trained_s = 0;
    std::uint64_t worker = 0;
    std::uint64_t id = 0;
    double start_s = 0;
    std::shared_ptr<nas::Candidate> candidate;
    nas::SimulatedTrainer::Outcome outcome;
    bool operator>(const Running& other) const {
      return std::pair(trained_s, id) > std::pair(other.trained_s, other.id);
    }
  };

  /// How long `work` takes; it counts as time in the repository.
  template <typename Work>
  double timed(Work work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const double taken_s = seconds(std::chrono::steady_clock::now() - start);
    result_.repository_s += taken_s;
    result_.evaluation_s += taken_s;
    return taken_s;
  }

  Status start(std::uint64_t worker, double now_s) {
    if (next_ == options_.candidates) return {};
    Running running{.worker = worker, .id = next_++, .start_s = now_s};
    nas::Genes genes = evolution_.ask();
    nas::Network network;
    space_.build(genes, network);
    FRESHET_ASSIGN(auto architecture,
                   nas::to_architecture(network, space_.palette(), format("candidate-{}", running.id)));
    result_.model_bytes += architecture->bytes();
    running.candidate = std::make_shared<nas::Candidate>(std::move(genes), std::move(architecture), running.id);
    Result<double> inherited = 0.0;
    const double transfer_s = timed([&] { inherited = arm_.begin(running.id, *running.candidate); });
    if (!inherited) return fail(std::move(inherited).error());
    result_.transfer_ms.add(transfer_s * 1e3);
    running.outcome = trainer_.train(*running.candidate, running.id, *inherited);
    result_.evaluation_s += seconds(running.outcome.duration);
    running.trained_s = now_s + transfer_s + seconds(running.outcome.duration);
    running_.push(std::move(running));
    return {};
  }

  /// The time at which its worker is free again.
  Result<double> finish(const Running& done) {
    Status status;
    const double keep_s = timed([&] { status = arm_.finish(done.id, *done.candidate, done.outcome); });
    if (!status) return fail(std::move(status).error());
    result_.keep_ms.add(keep_s * 1e3);
    const double now_s = done.trained_s + keep_s;
    result_.tasks.push_back({.id = done.id,
                             .worker = done.worker,
                             .start_s = done.start_s,
                             .finish_s = now_s,
                             .quality = done.outcome.quality});
    const auto oldest =
        evolution_.tell({.id = done.id, .genes = done.candidate->genes(), .quality = done.outcome.quality});
    if (!oldest) return now_s;
    // The controller retires; no worker waits for it.
    timed([&] { status = arm_.retire(oldest->id); });
    if (!status) return fail(std::move(status).error());
    return now_s;
  }

  Arm& arm_;
  const nas::Space& space_;
  const SimulationOptions& options_;
  const nas::SimulatedTrainer trainer_;
  nas::AgingEvolution evolution_;
  std::uint64_t next_ = 0;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
  SimulationResult result_;
};

}  // namespace

double SimulationResult::time_to(double quality) const {
  for (const SimulatedTask& task : tasks) {
    if (task.quality >= quality) return task.finish_s;
  }
  return std::nan("");
}

double SimulationResult::mean_quality(std::size_t count) const {
  const std::size_t begin = tasks.size() - std::min(tasks.size(), count);
  double sum = 0;
  for (std::size_t i = begin; i < tasks.size(); ++i) sum += tasks[i].quality;
  return begin == tasks.size() ? 0 : sum / static_cast<double>(tasks.size() - begin);
}

Result<SimulationResult> simulate(Arm& arm, const nas::Space& space, const SimulationOptions& options) {
  return Simulation(arm, space, options).run();
}

}  // namespace freshet::benchmarks
