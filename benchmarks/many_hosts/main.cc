// SPDX-License-Identifier: Apache-2.0
/// many_hosts: how long until a version is in a bucket, and until it is in the caller's memory again, beside boto3's
/// transfer of the same objects; on a real object store on loopback, by one process and by several at a time. The same
/// of a pool of Ceph, beside `rados bench`.
///
/// usage: many_hosts [--quick] [--json] [--case CASE] [--python PYTHON] [--weed WEED] [--folder DIR]

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "benchmarks/common/child.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/many_hosts/worker.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "repo/s3/s3_store.h"
#include "tests/support/ceph_cluster.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint64_t kMB = 1'000'000;
constexpr std::chrono::minutes kAnswerMax(10);
constexpr int kRounds = 5;

struct Options : CommonOptions {
  std::string python = "python3";
  std::string weed = "weed";
  std::string folder = "/var/tmp";
  std::string only;  ///< A case; empty: all.
};

/// Processes that do the same at the same time, each with its share of the model at a place of its own.
class Crowd {
 public:
  static Result<Crowd> start(const std::vector<std::vector<std::string>>& commands) {
    Crowd crowd;
    for (const auto& words : commands) {
      FRESHET_ASSIGN(auto child, Child::start(words));
      crowd.children_.push_back(std::move(child));
    }
    for (const auto& child : crowd.children_) {
      FRESHET_ASSIGN(const std::string line, child->read_line(kAnswerMax));
      if (line != "ready") return fail(Code::unavailable, "a process answers " + line);
    }
    return crowd;
  }

  /// Adds the time until the last one is done, and the processor time of all.
  Status run(const std::string& what, Samples& ms, Samples& processor_ms) {
    const std::int64_t begun = monotonic_ns();
    for (const auto& child : children_) FRESHET_TRY(child->write_line(what));
    double processor = 0;
    for (const auto& child : children_) {
      FRESHET_ASSIGN(const std::string line, child->read_line(kAnswerMax));
      double own_ms = 0;
      double own_processor = 0;
      std::istringstream(line) >> own_ms >> own_processor;
      processor += own_processor;
    }
    ms.add(static_cast<double>(monotonic_ns() - begun) / 1e6);
    processor_ms.add(processor);
    return {};
  }

 private:
  std::vector<std::unique_ptr<Child>> children_;
};

struct Measured {
  Samples store;
  Samples load;
  Samples store_processor;
  Samples load_processor;
};

class ManyHosts {
 public:
  ManyHosts(const Options& options, Report& report) : options_(options), report_(report) {}

  Status run() {
    if (options_.only.empty() || options_.only == kPool) {
      report_.skip_failed(kPool, measure_pool());
      if (!options_.only.empty()) return {};
    }
    return in_new_folder(options_.folder, [this](const std::string& folder) -> Status {
      report_.skip_failed("many_hosts", measure(folder));
      return {};
    });
  }

 private:
  Status measure(const std::string& folder) {
    ::setenv("AWS_ACCESS_KEY_ID", "owner", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "owner-secret", 1);
    ::setenv("AWS_DEFAULT_REGION", "us-east-1", 1);
    const auto server = Child::start({options_.python, peer(), "server", options_.weed, folder});
    if (!server) return fail(server.error());
    const auto endpoint = (*server)->read_line(std::chrono::minutes(2));
    if (!endpoint) {
      return fail(Code::unavailable,
                  format("{} starts no SeaweedFS: it needs boto3, and {}; scripts/python.sh --frameworks brings both",
                         options_.python, options_.weed));
    }
    ::setenv("AWS_ENDPOINT_URL", endpoint->c_str(), 1);
    const std::uint64_t model = (options_.quick ? 200 : 1000) * kMB;
    for (const std::size_t processes : {1, 4, 8}) {
      if (wants(case_of(processes))) FRESHET_TRY(measure_case(processes, model / kTensors));
    }
    if (wants(kDirect)) FRESHET_TRY(measure_direct(folder, model / kTensors));
    if (wants(kPuts)) FRESHET_TRY(measure_puts(folder, kPuts));
    if (wants(kFarPuts)) FRESHET_TRY(measure_far_puts(folder, *endpoint));
    if (wants(kMatches)) FRESHET_TRY(measure_matches(folder));
    return {};
  }

