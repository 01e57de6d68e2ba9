// SPDX-License-Identifier: Apache-2.0
/// repo_open: how long a folder of many models, each of another architecture, takes to open, until it answers `match`:
/// beside the reading of all its records, which is the least that anybody could do, and beside a program that keeps
/// its candidates as graph files and parses them when it begins.
///
/// Then what one command costs on a folder of as many models of 40 layers.
///
/// usage: repo_open [--quick] [--json] [--models N] [--layers N] [--folder DIR] [--store DIR] [--only CASE]

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "benchmarks/common/child.h"
#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/repo_open/command_case.h"
#include "core/base/format.h"
#include "examples/nas_spaces/nas_spaces.h"
#include "repo/repository.h"

namespace freshet::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 5;
constexpr std::uint32_t kDeepGraphLayers = 207;
constexpr std::uint64_t kDeepGraphs = 1500;

struct Options : CommonOptions {
  std::uint64_t models = 0;
  std::uint32_t layers = 40;
  std::string folder = std::filesystem::temp_directory_path();
  std::string store;  ///< Of the deep models: kept, and used again where it is there.
  std::string only;   ///< "open", "commands" or "bytes".
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Candidates as DeepHyper's dense-skip space has them, of tensors so small that only their number counts.
std::unique_ptr<nas::Space> space_of_small_tensors() {
  return nas::make_dense_skip_space({.inputs = 1, .outputs = 1, .width_step = 1});
}

class Benchmark {
 public:
  Benchmark(Options options, Report& report)
      : options_(std::move(options)),
        report_(report),
        models_(options_.models != 0 ? options_.models
                : options_.quick     ? 6000
                                     : 60000) {}

  Status run() {
    return in_new_folder(options_.folder, [this](const std::string& folder) { return measure_all(folder); });
  }

 private:
  bool wants(std::string_view name) const { return options_.only.empty() || options_.only == name; }

  Status measure_all(const std::string& folder) {
    if (wants("open")) FRESHET_TRY(measure(folder));
    const std::string program = std::filesystem::path(own_path()).parent_path().parent_path() / "freshet";
    if (wants("commands") && !std::filesystem::exists(program)) {
      report_.skip("commands", program + " is not built");
    } else if (wants("commands")) {
      FRESHET_TRY(measure_commands({.models = models_,
                                    .layers = options_.layers,
                                    .folder = folder,
                                    .store = options_.store,
                                    .program = program,
                                    .tries = kTries},
                                   report_));
    }
    if (!wants("bytes")) return {};
    return measure_graph_bytes(options_.quick ? kDeepGraphs / 10 : kDeepGraphs, kDeepGraphLayers, folder, report_);
  }

  Status measure(const std::string& folder) {
    const std::string name = format("{}_architectures", models_);
    const std::string store = folder + "/store";
    const std::string graphs = folder + "/graphs.jsonl";
    FRESHET_TRY(fill(store, graphs));
    Samples open;
    Samples records;
    Samples parse;
    for (int i = 0; i < kTries; ++i) {
      auto start = Clock::now();
      FRESHET_TRY(open_and_ask(store));
      open.add(milliseconds_since(start));
      start = Clock::now();
      FRESHET_TRY(read_records(store));
      records.add(milliseconds_since(start));
      start = Clock::now();
      FRESHET_TRY(parse_graphs(graphs));
      parse.add(milliseconds_since(start));
    }
    report_.add_row(name, "freshet", "ms", open);
    report_.add_row(name, "records", "ms", records);
    report_.add_row(name, "graph_files", "ms", parse);
    report_.set_ratio("open_vs_records", records.median() / open.median());
    report_.set_ratio("open_vs_graph_files", parse.median() / open.median());
    report_.set_ratio("us_per_model", open.median() * 1000 / static_cast<double>(models_));
    return {};
  }

