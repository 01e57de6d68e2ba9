// SPDX-License-Identifier: Apache-2.0
/// A training loop that publishes when a version is worth its cost, stores every version, and goes on after a crash.
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

freshet::Status run(const std::string& folder, std::uint64_t steps) {
  FRESHET_ASSIGN(const auto repository,
                 freshet::open_repository(folder, {.access = freshet::RepositoryAccess::create}));
  std::vector<float> weights(4096, 1.0f);
  const freshet::TensorMemory memory[] = {
      {{.name = "weights", .dtype = freshet::DType::f32, .shape = {4096}}, std::as_writable_bytes(std::span(weights))}};
  // The newest stored version, if there is one, is in `weights` now.
  FRESHET_ASSIGN(const freshet::Resumed resumed, freshet::resume(*repository, "scheduled", memory));
  std::cout << "begins after step " << resumed.step << std::endl;

  FRESHET_ASSIGN(const auto publisher,
                 freshet::Publisher::open({.model = "scheduled", .resume_from = resumed.manifest}));
  FRESHET_ASSIGN(const auto sink, freshet::Sink::open(*repository, {.model = "scheduled"}));
  // The default schedule, `online`, looks at each loss, and measures what publishing takes.
  FRESHET_ASSIGN(const auto scheduler, freshet::Scheduler::make({}));
  freshet::ScheduledPublisher scheduled(*publisher, *scheduler);

  const std::vector<freshet::TensorView> tensors = freshet::views_of(memory);
  freshet::VersionNumber last = 0;
  const auto tell = [&](const std::optional<freshet::PublishReceipt>& receipt, std::uint64_t step) {
    if (!receipt) return;
    last = receipt->version;
    std::cout << "version " << last << " at step " << step << std::endl;
  };
  freshet::PublishOptions options;
  for (std::uint64_t step = resumed.step + 1; step <= steps; ++step) {
    for (float& weight : weights) weight *= 0.99f;  // Your training step, a millisecond long.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double loss = std::abs(weights[0]);
    options = {.step = step, .metrics = {{"loss", loss}}};
    FRESHET_ASSIGN(const auto receipt, scheduled.publish_if_due({.step = step, .loss = loss}, tensors, options));
    tell(receipt, step);
  }
  FRESHET_ASSIGN(const auto receipt, scheduled.publish_last(tensors, options));  // What the last publish has not.
  tell(receipt, options.step);

  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (sink->status().published < last && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::cout << sink->status().stored << " versions stored, the newest is " << sink->status().newest << "\n";
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return std::cerr << "usage: scheduled_training FOLDER [STEPS]\n", 2;
  const freshet::Status done = run(words[1], count > 2 ? std::strtoull(words[2], nullptr, 10) : 500);
  if (!done) return std::cerr << done.error().message() << "\n", 1;
}