  bool wants(std::string_view name) const { return options_.only.empty() || options_.only == name; }

  static std::string peer() {
    return (std::filesystem::path(own_path()).parent_path() / "many_hosts_peer.py").string();
  }

  static std::string case_of(std::size_t processes) {
    return format("{}_process{}", processes, processes == 1 ? "" : "es");
  }

  Status measure_case(std::size_t processes, std::uint64_t tensor_bytes) {
    const std::string name = case_of(processes);
    std::vector<std::vector<std::string>> ours;
    std::vector<std::vector<std::string>> peers;
    const std::string tensors = std::to_string(kTensors / processes);
    const std::string bytes = std::to_string(tensor_bytes);
    for (std::size_t i = 0; i < processes; ++i) {
      const std::string prefix = format("{}-{}", name, i);
      ours.push_back({own_path(), "--worker", "s3://freshet/" + prefix, tensors, bytes});
      peers.push_back({options_.python, peer(), "transfer", "freshet", "boto3-" + prefix, tensors, bytes});
    }
    FRESHET_ASSIGN(Crowd freshet, Crowd::start(ours));
    FRESHET_ASSIGN(Crowd boto3, Crowd::start(peers));
    Measured freshets;
    Measured boto3s;
    for (int round = -1; round < kRounds; ++round) {
      if (round == 0) freshets = boto3s = {};  // The first was a warm-up.
      for (auto& [crowd, measured] : {std::pair(&freshet, &freshets), std::pair(&boto3, &boto3s)}) {
        FRESHET_TRY(crowd->run("store", measured->store, measured->store_processor));
        FRESHET_TRY(crowd->run("load", measured->load, measured->load_processor));
      }
      std::cerr << format("many_hosts: {} round {} of {}\n", name, round + 1, kRounds);
    }
    add_rows(name, "freshet", freshets);
    add_rows(name, "boto3", boto3s);
    const std::string suffix = processes == 1 ? "" : format("_{}", processes);
    report_.set_ratio("store_vs_boto3" + suffix, boto3s.store.median() / freshets.store.median());
    report_.set_ratio("load_vs_boto3" + suffix, boto3s.load.median() / freshets.load.median());
    return {};
  }

  /// A process without credentials, and the owner that signs its requests.
  Status measure_direct(const std::string& folder, std::uint64_t tensor_bytes) {
    const std::string name = kDirect;
    const std::string address = "ipc://" + folder + "/owner";
    const std::string tensors = std::to_string(kTensors);
    const std::string bytes = std::to_string(tensor_bytes);
    FRESHET_ASSIGN(Crowd owner, Crowd::start({{own_path(), "--owner", "s3://freshet/" + name, address}}));
    FRESHET_ASSIGN(Crowd client, Crowd::start({{own_path(), "--worker", address, tensors, bytes}}));
    FRESHET_ASSIGN(Crowd boto3,
                   Crowd::start({{options_.python, peer(), "transfer", "freshet", "boto3-" + name, tensors, bytes}}));
    Measured direct;
    Measured boto3s;
    Samples ignored;
    Samples owner_store;
    Samples owner_load;
    for (int round = -1; round < kRounds; ++round) {
      if (round == 0) {  // The first was a warm-up.
        direct = boto3s = {};
        owner_store = owner_load = {};
      }
      Samples since;  // The round before.
      FRESHET_TRY(owner.run("processor", ignored, since));
      FRESHET_TRY(client.run("store", direct.store, direct.store_processor));
      FRESHET_TRY(owner.run("processor", ignored, owner_store));
      FRESHET_TRY(client.run("load", direct.load, direct.load_processor));
      FRESHET_TRY(owner.run("processor", ignored, owner_load));
      FRESHET_TRY(boto3.run("store", boto3s.store, boto3s.store_processor));
      FRESHET_TRY(boto3.run("load", boto3s.load, boto3s.load_processor));
      std::cerr << format("many_hosts: {} round {} of {}\n", name, round + 1, kRounds);
    }
    add_rows(name, "freshet", direct);
    add_rows(name, "boto3", boto3s);
    const double gib = static_cast<double>(kTensors * tensor_bytes) / static_cast<double>(std::uint64_t{1} << 30);
    report_.add_row(name, "owner_store_processor", "ms", owner_store);
    report_.add_row(name, "owner_load_processor", "ms", owner_load);
    report_.set_ratio("store_vs_boto3_direct", boto3s.store.median() / direct.store.median());
    report_.set_ratio("load_vs_boto3_direct", boto3s.load.median() / direct.load.median());
    report_.set_ratio("owner_20_ms_vs_gib_stored", 20 * gib / owner_store.median());
    report_.set_ratio("owner_20_ms_vs_gib_loaded", 20 * gib / owner_load.median());
    return {};
  }

