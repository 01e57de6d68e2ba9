// SPDX-License-Identifier: Apache-2.0
/// A user's program that calls each library part that README and docs advertise and that examples/small leaves out:
/// providers, several addresses, memory, RADOS, checkpoints, tiers, forecasts. tests/house/package.py builds it against
/// an installed Freshet alone.
///
/// usage: package_program FOLDER

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "bindings/runtime/runtime.h"
#include "core/core.h"
#include "predictor/predictor.h"
#include "repo/repo.h"
#include "repo/tier/tier.h"
#include "scheduler/scheduler.h"
#include "transport/transport.h"

namespace {

using freshet::Code;
using freshet::RepositoryAccess;
using freshet::Result;
using freshet::Status;

constexpr freshet::Duration kPatience = std::chrono::minutes(5);

Status want(bool holds, const std::string& what) {
  if (holds) return {};
  return freshet::fail(Code::failed_precondition, "not so: " + what);
}

Result<freshet::VersionName> put(freshet::Repository& repository, float value) {
  const std::vector<float> values(16, value);
  const freshet::TensorView tensors[] = {
      {{.name = "w", .dtype = freshet::DType::f32, .shape = {16}}, freshet::bytes_of(values.data(), values.size())}};
  FRESHET_ASSIGN(const freshet::StagedPut staged, freshet::stage_put(repository, {.model = "net", .tensors = tensors}));
  return repository.put(staged.manifest, staged.bytes_of(), staged.options);
}

Status expect(const freshet::Repository& repository, const freshet::VersionName& name, float value) {
  FRESHET_ASSIGN(const freshet::VersionRecord record, repository.get(name));
  std::vector<float> values(16);
  const freshet::Repository::TensorRead read{0, std::as_writable_bytes(std::span(values))};
  FRESHET_TRY(repository.read(record, {&read, 1}));
  return want(values[15] == value, "the bytes of " + to_string(name));
}

/// Two providers in this process, and clients that reach them by one address and by two.
Status use_providers(const std::string& folder) {
  const freshet::RepositoryOptions owner{.access = RepositoryAccess::own};
  FRESHET_ASSIGN(const auto first, freshet::open_repository(folder + "/first", owner));
  FRESHET_ASSIGN(const auto second, freshet::open_repository(folder + "/second", owner));
  FRESHET_ASSIGN(const auto first_door, freshet::serve_repository(first, {.address = "tcp://127.0.0.1:*"}));
  FRESHET_ASSIGN(const auto second_door, freshet::serve_repository(second, {.address = "tcp://127.0.0.1:*"}));
  FRESHET_TRY(freshet::join_repository(second, second_door->address(), {first_door->address()}));
  const std::vector<std::string> addresses{first_door->address(), second_door->address()};
  FRESHET_ASSIGN(const auto both, freshet::open_repository(addresses));
  FRESHET_ASSIGN(const auto one, freshet::open_repository(second_door->address()));
  for (int i = 1; i <= 4; ++i) {
    const float value = 0.5F * static_cast<float>(i);
    FRESHET_ASSIGN(const freshet::VersionName name, put(*both, value));
    FRESHET_TRY(expect(*one, name, value));
  }
  return {};
}

/// The other places of a repository. Where no cluster of Ceph runs, RADOS has an address only.
Status use_places() {
  FRESHET_ASSIGN(const auto memory, freshet::open_repository("memory:"));
  FRESHET_ASSIGN(const freshet::VersionName name, put(*memory, 3.0F));
  FRESHET_TRY(expect(*memory, name, 3.0F));
  const auto pool = freshet::open_repository("rados://");
  FRESHET_TRY(want(!pool && pool.error().code() == Code::invalid_argument, "rados:// without a pool is refused"));
  FRESHET_TRY(memory->pin(name, "a reader"));
  std::stop_source stop;
  stop.request_stop();
  const auto retired = memory->retire(name, {.wait = kPatience, .stop = stop.get_token()});
  return want(!retired && retired.error().code() == Code::cancelled, "a stop ends the wait for a pin");
}

Result<std::shared_ptr<freshet::Repository>> open_shared(const std::string& place) {
  FRESHET_ASSIGN(auto opened, freshet::open_repository(place, {.access = RepositoryAccess::create}));
  return std::shared_ptr<freshet::Repository>(std::move(opened));
}

/// A job of one rank: its checkpoint reaches the repository, and its next life goes on from there.
Status use_checkpoints(const std::string& folder) {
  std::vector<float> weights(256, 1.0F);
  const std::vector<freshet::LaidTensor> tensors{
      {.spec = {.name = "w", .dtype = freshet::DType::f32, .shape = {256}}, .layout = {}}};
  for (const bool is_second_life : {false, true}) {
    freshet::Checkpointer::Options options{.model = "job", .local = {folder + "/shards"}};
    options.external = [&] { return open_shared(folder + "/checkpoints"); };
    FRESHET_ASSIGN(const auto checkpointer, freshet::Checkpointer::open(options, tensors));
    const freshet::MutableBytes held = std::as_writable_bytes(std::span(weights));
    FRESHET_ASSIGN(const auto restored, checkpointer->restore({&held, 1}));
    FRESHET_TRY(want(restored.has_value() == is_second_life, "a job goes on where its last life ended"));
    if (is_second_life) return want(restored->step == 7 && weights[255] == 1.0F, "the restored bytes");
    const freshet::Bytes bytes = held;
    FRESHET_ASSIGN(const auto captured, checkpointer->checkpoint(7, {&bytes, 1}));
    FRESHET_TRY(checkpointer->wait(captured.version, freshet::CheckpointLevel::external, kPatience));
    FRESHET_TRY(checkpointer->finish(kPatience));
    weights.assign(256, 0.0F);
  }
  return {};
}

/// No keeper runs here: each file is read at its source, and an order has nobody to tell.
Status use_tiers(const std::string& folder) {
  std::filesystem::create_directories(folder + "/source");
  const std::string file = folder + "/source/data";
  std::ofstream(file) << "data";
  std::ofstream(folder + "/tiers.toml") << "source = [\"" << folder << "/source\"]\n[[tier]]\npath = \"" << folder
                                        << "/tier\"\nquota = \"1 MiB\"\n";
  FRESHET_ASSIGN(const auto config, freshet::tier::read_config(folder + "/tiers.toml"));
  FRESHET_ASSIGN(const auto paths, freshet::tier::ServedPaths::open(config));
  FRESHET_TRY(want(paths.place_of(file) == file, "a file without a copy is read at its source"));
  const auto order = freshet::tier::Order::open(config);
  return want(!order && order.error().code() == Code::unavailable, "an order needs a keeper");
}

Status use_forecasts() {
  std::vector<double> losses;
  for (int i = 1; i <= 100; ++i) losses.push_back(0.5 + 2.0 * std::exp(-i / 40.0));
  const freshet::Timing timing{
      .step_ns = 1'000'000'000, .stall_ns = 100'000'000, .delivery_ns = 200'000'000, .infer_ns = 10'000'000};
  FRESHET_ASSIGN(const auto clock,
                 freshet::ReplayClock::make(timing, {.warmup = 100, .rows = 400, .requests = 30'000}));
  FRESHET_ASSIGN(const auto plan, freshet::plan_schedules(clock, losses));
  FRESHET_TRY(want(!plan.optimal.empty() && plan.forecast(400) < losses.back(), "a plan for a falling loss"));
  FRESHET_ASSIGN(const auto interval, freshet::failure_interval({.checkpoint_s = 10, .mtbf_s = 3600}));
  return want(interval.interval_s > 10, "an interval of checkpoints");
}

Status run(const std::string& folder) {
  FRESHET_TRY(use_places());
  FRESHET_TRY(use_providers(folder));
  FRESHET_TRY(use_checkpoints(folder));
  FRESHET_TRY(use_tiers(folder));
  return use_forecasts();
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::cerr << "usage: package_program FOLDER\n", 2;
  const Status done = run(words[1]);
  if (!done) return std::cerr << done.error().message() << "\n", 1;
  std::cout << "all parts answered\n";
}
