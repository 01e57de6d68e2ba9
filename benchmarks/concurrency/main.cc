// SPDX-License-Identifier: Apache-2.0
/// concurrency: clients that store a model each and then load another's, all at the same time, over repositories in
/// this process, and over providers that are processes of their own; against as many threads that copy memory or write
/// files. And many small puts at once, which share syncs.
///
/// usage: concurrency [--quick] [--json] [--folder DIR] [--part all|local|providers]

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/concurrency/clients.h"
#include "benchmarks/concurrency/providers.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "repo/repository.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  std::string folder = "/var/tmp";
  std::string part = "all";
  std::string provide;  ///< It is a provider with that backend, and not the benchmark.
  std::uint64_t room = 0;
};

Status write_file(const std::string& path, std::span<const Bytes> payloads) {
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return fail_errno(errno, path);
  Status status;
  for (Bytes rest : payloads) {
    while (!rest.empty() && status) {
      const ssize_t written = ::write(file, rest.data(), std::min<std::size_t>(rest.size(), 1 << 20));
      if (written < 0) status = fail_errno(errno, path);
      if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  if (status && ::fsync(file) != 0) status = fail_errno(errno, path);
  ::close(file);
  return status;
}

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {}

  Status run() {
    FRESHET_TRY(in_new_folder(options_.folder, [&](const std::string& folder) {
      Status status = options_.part == "providers" ? Status() : measure(folder);
      if (status && options_.part != "local") status = measure_providers(report_, folder, options_.quick);
      return status;
    }));
    for (const auto& [name, value] : worst_) report_.set_ratio(name, value);
    return {};
  }

 private:
  enum class Keep { memory, rocksdb };

  Status measure(const std::string& folder) {
    const std::vector<std::size_t> client_counts =
        options_.quick ? std::vector<std::size_t>{1, 4} : std::vector<std::size_t>{1, 2, 4, 8};
    const std::vector<std::size_t> provider_counts =
        options_.quick ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{1, 2, 4};
    for (const Keep keep : {Keep::memory, Keep::rocksdb}) {
      for (const std::size_t providers : provider_counts) {
        for (const std::size_t clients : client_counts) {
          if (clients < providers) continue;
          FRESHET_TRY(measure_models(folder, keep, clients, providers));
        }
      }
    }
    return measure_small_puts(folder);
  }

  Result<std::unique_ptr<Repository>> open(Keep keep, const std::string& folder, std::uint64_t bytes) {
    if (keep == Keep::memory) {
      FRESHET_ASSIGN(auto backend, make_memory_backend({.touched_bytes = bytes}));
      return Repository::open(std::move(backend), {});
    }
    FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = folder}));
    return Repository::open(std::move(backend), {});
  }

  Status measure_models(const std::string& folder, Keep keep, std::size_t clients, std::size_t providers) {
    const std::size_t tensors = 24;
    const std::size_t tensor_bytes = (options_.quick ? 48'000'000 : 96'000'000) / tensors / 64 * 64;
    const char* kind = keep == Keep::memory ? "memory" : "rocksdb";
    const std::string name = format("{}_{}clients_{}providers", kind, clients, providers);
    std::vector<Client> all;
    for (std::size_t i = 0; i < clients; ++i) all.emplace_back(i, tensors, tensor_bytes);
    std::vector<std::unique_ptr<Repository>> repositories;
    const std::uint64_t room = (clients / providers + 1) * (kRepetitions + 2) * tensors * tensor_bytes;
    for (std::size_t i = 0; i < providers; ++i) {
      FRESHET_ASSIGN(auto opened, open(keep, format("{}/{}-{}", folder, name, i), room));
      repositories.push_back(std::move(opened));
    }
    const auto home = [&](std::size_t client) -> Repository& { return *repositories[client % providers]; };
    std::vector<double> sums(clients);
    std::vector<double> limit_sums(clients);
    Samples stores, loads, store_rates, load_rates, limit_rates;
    for (int round = 0; round <= kRepetitions; ++round) {
      for (Client& client : all) client.prepare();
      const Together stored = run_together(clients, [&](std::size_t i) { return all[i].put(home(i)); });
      FRESHET_TRY(stored.status);
      const Together loaded = run_together(clients, [&](std::size_t i) {
        const std::size_t other = (i + 1) % clients;
        return all[i].load(home(other), all[other].model());
      });
      FRESHET_TRY(loaded.status);
      const Together limit = run_together(clients, [&](std::size_t i) -> Status {
        // A new one each time, as a repository has to: a disk may write what it wrote before in a fraction of the time.
        if (keep == Keep::rocksdb)
          return write_file(format("{}/{}-file-{}-{}", folder, name, i, round), all[i].views());
        all[i].copy();
        return {};
      });
      FRESHET_TRY(limit.status);
      if (round == 0) continue;  // It warms up.
      const double megabytes = static_cast<double>(clients * tensors * tensor_bytes) / 1e6;
      stores.add(stored.each);
      loads.add(loaded.each);
      store_rates.add(megabytes / stored.all_ms * 1000);
      load_rates.add(megabytes / loaded.all_ms * 1000);
      limit_rates.add(megabytes / limit.all_ms * 1000);
      for (std::size_t i = 0; i < clients; ++i) {
        sums[i] += stored.each.values()[i] + loaded.each.values()[i];
        limit_sums[i] += limit.each.values()[i];
      }
    }
    report_.add_row(name, "store", "ms", stores);
    report_.add_row(name, "load", "ms", loads);
    report_.add_row(name, "store_together", "MB/s", store_rates);
    report_.add_row(name, "load_together", "MB/s", load_rates);
    report_.add_row(name, keep == Keep::rocksdb ? "files_together" : "memcpy_together", "MB/s", limit_rates);
    keep_worst("slowest_client_1_3_of_mean", fairness(sums));
    keep_worst("slowest_of_limit_1_3_of_mean", fairness(limit_sums));
    keep_worst(format("{}_store_vs_limit", kind), store_rates.median() / limit_rates.median());
    std::error_code ignored;
    repositories.clear();
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::filesystem::remove_all(entry.path(), ignored);
    }
    return {};
  }

  // Puts a second of versions of one tensor of 4 KiB, with so many clients; `one_by_one` makes them queue.
  Result<double> small_puts_per_s(const std::string& folder, std::size_t clients, bool one_by_one) {
    const int puts = options_.quick ? 30 : 150;
    FRESHET_ASSIGN(const auto repository, open(Keep::rocksdb, folder, 0));
    std::vector<Client> all;
    for (std::size_t i = 0; i < clients; ++i) all.emplace_back(i, 1, 4096);
    Mutex turn;
    const Together together = run_together(clients, [&](std::size_t i) -> Status {
      for (int n = 0; n < puts; ++n) {
        all[i].prepare();
        if (one_by_one) {
          const MutexLock lock(turn);
          FRESHET_TRY(all[i].put(*repository));
        } else {
          FRESHET_TRY(all[i].put(*repository));
        }
      }
      return {};
    });
    FRESHET_TRY(together.status);
    return static_cast<double>(clients) * puts / together.all_ms * 1000;
  }

  Status measure_small_puts(const std::string& folder) {
    std::map<std::string, Samples> rates;
    for (int round = 0; round < kRepetitions; ++round) {
      for (const auto& [subject, clients, one_by_one] :
           {std::tuple("1_client", 1, false), {"8_clients", 8, false}, {"8_clients_one_by_one", 8, true}}) {
        FRESHET_ASSIGN(const double rate, small_puts_per_s(format("{}/small-{}-{}", folder, subject, round),
                                                           static_cast<std::size_t>(clients), one_by_one));
        rates[subject].add(rate);
      }
    }
    for (const auto& [subject, samples] : rates) report_.add_row("small_puts", subject, "puts/s", samples);
    report_.set_ratio("small_puts_8_vs_1", rates["8_clients"].median() / rates["1_client"].median());
    report_.set_ratio("small_puts_vs_one_by_one", rates["8_clients"].median() / rates["8_clients_one_by_one"].median());
    return {};
  }

  static double fairness(const std::vector<double>& sums) {
    const double all = std::accumulate(sums.begin(), sums.end(), 0.0);
    return 1.3 * all / static_cast<double>(sums.size()) / *std::max_element(sums.begin(), sums.end());
  }

  void keep_worst(const std::string& name, double value) {
    const auto [entry, first] = worst_.try_emplace(name, value);
    if (!first) entry->second = std::min(entry->second, value);
  }

  static constexpr int kRepetitions = 5;
  const Options options_;
  std::map<std::string, double> worst_;
  Report& report_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(count, words,
                       {.name = "concurrency",
                        .about = "Clients that store and load at the same time, and many small puts",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--folder", options.folder, "Where repositories are made");
                              app.add_option("--part", options.part, "all, local or providers")
                                  ->check(CLI::IsMember({"all", "local", "providers"}));
                              app.add_option("--provide", options.provide)->group("");
                              app.add_option("--room", options.room)->group("");
                            }},
                       [&](Report& report) {
                         if (!options.provide.empty()) return provide(options.provide, options.folder, options.room);
                         return Benchmark(options, report).run();
                       });
}