  static Result<Crowd> clients_of(const std::string& address, std::size_t count) {
    std::vector<std::vector<std::string>> commands(
        count, {own_path(), "--worker", address, std::to_string(kSmallTensors), std::to_string(kSmallBytes)});
    return Crowd::start(commands);
  }

  /// The same over a line to the store that is as long as a real one.
  Status measure_far_puts(const std::string& folder, const std::string& endpoint) {
    FRESHET_ASSIGN(const auto line,
                   Child::start({options_.python, peer(), "delay", endpoint, std::to_string(kFarRoundtripMs)}));
    FRESHET_ASSIGN(const std::string far, line->read_line());
    ::setenv("AWS_ENDPOINT_URL", far.c_str(), 1);
    Status measured = measure_puts(folder, kFarPuts);
    ::setenv("AWS_ENDPOINT_URL", endpoint.c_str(), 1);
    return measured;
  }

  /// Small versions by many workers without credentials, through one owner, beside one creation at the store.
  Status measure_puts(const std::string& folder, const std::string& name) {
    const std::string address = format("ipc://{}/{}", folder, name);
    FRESHET_ASSIGN(Crowd owner, Crowd::start({{own_path(), "--owner", "s3://freshet/" + name, address}}));
    FRESHET_ASSIGN(Crowd workers, clients_of(address, kPutWorkers));
    FRESHET_ASSIGN(const S3Address place, parse_s3_address("s3://freshet/roundtrips-" + name));
    FRESHET_ASSIGN(const std::unique_ptr<ObjectStore> store, open_s3_store(place));
    constexpr double kPutsOfAll = kPutWorkers * kPutsOfOne;
    Samples roundtrip_ms;
    Samples puts_a_second;
    Samples worker_processor;
    Samples owner_processor;
    for (int round = -1; round < kRounds; ++round) {
      Samples ms;
      Samples of_workers;
      Samples of_owner;
      Samples since;  // The round before.
      FRESHET_TRY(owner.run("processor", ms, since));
      ms = {};
      FRESHET_TRY(workers.run(format("put {}", kPutsOfOne), ms, of_workers));
      const double put_ms = ms.median();
      FRESHET_TRY(owner.run("processor", ms, of_owner));
      if (round == 0) roundtrip_ms = {};
      FRESHET_TRY(add_roundtrips(*store, round, roundtrip_ms));
      if (round < 0) continue;  // A warm-up.
      puts_a_second.add(1e3 * kPutsOfAll / put_ms);
      worker_processor.add(of_workers.median() / kPutsOfAll);
      owner_processor.add(of_owner.median() / kPutsOfAll);
    }
    report_.add_row(name, "freshet_puts", "1/s", puts_a_second);
    report_.add_row(name, "store_roundtrip", "ms", roundtrip_ms);
    report_.add_row(name, "worker_processor_of_a_put", "ms", worker_processor);
    report_.add_row(name, "owner_processor_of_a_put", "ms", owner_processor);
    report_.set_ratio(name == kPuts ? "puts_vs_roundtrips" : "puts_vs_roundtrips_10ms",
                      puts_a_second.median() * roundtrip_ms.median() / 1e3);
    return {};
  }

