// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/repo_open/command_case.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "benchmarks/common/command_cost.h"
#include "benchmarks/repo_open/deep_graphs.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

namespace fs = std::filesystem;

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status() : fail_errno(errno, "write " + path);
}

Status fill_store(const std::string& store, const std::vector<DeepModel>& models, bool with_weights) {
  std::error_code error;
  if (fs::exists(fs::path(store) / "CURRENT", error)) return {};
  FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = store}));
  FRESHET_ASSIGN(const auto repository, Repository::open(std::move(backend), {}));
  const auto start = std::chrono::steady_clock::now();
  FRESHET_TRY(put_deep_models(*repository, models, with_weights));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cerr << format("repo_open: {} models of {} layers stored in {:.0f} s", models.size() - 1, models[1].units.size(),
                      seconds)
            << std::endl;
  return {};
}

}  // namespace

Status measure_commands(const CommandCase& options, Report& report) {
  const std::string name = format("{}_models_of_{}_layers", options.models, options.layers);
  const std::string store = options.store.empty() ? options.folder + "/deep" : options.store;
  const std::vector<DeepModel> models = deep_models(options.models, options.layers);
  FRESHET_TRY(fill_store(store, models, true));
  const std::string newest = deep_name(options.models);
  const std::string graph = options.folder + "/query.json";
  FRESHET_ASSIGN(const auto architecture, deep_architecture(models.back()));
  FRESHET_TRY(write_text(graph, to_graph_json(*architecture)));
  const std::string files = options.folder + "/files";
  fs::create_directory(files);
  for (std::uint64_t number = 1; number <= options.models; ++number) {
    FRESHET_TRY(write_text(files + "/" + deep_name(number), "x"));
  }
  const auto repo = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {options.program, "repo"});
    words.insert(words.end(), {"--repo", store});
    return words;
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"ls", repo({"ls"})},
      {"show", repo({"show", newest})},
      {"get", repo({"get", newest, "--output", options.folder + "/out.safetensors"})},
      {"stat", repo({"stat"})},
      {"match", repo({"match", "--graph", graph})},
      {"no_repository", {options.program, "--version"}},
      {"ls_of_files", {"ls", "-l", files}},
  };
  for (const auto& [subject, words] : commands) {
    Samples samples;
    for (int i = 0; i < options.tries; ++i) {
      FRESHET_ASSIGN(const CommandCost cost, cost_of(words));
      samples.add(cost.processor_ms);
    }
    report.add_row(name, subject, "ms of processor", samples);
  }
  for (const char* subject : {"ls", "show", "get", "stat", "match"}) {
    report.set_ratio(format("{}_vs_ls_of_files", subject),
                     report.median(name, "ls_of_files") / report.median(name, subject));
  }
  return {};
}

Status measure_graph_bytes(std::uint64_t models, std::uint32_t layers, const std::string& folder, Report& report) {
  const std::string store = folder + "/graphs";
  FRESHET_TRY(fill_store(store, deep_models(models, layers), false));
  FRESHET_ASSIGN(auto backend, open_rocks_backend({.folder = store, .create = false}));
  FRESHET_ASSIGN(const auto repository, Repository::open(std::move(backend), {}));
  FRESHET_TRY(repository->gc({}, {}));
  FRESHET_ASSIGN(const RepositoryStat stat, repository->stat());
  FRESHET_ASSIGN(const auto architecture, deep_architecture(deep_models(1, layers).back()));
  const std::string name = format("graphs_of_{}_layers", layers);
  const auto kib = [](double bytes) { return bytes / 1024; };
  report.add_row(name, "on_the_disk", "KiB a graph",
                 kib(static_cast<double>(stat.disk_bytes) / static_cast<double>(models)));
  report.add_row(name, "encoded", "KiB a graph", kib(static_cast<double>(architecture->encoded().size())));
  report.add_row(name, "graph_file", "KiB a graph", kib(static_cast<double>(to_graph_json(*architecture).size())));
  return {};
}

}  // namespace freshet::benchmarks
