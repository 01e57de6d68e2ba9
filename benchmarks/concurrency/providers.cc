// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/concurrency/providers.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "benchmarks/common/child.h"
#include "benchmarks/concurrency/clients.h"
#include "core/base/format.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/option_text.h"

namespace freshet::benchmarks {
namespace {

constexpr int kRepetitions = 5;
constexpr std::size_t kTensors = 24;

struct Case {
  std::string backend;
  std::size_t providers = 1;
  std::size_t clients = 1;
  std::size_t tensor_bytes = 0;
  std::string name() const { return format("{}_{}clients_{}provider_processes", backend, clients, providers); }
};

struct Measured {
  Samples store_rates;
  Samples stores;
  std::map<std::string, Samples> load_rates;  ///< By the way that they went.
  std::map<std::string, Samples> loads;
  Samples copy_rates;
  std::map<std::string, std::vector<double>> sums;  ///< Of each client's time.
};

std::vector<std::string> ways() {
  std::vector<std::string> all{"auto", "none", "zmq"};
  if (channel::ucx_version()) all.push_back("ucx");
  return all;
}

std::string shown_way(const std::string& way) { return way == "none" ? "connection" : way; }

class Providers {
 public:
  explicit Providers(Case what) : what_(std::move(what)) {}

  Status start(const std::string& folder) {
    const std::uint64_t model = kTensors * what_.tensor_bytes;
    const std::uint64_t room = (what_.clients / what_.providers + 1) * 2 * model;
    for (std::size_t i = 0; i < what_.providers; ++i) {
      FRESHET_ASSIGN(auto child,
                     Child::start({own_path(), "--provide", what_.backend, "--folder",
                                   format("{}/{}-{}", folder, what_.name(), i), "--room", format("{}", room)}));
      FRESHET_ASSIGN(std::string address, child->read_line());
      addresses_.push_back(std::move(address));
      children_.push_back(std::move(child));
    }
    for (std::size_t i = 0; i < what_.clients; ++i) {
      clients_.emplace_back(i, kTensors, what_.tensor_bytes);
      for (const std::string& way : ways()) {
        for (std::size_t at = 0; at < what_.providers; ++at) {
          FRESHET_ASSIGN(const ChannelChoice channels, parse_channel_choice(way));
          FRESHET_ASSIGN(auto connection, connect_repository(addresses_[at], {.channels = channels}));
          connections_[way].push_back(std::move(connection));
        }
      }
    }
    return {};
  }

  Status round(Measured* measured) {
    const double megabytes = static_cast<double>(what_.clients * kTensors * what_.tensor_bytes) / 1e6;
    for (Client& client : clients_) client.prepare();
    const Together stored =
        run_together(what_.clients, [&](std::size_t i) { return clients_[i].put(at("auto", i, i)); });
    FRESHET_TRY(stored.status);
    if (measured != nullptr) {
      measured->stores.add(stored.each);
      measured->store_rates.add(megabytes / stored.all_ms * 1000);
    }
    for (const std::string& way : ways()) {
      const Together loaded = run_together(what_.clients, [&](std::size_t i) {
        const std::size_t other = (i + 1) % what_.clients;
        return clients_[i].load(at(way, i, other), clients_[other].model());
      });
      FRESHET_TRY(loaded.status);
      if (measured == nullptr) continue;
      measured->loads[way].add(loaded.each);
      measured->load_rates[way].add(megabytes / loaded.all_ms * 1000);
      std::vector<double>& sums = measured->sums[way];
      sums.resize(what_.clients);
      for (std::size_t i = 0; i < what_.clients; ++i) sums[i] += stored.each.values()[i] + loaded.each.values()[i];
    }
    const Together copied = run_together(what_.clients, [&](std::size_t i) -> Status {
      clients_[i].copy();
      return {};
    });
    if (what_.backend == "memory") FRESHET_TRY(make_room());
    if (measured == nullptr) return {};
    measured->copy_rates.add(megabytes / copied.all_ms * 1000);
    return {};
  }

 private:
  /// All that was stored goes, so that what is stored next finds memory that was touched.
  Status make_room() {
    for (std::size_t i = 0; i < what_.clients; ++i) {
      FRESHET_ASSIGN(const auto rows, at("auto", i, i).versions(clients_[i].model()));
      for (const LineageRow& row : rows) {
        if (!row.retired) FRESHET_TRY(at("auto", i, i).retire(row.version, {}));
      }
    }
    for (std::size_t i = 0; i < what_.providers; ++i) FRESHET_TRY(at("auto", 0, i).gc({}, {}));
    return {};
  }
  /// A client's connection to the provider that has that one's model.
  Repository& at(const std::string& way, std::size_t client, std::size_t whose) const {
    return *connections_.at(way)[client * what_.providers + whose % what_.providers];
  }