  /// How long one creation takes that nothing else waits for: as a record of the log.
  static Status add_roundtrips(ObjectStore& store, int round, Samples& ms) {
    const std::vector<std::byte> bytes(kSmallBytes);
    for (int i = 0; i < kRoundtrips; ++i) {
      const std::int64_t begun = monotonic_ns();
      const Creation made =
          store.create(format("{}-{}", round, i), bytes, deadline_in(std::chrono::minutes(1)), std::nullopt);
      if (made.outcome != Created::created) return fail(made.error);
      ms.add(static_cast<double>(monotonic_ns() - begun) / 1e6);
    }
    return {};
  }

  /// Matches through the owner of a bucket, beside the same through the owner of a folder.
  Status measure_matches(const std::string& folder) {
    std::vector<Crowd> owners;
    std::vector<Crowd> clients;
    std::vector<Samples> matches(2);
    for (const std::string& place : {format("s3://freshet/{}", kMatches), folder + "/matched"}) {
      const std::string address = format("ipc://{}/matches{}", folder, owners.size());
      FRESHET_ASSIGN(Crowd owner, Crowd::start({{own_path(), "--owner", place, address}}));
      owners.push_back(std::move(owner));
      FRESHET_ASSIGN(Crowd crowd, clients_of(address, kMatchClients));
      clients.push_back(std::move(crowd));
    }
    for (int round = -1; round < kRounds; ++round) {
      for (std::size_t i = 0; i < clients.size(); ++i) {
        Samples ms;
        Samples processor;
        if (round < 0) FRESHET_TRY(clients[i].run(format("put {}", kPutsOfOne), ms, processor));
        FRESHET_TRY(clients[i].run(format("match {}", kMatchesOfOne), ms, processor));
        if (round >= 0) matches[i].add(1e3 * kMatchClients * kMatchesOfOne / ms.median());
      }
    }
    report_.add_row(kMatches, "bucket_owner", "1/s", matches[0]);
    report_.add_row(kMatches, "folder_owner", "1/s", matches[1]);
    report_.set_ratio("matches_vs_folder", matches[0].median() / matches[1].median());
    return {};
  }

  /// Rounds of ours and of `rados bench` with its own sizes, in turn, in one pool.
  Status measure_pool() {
    const CephCluster cluster(CephCluster::Medium::disk);
    if (!cluster.why_not().empty()) return fail(Code::unavailable, cluster.why_not());
    const std::uint64_t bytes = (options_.quick ? 200 : 1000) * kMB;
    FRESHET_ASSIGN(Crowd ours, Crowd::start({{own_path(), "--worker", cluster.address("bench"),
                                              std::to_string(kTensors), std::to_string(bytes / kTensors)}}));
    Measured freshet;
    Measured bench;  // The time for as many bytes.
    for (int round = -1; round < kRounds; ++round) {
      if (round == 0) freshet = bench = {};  // The first was a warm-up.
      FRESHET_TRY(ours.run("store", freshet.store, freshet.store_processor));
      FRESHET_TRY(ours.run("load", freshet.load, freshet.load_processor));
      FRESHET_ASSIGN(const double written, bandwidth_of(cluster, {"write", "--no-cleanup"}));
      FRESHET_ASSIGN(const double read, bandwidth_of(cluster, {"seq"}));
      bench.store.add(static_cast<double>(bytes) / written * 1e3);
      bench.load.add(static_cast<double>(bytes) / read * 1e3);
      FRESHET_ASSIGN(auto cleanup,
                     Child::start({"/usr/bin/rados", "-c", cluster.conf_file(), "-p", CephCluster::kPool, "cleanup"}));
      static_cast<void>(cleanup->read_line(kAnswerMax));
      std::cerr << format("many_hosts: {} round {} of {}\n", kPool, round + 1, kRounds);
    }
    add_rows(kPool, "freshet", freshet);
    report_.add_row(kPool, "rados_bench_store", "ms", bench.store);
    report_.add_row(kPool, "rados_bench_load", "ms", bench.load);
    report_.set_ratio("store_vs_rados_bench", bench.store.median() / freshet.store.median());
    report_.set_ratio("load_vs_rados_bench", bench.load.median() / freshet.load.median());
    return {};
  }

