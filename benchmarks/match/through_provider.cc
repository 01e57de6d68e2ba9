// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/match/through_provider.h"

#include <sys/resource.h>

#include <chrono>
#include <latch>
#include <optional>
#include <thread>

#include "repo/files/import.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"

namespace freshet::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

class Started final : public ProviderWithCatalog {
 public:
  explicit Started(const MatchCase& match_case) : case_(match_case) {}

  Status start() {
    FRESHET_ASSIGN(repository_, ProviderRepository::open(make_memory_backend(), {}));
    for (std::size_t i = 0; i < case_.models.size(); ++i) {
      FRESHET_ASSIGN(auto architecture, case_.architecture(i));
      FRESHET_ASSIGN(const StagedPut staged, stage_put(*repository_, {.model = entry_of(case_, i).name.model,
                                                                      .architecture = std::move(architecture),
                                                                      .quality = case_.models[i].quality}));
      FRESHET_ASSIGN(const VersionName name, repository_->put(staged.manifest, staged.bytes_of(), staged.options));
      if (name.number != 1) return fail(Code::corrupt, "a new model's first version has another number than 1");
    }
    FRESHET_ASSIGN(server_, RepositoryServer::open(*repository_, {.address = "tcp://127.0.0.1:*"}));
    return {};
  }

  Result<ThroughProvider> ask(std::size_t clients) override {
    std::vector<std::unique_ptr<Repository>> connections;
    for (std::size_t i = 0; i < clients; ++i) {
      FRESHET_ASSIGN(auto connection, connect_repository(server_->address()));
      connections.push_back(std::move(connection));
    }
    std::vector<std::optional<Error>> failed(clients);
    std::latch ready(static_cast<std::ptrdiff_t>(clients + 1));
    std::vector<std::jthread> threads;
    for (std::size_t client = 0; client < clients; ++client) {
      threads.emplace_back([&, client] {
        ready.arrive_and_wait();
        for (std::size_t i = 0; i < case_.queries.size() && !failed[client]; ++i) {
          MatchQuery query;
          query.any = true;  // The candidates have no weights.
          query.graph = case_.queries[(i + client * 101) % case_.queries.size()];
          const auto answer = connections[client]->match(query);
          if (!answer) failed[client] = answer.error();
        }
      });
    }
    ready.arrive_and_wait();
    const auto start = Clock::now();
    const double cpu = cpu_seconds();
    threads.clear();  // Joins them.
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double cpu_used = cpu_seconds() - cpu;
    for (const auto& error : failed) {
      if (error) return fail(*error);
    }
    const auto asked = static_cast<double>(clients * case_.queries.size());
    return ThroughProvider{.per_second = asked / seconds, .per_cpu_second = asked / cpu_used};
  }

 private:
  const MatchCase& case_;
  std::unique_ptr<ProviderRepository> repository_;
  std::unique_ptr<RepositoryServer> server_;
};

}  // namespace

Result<std::unique_ptr<ProviderWithCatalog>> ProviderWithCatalog::start(const MatchCase& match_case) {
  auto started = std::make_unique<Started>(match_case);
  FRESHET_TRY(started->start());
  return started;
}

}  // namespace freshet::benchmarks
