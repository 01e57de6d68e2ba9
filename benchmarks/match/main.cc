// SPDX-License-Identifier: Apache-2.0
/// match: how long a repository takes to find the best ancestor among many models, against EvoStore's Algorithm 1 over
/// the same catalog and against Redis-Queries, the other way that the EvoStore paper describes.
///
/// usage: match [--quick] [--json] [--corpus FILE.jsonl] [--only CASE]

#include <chrono>
#include <latch>
#include <limits>
#include <string>
#include <thread>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/match/algorithm1.h"
#include "benchmarks/match/cases.h"
#include "benchmarks/match/through_provider.h"
#include "benchmarks/redis_queries/redis_queries.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  std::string corpus;
  std::string only;
};

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

MatchQuery query_for(const std::shared_ptr<const MatchGraph>& graph) {
  MatchQuery query;
  query.graph = graph;
  return query;
}

std::uint64_t best_layers(const MatchAnswer& answer) { return answer.top.empty() ? 0 : answer.top[0].lcp.layers; }

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {}

  Status run();

 private:
  /// The catalog that the peers are measured on too.
  static constexpr const char* kMain = "dense_skip_evolved_60k";

  bool wanted(const std::string& name) const { return options_.only.empty() || options_.only == name; }
  Status space_cases();
  Status large_cases();
  Status run_case(const MatchCase& match_case, bool peers);
  Status fill(const MatchCase& match_case, StructureIndex& index);
  Status check_against_algorithm1(const MatchCase& match_case, const StructureIndex& index);
  Status redis(const MatchCase& match_case, const StructureIndex& index);
  void latencies(const MatchCase& match_case, const StructureIndex& index);
  void workers(const MatchCase& match_case, const StructureIndex& index);
  Status through_provider(const MatchCase& match_case);
  void say(const std::string& text) const { std::cerr << "match: " << text << std::endl; }

  const Options options_;
  Report& report_;
};

Status Benchmark::fill(const MatchCase& match_case, StructureIndex& index) {
  const auto start = Clock::now();
  for (std::size_t i = 0; i < match_case.models.size(); ++i) FRESHET_TRY(index.insert(entry_of(match_case, i), i + 1));
  const auto models = static_cast<double>(match_case.models.size());
  report_.add_row(match_case.name, "insert", "us", microseconds_since(start) / models);
  const StructureIndex::Memory memory = index.memory();
  report_.add_row(match_case.name, "architectures", "count", static_cast<double>(memory.architectures));
  report_.add_row(match_case.name, "index_beyond_graphs", "bytes/model",
                  static_cast<double>(memory.index_bytes) / models);
  const std::pair<const char*, std::uint64_t> parts[] = {{"index_versions", memory.version_bytes},
                                                         {"index_lines", memory.line_bytes},
                                                         {"index_groups", memory.group_bytes},
                                                         {"index_slots", memory.slot_bytes},
                                                         {"index_lists", memory.list_bytes}};
  for (const auto& [part, bytes] : parts) {
    report_.add_row(match_case.name, part, "bytes/model", static_cast<double>(bytes) / models);
  }
  report_.add_row(match_case.name, "graphs", "bytes/model", static_cast<double>(memory.graph_bytes) / models);
  return {};
}

/// p50 and p99 of passes over all queries; and of each query's quickest pass, which other programs disturb least.
void Benchmark::latencies(const MatchCase& match_case, const StructureIndex& index) {
  Samples p50;
  Samples p99;
  Samples worst;
  std::vector<double> quickest(match_case.queries.size(), std::numeric_limits<double>::infinity());
  for (int pass = 0; pass < 6; ++pass) {
    Samples times;
    for (std::size_t i = 0; i < match_case.queries.size(); ++i) {
      const MatchQuery query = query_for(match_case.queries[i]);
      const auto start = Clock::now();
      const MatchAnswer answer = index.match(query);
      const double time = microseconds_since(start);
      times.add(time);
      quickest[i] = std::min(quickest[i], time);
    }
    if (pass == 0) continue;  // It warms up.
    p50.add(times.percentile(0.5));
    p99.add(times.percentile(0.99));
    worst.add(times.max());
  }
  report_.add_row(match_case.name, "freshet_p50", "us", p50);
  report_.add_row(match_case.name, "freshet_p99", "us", p99);
  report_.add_row(match_case.name, "freshet_max", "us", worst);
  Samples undisturbed;
  for (const double time : quickest) undisturbed.add(time);
  report_.add_row(match_case.name, "freshet_p99_undisturbed", "us", undisturbed.percentile(0.99));
}