  /// Bytes a second.
  static Result<double> bandwidth_of(const CephCluster& cluster, const std::vector<std::string>& what) {
    std::vector<std::string> words = {"/usr/bin/rados", "-c", cluster.conf_file(), "-p", CephCluster::kPool,
                                      "bench",          "5"};
    words.insert(words.end(), what.begin(), what.end());
    FRESHET_ASSIGN(const auto bench, Child::start(words));
    constexpr std::string_view kBandwidth = "Bandwidth (MB/sec):";
    for (;;) {
      FRESHET_ASSIGN(const std::string line, bench->read_line(kAnswerMax));
      if (!line.starts_with(kBandwidth)) continue;
      return std::strtod(line.c_str() + kBandwidth.size(), nullptr) * (1 << 20);
    }
  }

  void add_rows(const std::string& name, std::string_view subject, const Measured& measured) {
    report_.add_row(name, format("{}_store", subject), "ms", measured.store);
    report_.add_row(name, format("{}_load", subject), "ms", measured.load);
    report_.add_row(name, format("{}_store_processor", subject), "ms", measured.store_processor);
    report_.add_row(name, format("{}_load_processor", subject), "ms", measured.load_processor);
  }

  static constexpr std::size_t kTensors = 100;
  static constexpr const char* kDirect = "direct";
  static constexpr const char* kPuts = "puts";
  static constexpr const char* kFarPuts = "puts_10ms";
  static constexpr int kFarRoundtripMs = 10;
  static constexpr const char* kMatches = "matches";
  static constexpr std::size_t kPutWorkers = 16;
  static constexpr std::size_t kMatchClients = 8;
  static constexpr std::size_t kPutsOfOne = 25;  ///< In a round.
  static constexpr std::size_t kMatchesOfOne = 500;
  static constexpr std::size_t kSmallTensors = 10;
  static constexpr std::size_t kSmallBytes = 1000;
  static constexpr int kRoundtrips = 20;  ///< In a round.
  static constexpr const char* kPool = "pool";

  const Options options_;
  Report& report_;
};

Options default_options() {
  Options options;
  const auto venv = std::filesystem::path(own_path()).parent_path() / "../../venv/bin";
  if (std::filesystem::exists(venv / "python")) options.python = (venv / "python").string();
  if (std::filesystem::exists(venv / "weed")) options.weed = (venv / "weed").string();
  return options;
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  ::signal(SIGPIPE, SIG_IGN);  // A child that died is an error of the line that cannot be written.
  if (count > 2 && std::string_view(words[1]) == "--worker") return run_bucket_worker({words + 2, words + count});
  if (count > 2 && std::string_view(words[1]) == "--owner") return run_bucket_owner({words + 2, words + count});
  Options options = default_options();
  return run_benchmark(
      count, words,
      {.name = "many_hosts",
       .about = "A bucket of many hosts, beside boto3's transfer of the same objects",
       .options = options,
       .add_options =
           [&](CLI::App& app) {
             app.add_option("--python", options.python, "With boto3");
             app.add_option("--weed", options.weed, "SeaweedFS' program");
             app.add_option("--case", options.only,
                            "1_process, 4_processes, 8_processes, direct, puts, puts_10ms, matches or pool alone");
             app.add_option("--folder", options.folder, "Where the store keeps its objects: 25 GB");
           }},
      [&](Report& report) { return ManyHosts(options, report).run(); });
}
