// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/job.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "benchmarks/checkpoint/watch.h"
#include "bindings/runtime/repository_folder.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet::benchmarks {

std::string free_meeting_place() {
  const FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const as_any = reinterpret_cast<sockaddr*>(&address);
  const bool found = ::bind(probe.get(), as_any, length) == 0 && ::getsockname(probe.get(), as_any, &length) == 0;
  return format("tcp://127.0.0.1:{}", found ? ntohs(address.sin_port) : 20'400);
}

Job::Job(JobOptions options) : options_(std::move(options)) {
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    const std::uint32_t split_over = options_.split ? options_.ranks : 0;
    states_.push_back(std::make_unique<State>(options_.bytes, options_.tensors, split_over));
  }
}

std::string Job::local(std::uint32_t rank) const { return format("{}/host{}", options_.folder, rank); }

std::uint64_t Job::bytes() const { return states_.front()->bytes() * (options_.split ? options_.ranks : 1); }

Status Job::live(const std::string& meet, std::uint32_t rank, const Life& life) {
  Checkpointer::Options options{
      .model = "model", .rank = rank, .ranks = options_.ranks, .meet = meet, .host = format("host{}", rank)};
  options.local = {local(rank)};
  // Somebody has to read what ranks left that this job does not have.
  for (std::uint32_t other = options_.ranks; rank == 0 && std::filesystem::is_directory(local(other)); ++other) {
    options.local.push_back(local(other));
  }
  options.group = options_.group;
  options.when_behind = levels::WhenBehind::wait;
  options.keep = {{CheckpointLevel::local, options_.keep}, {CheckpointLevel::group, options_.keep}};
  options.limit_bytes_per_second = options_.limit_bytes_per_second;
  options.patience = kPatience;
  options.lost_after = std::chrono::seconds(10);  // All ranks compute on few cores.
  options.security = options_.security;
  if (options_.external) {
    options.external = [place = external()]() -> Result<std::shared_ptr<Repository>> {
      FRESHET_ASSIGN(OpenedRepository opened, open_repository(place, {.access = RepositoryAccess::create}));
      return std::shared_ptr<Repository>(std::move(opened));
    };
  }
  State& state = *states_[rank];
  FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(options), state.laid()));
  FRESHET_TRY(life(rank, *checkpointer, state));
  return checkpointer->finish(kPatience);
}

Status Job::run(const Life& life) {
  std::string meet;
  if (options_.ranks > 1) {
    const auto& hosts = options_.hosts;
    const bool is_one_host = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
    meet = is_one_host ? free_meeting_place() : format("tcp://{}:7400", hosts.front()->address());
  }
  std::vector<Status> ended(options_.ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto work = [&] { return live(meet, rank, life); };
      ended[rank] = options_.hosts.empty() ? work() : options_.hosts[rank]->space().run(work);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ended) FRESHET_TRY(status);
  return {};
}

Result<double> Job::restore_ms() {
  std::vector<double> ms(options_.ranks);
  const Life life = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
    const auto writable = state.writable();
    const Watch watch;
    FRESHET_ASSIGN(const auto restored, checkpointer.restore(writable));
    if (!restored) return fail(Code::not_found, "nothing was restored");
    ms[rank] = watch.ms();
    return {};
  };
  FRESHET_TRY(run(life));
  return *std::max_element(ms.begin(), ms.end());
}

}  // namespace freshet::benchmarks