Status Benchmark::check_against_algorithm1(const MatchCase& match_case, const StructureIndex& index) {
  Algorithm1 peer;
  for (const auto& model : match_case.models) peer.add(*model.graph);
  Samples times;
  const std::size_t asked = std::min<std::size_t>(match_case.queries.size(), options_.quick ? 10 : 40);
  for (std::size_t i = 0; i < asked; ++i) {
    const auto start = Clock::now();
    const Algorithm1::Best best = peer.best(*match_case.queries[i]);
    times.add(microseconds_since(start));
    const MatchAnswer answer = index.match(query_for(match_case.queries[i]));
    if (best.layers != best_layers(answer)) {
      return fail(Code::corrupt, format("{}, query {}: {} layers are shared, the index found {}", match_case.name, i,
                                        best.layers, best_layers(answer)));
    }
  }
  report_.add_row(match_case.name, "algorithm1", "us", times);
  const double ratio = times.median() / report_.median(match_case.name, "freshet_p50");
  report_.set_ratio(match_case.name == kMain ? "vs_algorithm1" : "vs_algorithm1_" + match_case.name, ratio);
  return {};
}

Status Benchmark::redis(const MatchCase& match_case, const StructureIndex& index) {
  std::vector<RedisQueries::Model> models;
  for (std::size_t i = 0; i < match_case.models.size(); ++i) {
    const auto& model = match_case.models[i];
    models.push_back({.name = entry_of(match_case, i).name.model, .graph = model.graph, .quality = model.quality});
  }
  for (const RedisQueries::Form form : {RedisQueries::Form::packed, RedisQueries::Form::json}) {
    const std::string subject = form == RedisQueries::Form::json ? "redis_queries" : "redis_queries_packed";
    const auto server = RedisServer::start();
    if (!server) {
      report_.skip(subject, server.error().message());
      continue;
    }
    FRESHET_ASSIGN(const auto client, RedisQueries::connect(**server, form));
    FRESHET_TRY(client->publish(models));
    Samples times;
    for (std::size_t i = 0; i < (options_.quick ? 2u : 5u); ++i) {
      const auto start = Clock::now();
      FRESHET_ASSIGN(const auto best, client->query(*match_case.queries[i]));
      times.add(microseconds_since(start));
      const std::uint64_t expected = best_layers(index.match(query_for(match_case.queries[i])));
      if ((best ? best->layers : 0) != expected)
        return fail(Code::corrupt, format("{} found another ancestor", subject));
    }
    report_.add_row(match_case.name, subject, "us", times);
    report_.set_ratio("vs_" + subject, times.median() / report_.median(match_case.name, "freshet_p50"));
  }
  return {};
}

/// Queries a second of several threads on one index.
void Benchmark::workers(const MatchCase& match_case, const StructureIndex& index) {
  for (const int count : {1, 2, 4, 8}) {
    Samples rates;
    for (int pass = 0; pass < (options_.quick ? 1 : 3); ++pass) {
      std::latch ready(count + 1);
      std::vector<std::jthread> threads;
      for (int thread = 0; thread < count; ++thread) {
        threads.emplace_back([&, thread] {
          ready.arrive_and_wait();
          for (std::size_t i = 0; i < match_case.queries.size(); ++i) {
            const std::size_t at = (i + static_cast<std::size_t>(thread) * 101) % match_case.queries.size();
            index.match(query_for(match_case.queries[at]));
          }
        });
      }
      ready.arrive_and_wait();
      const auto start = Clock::now();
      threads.clear();  // Joins them.
      rates.add(static_cast<double>(match_case.queries.size()) * count / microseconds_since(start) * 1e6);
    }
    report_.add_row(match_case.name, format("workers_{}", count), "queries/s", rates);
  }
  report_.set_ratio("workers_2_vs_1",
                    report_.median(match_case.name, "workers_2") / report_.median(match_case.name, "workers_1"));
}

/// Through a server on loopback.
Status Benchmark::through_provider(const MatchCase& match_case) {
  FRESHET_ASSIGN(const auto provider, ProviderWithCatalog::start(match_case));
  for (const std::size_t clients : {1, 2, 4, 8}) {
    Samples rates;
    Samples per_cpu;
    for (int pass = 0; pass < (options_.quick ? 1 : 3); ++pass) {
      FRESHET_ASSIGN(const ThroughProvider found, provider->ask(clients));
      rates.add(found.per_second);
      per_cpu.add(found.per_cpu_second);
    }
    report_.add_row(match_case.name, format("provider_clients_{}", clients), "queries/s", rates);
    report_.add_row(match_case.name, format("provider_clients_{}_per_core", clients), "queries/cpu-s", per_cpu);
  }
  report_.set_ratio("provider_vs_in_process", report_.median(match_case.name, "provider_clients_4") /
                                                  report_.median(match_case.name, "workers_1"));
  return {};
}