  Status fill(const std::string& store, const std::string& graphs) {
    const auto space = space_of_small_tensors();
    const nas::Catalog catalog = nas::random_catalog(*space, models_, 11);
    FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = store}));
    FRESHET_ASSIGN(const auto repository, Repository::open(std::move(backend), {}));
    std::ofstream lines(graphs);
    const std::vector<std::byte> zeros(4096);
    const auto start = Clock::now();
    for (std::size_t i = 0; i < catalog.size(); ++i) {
      nas::Network network;
      space->build(catalog[i].genes, network);
      FRESHET_ASSIGN(const auto architecture, nas::to_architecture(network, space->palette(), format("c{}", i)));
      lines << to_graph_json(*architecture) << '\n';
      FRESHET_TRY(put(*repository, i, architecture, zeros, catalog[i].quality));
      last_ = architecture;
    }
    lines.close();
    if (!lines) return fail_errno(errno, graphs);
    FRESHET_ASSIGN(const RepositoryStat stat, repository->stat());
    std::cerr << format("repo_open: {} models of {} tensors together stored in {:.0f} s", stat.versions,
                        stat.live_tensors, milliseconds_since(start) / 1000)
              << std::endl;
    return {};
  }

  static Status put(Repository& repository, std::size_t number, const std::shared_ptr<const Architecture>& architecture,
                    Bytes zeros, double quality) {
    Manifest manifest;
    manifest.name.model = format("candidate{}", number);
    manifest.id = {.run = {.high = 5, .low = 6}, .incarnation = 1, .sequence = number + 1};
    manifest.architecture = architecture;
    manifest.owners = OwnerMap::all_written_by(manifest.id, architecture->tensors().size());
    const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
      const std::uint64_t size = architecture->tensors()[tensor].bytes();
      if (size > zeros.size()) return fail(Code::invalid_argument, "a tensor is larger than it should be");
      return zeros.first(size);
    };
    for (std::uint32_t tensor = 0; tensor < architecture->tensors().size(); ++tensor) {
      FRESHET_ASSIGN(const Bytes bytes, bytes_of(tensor));
      manifest.digests.push_back(digest_of(bytes));
    }
    FRESHET_TRY(repository.put(manifest, bytes_of, {.quality = quality}));
    return {};
  }

  /// The newest candidate finds itself or one that is equal.
  Status open_and_ask(const std::string& store) const {
    FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = store, .create = false}));
    FRESHET_ASSIGN(const auto repository, Repository::open(std::move(backend), {}));
    MatchQuery query;
    query.graph = MatchGraph::of(*last_);
    FRESHET_ASSIGN(const MatchAnswer answer, repository->match(query));
    if (answer.top.empty() || answer.top[0].lcp.layers != expected_layers(*query.graph)) {
      return fail(Code::corrupt, "a stored candidate does not find itself");
    }
    return {};
  }

  static std::uint64_t expected_layers(const MatchGraph& graph) {
    std::uint64_t layers = 0;
    for (std::size_t i = 0; i < graph.size(); ++i) layers += graph[i].is_input ? 0 : 1;
    return layers;
  }

  static Status read_records(const std::string& store) {
    FRESHET_ASSIGN(const auto backend, open_rocks_backend({.folder = store, .create = false}));
    std::uint64_t bytes = 0;
    FRESHET_TRY(backend->scan("", [&](std::string_view key, std::string_view value) {
      bytes += key.size() + value.size();
      return true;
    }));
    return bytes != 0 ? Status() : fail(Code::corrupt, "the folder holds no records");
  }

  Status parse_graphs(const std::string& graphs) const {
    std::ifstream lines(graphs);
    std::vector<nlohmann::json> parsed;
    for (std::string line; std::getline(lines, line);) {
      parsed.push_back(nlohmann::json::parse(line, nullptr, false));
      if (parsed.back().is_discarded()) return fail(Code::corrupt, "a graph file does not parse");
    }
    return parsed.size() == models_ ? Status() : fail(Code::corrupt, "graph files are missing");
  }

  const Options options_;
  Report& report_;
  const std::uint64_t models_;
  std::shared_ptr<const Architecture> last_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(count, words,
                       {.name = "repo_open",
                        .about = "Opening a folder of many models, each of another architecture",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--models", options.models, "how many (default 60000)");
                              app.add_option("--layers", options.layers, "of the models that commands meet");
                              app.add_option("--folder", options.folder, "where to store them meanwhile");
                              app.add_option("--store", options.store, "a folder of deep models to keep and use again");
                              app.add_option("--only", options.only, "one case: open, commands or bytes");
                            }},
                       [&](Report& report) { return Benchmark(options, report).run(); });
}
