/// nas_evolution: an architecture search whose candidates learn from each other through a repository. Aging evolution
/// over a space of dense layers with skip connections; training is simulated, all else is what a search would do.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bindings/runtime/repository_folder.h"
#include "core/format.h"
#include "examples/nas_evolution/search.h"
#include "repo/lineage_drawing.h"

namespace freshet::nas {
namespace {

struct Options {
  SearchOptions search{.trainer = {.epoch = std::chrono::milliseconds(20)}};
  std::string repository;
  std::string report = "nas_evolution_report";
  double epoch_ms = 20;
  bool keep = false;
  bool json = false;
};

double milliseconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e6; }

nlohmann::json to_json(const SearchSummary& summary, const RepositoryStat& stat, std::uint64_t freed_bytes,
                       const Options& options) {
  return {{"candidates", summary.candidates},
          {"transferred", summary.transferred},
          {"retired", summary.retired},
          {"best", to_string(summary.best)},
          {"best_quality", summary.best_quality},
          {"model_bytes", summary.model_bytes},
          {"read_bytes", summary.read_bytes},
          {"own_bytes", summary.own_bytes},
          {"live_bytes", stat.live_bytes},
          {"disk_bytes", stat.disk_bytes},
          {"freed_bytes", freed_bytes},
          {"training_ms", milliseconds(summary.training)},
          {"match_ms", milliseconds(summary.matching)},
          {"read_ms", milliseconds(summary.reading)},
          {"put_ms", milliseconds(summary.putting)},
          {"repository", options.repository},
          {"lineage_svg", options.report + "/lineage.svg"},
          {"lineage_dot", options.report + "/lineage.dot"}};
}

void print(const nlohmann::json& summary) {
  const auto megabytes = [&summary](const char* key) { return summary[key].get<double>() / 1e6; };
  std::cout << format("{} candidates, {} of them began with an ancestor's layers; the best is {} with {:.3f}\n",
                      summary["candidates"].get<std::uint64_t>(), summary["transferred"].get<std::uint64_t>(),
                      summary["best"].get<std::string>(), summary["best_quality"].get<double>())
            << format("{:.1f} MB of models, of which {:.1f} MB had to be stored; {} retired, {:.1f} MB live\n",
                      megabytes("model_bytes"), megabytes("own_bytes"), summary["retired"].get<std::uint64_t>(),
                      megabytes("live_bytes"))
            << format("{:.0f} ms of training, {:.1f} ms in match, {:.1f} ms in read, {:.1f} ms in put\n",
                      summary["training_ms"].get<double>(), summary["match_ms"].get<double>(),
                      summary["read_ms"].get<double>(), summary["put_ms"].get<double>())
            << format("lineage: {} and {}\n", summary["lineage_svg"].get<std::string>(),
                      summary["lineage_dot"].get<std::string>());
}

Status write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status() : fail(Code::io_error, format("{} cannot be written", path));
}

Status run(const Options& options) {
  std::error_code error;
  std::filesystem::create_directories(options.report, error);
  if (error) return fail(Code::io_error, format("{}: {}", options.report, error.message()));
  FRESHET_ASSIGN(const auto repository, open_repository(options.repository, RepositoryAccess::create));
  const auto space = make_dense_skip_space();
  Search search(*repository, *space, options.search);
  const bool progress = !options.json;
  FRESHET_ASSIGN(const SearchSummary summary, search.run([&](const SearchSummary& so_far, const Evaluation& last) {
    if (!progress || so_far.candidates % 20 != 0) return;
    std::cerr << format("{:5} candidates, best {:.3f}, last {:.3f} from {}\n", so_far.candidates, so_far.best_quality,
                        last.outcome.quality,
                        last.begun.ancestor.model.empty() ? "scratch" : to_string(last.begun.ancestor));
  }));
  std::uint64_t freed_bytes = 0;
  if (!options.keep) {
    FRESHET_ASSIGN(const GcReport garbage, repository->gc({}, {}));
    freed_bytes = garbage.freed_bytes;
  }
  FRESHET_ASSIGN(const std::vector<LineageRow> rows, all_versions(*repository));
  const LineageDrawing drawing{.title = format("{} candidates", summary.candidates)};
  FRESHET_TRY(write(options.report + "/lineage.svg", lineage_svg(rows, drawing)));
  FRESHET_TRY(write(options.report + "/lineage.dot", lineage_dot(rows, drawing)));
  FRESHET_ASSIGN(const RepositoryStat stat, repository->stat());
  const nlohmann::json json = to_json(summary, stat, freed_bytes, options);
  FRESHET_TRY(write(options.report + "/summary.json", json.dump() + "\n"));
  if (options.json) {
    std::cout << json.dump() << std::endl;
  } else {
    print(json);
  }
  return {};
}

}  // namespace
}  // namespace freshet::nas

int main(int count, char** words) {
  using namespace freshet::nas;
  Options options;
  CLI::App app(
      "Searches a space of dense networks by aging evolution. Each candidate begins with the layers that it shares "
      "with\n"
      "the best ancestor in the repository, trains the rest (simulated), and is stored; who drops out is retired.");
  app.add_option("--repo", options.repository, "folder or address (default: a folder in the report's)");
  app.add_option("--report", options.report, "folder for the summary and the drawn lineage")->capture_default_str();
  app.add_option("--candidates", options.search.candidates)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--workers", options.search.workers)->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--population", options.search.evolution.population)->check(CLI::Range(2, 100'000))->default_val(25);
  app.add_option("--sample", options.search.evolution.sample, "candidates, of which the best one is mutated")
      ->check(CLI::Range(1, 100'000))
      ->default_val(5);
  app.add_option("--seed", options.search.evolution.seed)->capture_default_str();
  app.add_option("--epoch-ms", options.epoch_ms, "what training takes when nothing is frozen")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_flag("--keep", options.keep, "retire nobody, collect nothing");
  app.add_flag("--json", options.json, "print the summary as one line of JSON, and nothing else on stdout");
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  if (options.repository.empty()) options.repository = options.report + "/repository";
  options.search.retire = !options.keep;
  options.search.trainer.seed = options.search.evolution.seed;
  options.search.trainer.epoch = std::chrono::nanoseconds(static_cast<std::int64_t>(options.epoch_ms * 1e6));
  const freshet::Status status = run(options);
  if (!status) std::cerr << "nas_evolution: " << status.error().message() << "\n";
  return status ? 0 : 1;
}