Status Benchmark::run_case(const MatchCase& match_case, bool peers) {
  say(format("{}: {} models, {} queries", match_case.name, match_case.models.size(), match_case.queries.size()));
  StructureIndex index;
  FRESHET_TRY(fill(match_case, index));
  latencies(match_case, index);
  if (!peers) return {};
  FRESHET_TRY(check_against_algorithm1(match_case, index));
  if (match_case.name != kMain) return {};
  workers(match_case, index);
  FRESHET_TRY(through_provider(match_case));
  return redis(match_case, index);
}

Status Benchmark::space_cases() {
  constexpr std::size_t kModels = 60'000;
  const std::size_t queries = options_.quick ? 2'000 : 10'000;
  struct Entry {
    std::unique_ptr<nas::Space> space;
    bool evolved;
    bool random;
  };
  std::vector<Entry> entries;
  entries.push_back({nas::make_dense_skip_space(), true, true});
  entries.push_back({nas::make_two_input_space(), true, true});
  entries.push_back({nas::make_star_space(), false, true});
  if (!options_.quick) entries.push_back({nas::make_chain_space(15), true, true});
  if (!options_.quick) entries.push_back({nas::make_chain_space(100), true, true});
  for (const Entry& entry : entries) {
    for (const bool evolved : {true, false}) {
      if (!(evolved ? entry.evolved : entry.random)) continue;
      const std::string name = format("{}_{}_60k", entry.space->name(), evolved ? "evolved" : "random");
      if (!wanted(name)) continue;
      const nas::Catalog catalog =
          evolved ? nas::evolved_catalog(*entry.space, kModels, {}) : nas::random_catalog(*entry.space, kModels, 1);
      FRESHET_TRY(run_case(make_case(name, *entry.space, catalog, queries), true));
    }
  }
  const auto bench = nas::make_nas_bench_201_space();
  if (!options_.quick && wanted("nas_bench_201_half")) {
    nas::Catalog catalog;
    std::uint64_t number = 0;
    for (nas::CatalogModel& model : nas::whole_space(*bench, 1)) {
      if (nas::mixed(number++) % 2 == 0) catalog.push_back(std::move(model));
    }
    FRESHET_TRY(run_case(make_case("nas_bench_201_half", *bench, catalog, queries), true));
  }
  if (options_.corpus.empty()) {
    report_.skip("published_networks", "no --corpus: there is no file of their graphs");
    return {};
  }
  FRESHET_ASSIGN(const MatchCase corpus, make_corpus_case(options_.corpus));
  return wanted(corpus.name) ? run_case(corpus, true) : Status();
}

Status Benchmark::large_cases() {
  const auto space = nas::make_dense_skip_space();
  const std::size_t queries = options_.quick ? 2'000 : 10'000;
  struct Size {
    const char* name;
    std::size_t models;
  };
  for (const Size size : {Size{"10k", 10'000}, Size{"1m", 1'000'000}}) {
    for (const bool evolved : {true, false}) {
      if (!evolved && options_.quick) continue;
      const std::string name = format("dense_skip_{}_{}", evolved ? "evolved" : "random", size.name);
      if (!wanted(name)) continue;
      const nas::Catalog catalog =
          evolved ? nas::evolved_catalog(*space, size.models, {}) : nas::random_catalog(*space, size.models, 1);
      FRESHET_TRY(run_case(make_case(name, *space, catalog, queries), false));
    }
  }
  for (const std::string kind : {"evolved", "random"}) {
    const std::string name = "dense_skip_" + kind;
    report_.set_ratio(kind == "evolved" ? "10k_vs_1m" : "10k_vs_1m_random",
                      report_.median(name + "_10k", "freshet_p50") / report_.median(name + "_1m", "freshet_p50"));
  }
  return {};
}

Status Benchmark::run() {
  FRESHET_TRY(space_cases());
  return large_cases();
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(count, words,
                       {.name = "match",
                        .about = "The best ancestor among many models",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--corpus", options.corpus, "Graphs, a JSON object a line");
                              app.add_option("--only", options.only, "One case");
                            }},
                       [&](Report& report) { return Benchmark(options, report).run(); });
}