  const Case what_;
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<std::string> addresses_;
  std::vector<Client> clients_;
  std::map<std::string, std::vector<std::unique_ptr<Repository>>> connections_;
};

Status measure(Report& report, const std::string& folder, const Case& what) {
  Measured measured;
  {
    Providers providers(what);
    FRESHET_TRY(providers.start(folder));
    for (int round = 0; round <= kRepetitions; ++round) {
      FRESHET_TRY(providers.round(round == 0 ? nullptr : &measured));  // The first one warms up.
    }
  }
  const std::string name = what.name();
  report.add_row(name, "store", "ms", measured.stores);
  report.add_row(name, "store_together", "MB/s", measured.store_rates);
  for (const std::string& way : ways()) {
    report.add_row(name, format("load_by_{}", shown_way(way)), "ms", measured.loads[way]);
    report.add_row(name, format("load_together_by_{}", shown_way(way)), "MB/s", measured.load_rates[way]);
  }
  report.add_row(name, "memcpy_together", "MB/s", measured.copy_rates);
  const std::vector<double>& sums = measured.sums["auto"];
  double mean = 0;
  for (const double sum : sums) mean += sum / static_cast<double>(sums.size());
  report.set_ratio(name + "_slowest_client_1_3_of_mean", 1.3 * mean / *std::max_element(sums.begin(), sums.end()));
  report.set_ratio(name + "_store_vs_memcpy", measured.store_rates.median() / measured.copy_rates.median());
  report.set_ratio(name + "_load_vs_memcpy", measured.load_rates["auto"].median() / measured.copy_rates.median());
  report.set_ratio(name + "_channels_vs_connection",
                   measured.load_rates["auto"].median() / measured.load_rates["none"].median());
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::filesystem::remove_all(entry.path(), ignored);
  }
  return {};
}

/// The processor time of this process and of its child, in milliseconds.
double busy_ms(pid_t child) {
  double ms = 0;
  for (const pid_t pid : {::getpid(), child}) {
    clockid_t clock{};
    timespec time{};
    if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) continue;
    ms += static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  }
  return ms;
}

/// One client, reads of growing size: from where on a channel pays, and what a read costs both sides in processor time,
/// which others who are busy on the machine change little.
Status measure_sizes(Report& report, const std::string& folder, bool quick) {
  constexpr std::uint64_t kLargest = std::uint64_t{64} << 20;
  FRESHET_ASSIGN(auto child, Child::start({own_path(), "--provide", "memory", "--folder", folder, "--room",
                                           format("{}", 3 * kLargest)}));
  FRESHET_ASSIGN(const std::string address, child->read_line());
  FRESHET_ASSIGN(const auto store, connect_repository(address));
  for (std::uint64_t bytes = std::uint64_t{16} << 10; bytes <= kLargest; bytes *= 4) {
    Client client(bytes, 1, bytes);
    client.prepare();
    FRESHET_TRY(client.put(*store));
    FRESHET_ASSIGN(const VersionRecord record, store->get({.model = client.model()}));
    for (const std::string& way : ways()) {
      if (way == "auto") continue;
      FRESHET_ASSIGN(const ChannelChoice channels, parse_channel_choice(way));
      FRESHET_ASSIGN(const auto remote, connect_repository(address, {.channels = channels, .channel_bytes_min = 0}));
      Samples times;
      Samples busy;
      Samples first;
      const int reads = quick ? 5 : static_cast<int>(std::clamp<std::uint64_t>(kLargest * 4 / bytes, 15, 300));
      for (int i = -3; i < reads; ++i) {
        const double busy_before = busy_ms(child->pid());
        const std::int64_t from = monotonic_ns();
        FRESHET_TRY(client.read(*remote, record));
        if (i == -3) first.add(static_cast<double>(monotonic_ns() - from) / 1e6);
        if (i < 0) continue;  // It warms up.
        times.add(static_cast<double>(monotonic_ns() - from) / 1e6);
        busy.add(busy_ms(child->pid()) - busy_before);
      }
      const std::string name = format("read_{}_KiB", bytes >> 10);
      report.add_row(name, shown_way(way), "ms", times);
      report.add_row(name, shown_way(way) + "_first", "ms", first);
      report.add_row(name, shown_way(way) + "_processors", "ms", busy);
    }
  }
  return {};
}

}  // namespace

Status provide(const std::string& backend, const std::string& folder, std::uint64_t room) {
  std::unique_ptr<Backend> keeps;
  if (backend == "memory") {
    FRESHET_ASSIGN(keeps, make_memory_backend({.touched_bytes = room}));
  } else {
    FRESHET_ASSIGN(keeps, open_rocks_backend({.folder = folder}));
  }
  FRESHET_ASSIGN(const auto repository, ProviderRepository::open(std::move(keeps), {}));
  FRESHET_ASSIGN(const auto server, RepositoryServer::open(*repository, {.address = "tcp://127.0.0.1:*"}));
  std::cout << server->address() << std::endl;
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return {};
}

Status measure_providers(Report& report, const std::string& folder, bool quick) {
  const std::size_t tensor_bytes = (quick ? 48'000'000 : 96'000'000) / kTensors / 64 * 64;
  const std::vector<std::size_t> client_counts =
      quick ? std::vector<std::size_t>{1, 4} : std::vector<std::size_t>{1, 2, 4, 8};
  const std::vector<std::size_t> provider_counts =
      quick ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{1, 2, 4};
  FRESHET_TRY(measure_sizes(report, folder, quick));
  for (const std::string backend : {"memory", "rocksdb"}) {
    for (const std::size_t providers : provider_counts) {
      for (const std::size_t clients : client_counts) {
        if (clients < providers) continue;
        FRESHET_TRY(
            measure(report, folder,
                    {.backend = backend, .providers = providers, .clients = clients, .tensor_bytes = tensor_bytes}));
      }
    }
  }
  return {};
}

}  // namespace freshet::benchmarks
