// SPDX-License-Identifier: Apache-2.0
/// A training loop that publishes when a version is worth its cost, and whose every version is stored.
///
/// usage: scheduled_training FOLDER [STEPS]

#include <chrono>
#include <cmath>
#include <iostream>
#include <thread>
#include <vector>

#include "bindings/runtime/runtime.h"
#include "repo/repo.h"
#include "scheduler/scheduler.h"
#include "transport/publisher.h"

namespace {

freshet::Status run(const std::string& folder, int steps) {
  FRESHET_ASSIGN(const auto repository,
                 freshet::open_repository(folder, {.access = freshet::RepositoryAccess::create}));
  FRESHET_ASSIGN(const auto publisher, freshet::Publisher::open({.model = "scheduled"}));
  FRESHET_ASSIGN(const auto sink, freshet::Sink::open(*repository, {.model = "scheduled"}));
  // The default schedule, `online`, looks at each loss, and measures what publishing takes.
  FRESHET_ASSIGN(const auto scheduler, freshet::Scheduler::make({}));
  freshet::ScheduledPublisher scheduled(*publisher, *scheduler);

  std::vector<float> weights(4096, 1.0f);
  const freshet::TensorView view{{.name = "weights", .dtype = freshet::DType::f32, .shape = {4096}},
                                 freshet::bytes_of(weights.data(), weights.size())};
  freshet::VersionNumber last = 0;
  for (int step = 1; step <= steps; ++step) {
    for (float& weight : weights) weight *= 0.99f;  // Your training step, a millisecond long.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double loss = std::abs(weights[0]);
    FRESHET_ASSIGN(const auto receipt,
                   scheduled.publish_if_due({.step = static_cast<std::uint64_t>(step), .loss = loss}, {&view, 1},
                                            {.step = static_cast<std::uint64_t>(step)}));
    if (!receipt) continue;
    last = receipt->version;
    std::cout << "version " << last << " at step " << step << ", loss " << loss << ": "
              << scheduler->last_decision().reason << "\n";
  }
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (sink->status().published < last && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::cout << sink->status().stored << " versions stored, the newest is " << sink->status().newest << "\n";
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return std::cerr << "usage: scheduled_training FOLDER [STEPS]\n", 2;
  const freshet::Status done = run(words[1], count > 2 ? std::atoi(words[2]) : 500);
  if (!done) return std::cerr << done.error().message() << "\n", 1;
}
