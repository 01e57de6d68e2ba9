// SPDX-License-Identifier: Apache-2.0
/// nas_evolution: an architecture search whose candidates learn from each other through a repository. Aging evolution
/// over a space of dense layers with skip connections; training is simulated, all else is what a search would do.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "bindings/runtime/repository_folder.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "examples/nas_evolution/search.h"
#include "repo/lineage/lineage_drawing.h"

namespace freshet::nas {
namespace {

struct Options {
  SearchOptions search{.trainer = {.epoch = std::chrono::milliseconds(20)}};
  std::string repository;
  SecurityOptions security;
  std::string ledger;
  std::string report = "nas_evolution_report";
  double epoch_ms = 20;
  double patience_s = 30;
  bool keep = false;
  bool json = false;
};

double milliseconds(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e6; }

/// What is told of the repository in the end; nothing of what a provider that is away keeps from being told.
struct Rest {
  std::optional<RepositoryStat> stat;
  std::uint64_t freed_bytes = 0;
  bool is_drawn = false;
};

/// A word for a shell.
std::string quoted(const std::string& word) {
  const bool is_plain = !word.empty() && word.find_first_not_of(
                                             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                             "0123456789_-./:,@+=") == std::string::npos;
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// The best candidate as commands take it.
std::string reference_of(const SearchSummary& summary) {
  return summary.best_is_named ? format("{}@{}", summary.best.model, kBestAlias) : to_string(summary.best);
}

std::string get_line(const SearchSummary& summary, const Options& options) {
  return format("freshet repo get {} --repo {} -o best.safetensors", reference_of(summary), quoted(options.repository));
}

nlohmann::json to_json(const SearchSummary& summary, const Rest& rest, const Options& options) {
  const auto drawn = [&](const char* file) -> nlohmann::json {
    return rest.is_drawn ? nlohmann::json(options.report + file) : nlohmann::json();
  };
  return {{"candidates", summary.candidates},
          {"transferred", summary.transferred},
          {"retired", summary.retired},
          {"best", to_string(summary.best)},
          {"best_alias", summary.best_is_named ? nlohmann::json(reference_of(summary)) : nlohmann::json()},
          {"best_quality", summary.best_quality},
          {"get", get_line(summary, options)},
          {"model_bytes", summary.model_bytes},
          {"read_bytes", summary.read_bytes},
          {"own_bytes", summary.own_bytes},
          {"live_bytes", rest.stat ? nlohmann::json(rest.stat->live_bytes) : nlohmann::json()},
          {"disk_bytes", rest.stat ? nlohmann::json(rest.stat->disk_bytes) : nlohmann::json()},
          {"freed_bytes", rest.freed_bytes},
          {"training_ms", milliseconds(summary.training)},
          {"match_ms", milliseconds(summary.matching)},
          {"read_ms", milliseconds(summary.reading)},
          {"put_ms", milliseconds(summary.putting)},
          {"without_transfer", summary.without_transfer},
          {"puts_again", summary.puts_again},
          {"unstored", summary.unstored},
          {"unretired", summary.unretired},
          {"repository", options.repository},
          {"lineage_svg", drawn("/lineage.svg")},
          {"lineage_dot", drawn("/lineage.dot")}};
}

/// Nothing while all providers answer.
std::string absences(const nlohmann::json& summary) {
  const auto count = [&summary](const char* key) { return summary[key].get<std::uint64_t>(); };
  if (count("without_transfer") + count("puts_again") + count("unstored") + count("unretired") == 0) return {};
  return format(
      "providers were away: {} candidates began without their ancestor, {} puts were tried again, {} candidates could "
      "not be stored, {} are left to be retired\n",
      count("without_transfer"), count("puts_again"), count("unstored"), count("unretired"));
}

void print(const nlohmann::json& summary) {
  const auto megabytes = [&summary](const char* key) {
    return summary[key].is_null() ? std::string("unknown") : format("{:.1f}", summary[key].get<double>() / 1e6);
  };
  std::cout << format("{} candidates, {} of them began with an ancestor's layers; the best is {} with {:.3f}\n",
                      summary["candidates"].get<std::uint64_t>(), summary["transferred"].get<std::uint64_t>(),
                      summary["best"].get<std::string>(), summary["best_quality"].get<double>())
            << format("{} MB of models, of which {} MB had to be stored; {} retired, {} MB live\n",
                      megabytes("model_bytes"), megabytes("own_bytes"), summary["retired"].get<std::uint64_t>(),
                      megabytes("live_bytes"))
            << format("{:.0f} ms of training, {:.1f} ms in match, {:.1f} ms in read, {:.1f} ms in put\n",
                      summary["training_ms"].get<double>(), summary["match_ms"].get<double>(),
                      summary["read_ms"].get<double>(), summary["put_ms"].get<double>())
            << absences(summary);
  std::cout << format("the best one as a file: {}\n", summary["get"].get<std::string>());
  if (summary["lineage_svg"].is_null()) {
    std::cout << "the lineage is not drawn, since a part of it is with a provider that is away\n";
  } else {
    std::cout << format("lineage: {} and {}\n", summary["lineage_svg"].get<std::string>(),
                        summary["lineage_dot"].get<std::string>());
  }
}

Status write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status() : fail(Code::io_error, format("{} cannot be written", path));
}

/// Collects the garbage and draws the lineage, as far as the providers answer.
Result<Rest> tidy_up(Repository& repository, const SearchSummary& summary, const Options& options) {
  Rest rest;
  if (!options.keep) {
    const auto garbage = repository.gc({}, {});
    if (!garbage && !is_away(garbage.error())) return fail(garbage.error());
    if (garbage) rest.freed_bytes = garbage->freed_bytes;
  }
  auto rows = all_versions(repository);
  if (!rows && !is_away(rows.error())) return fail(rows.error());
  if (rows) {
    // Somebody else's versions are no candidates.
    std::erase_if(*rows,
                  [&](const LineageRow& row) { return !row.version.model.starts_with(options.search.prefix + "-"); });
    const LineageDrawing drawing{.title = format("{} candidates", summary.candidates), .best = summary.best};
    FRESHET_TRY(write(options.report + "/lineage.svg", lineage_svg(*rows, drawing)));
    FRESHET_TRY(write(options.report + "/lineage.dot", lineage_dot(*rows, drawing)));
    rest.is_drawn = true;
  }
  const auto stat = repository.stat();
  if (!stat && !is_away(stat.error())) return fail(stat.error());
  if (stat) rest.stat = *stat;
  return rest;
}

/// Empty when candidates can be named so.
std::string prefix_problem(const std::string& prefix) {
  const Status checked = check_model_name(prefix + "-1000000-1000");
  return checked ? std::string() : checked.error().message();
}

Status run(const Options& options) {
  std::error_code error;
  std::filesystem::create_directories(options.report, error);
  if (error) return fail(Code::io_error, format("{}: {}", options.report, error.message()));
  FRESHET_ASSIGN(const auto repository, open_repository(options.repository, {.access = RepositoryAccess::create,
                                                                             .security = options.security}));
  const auto before = candidates_in(*repository, options.search.prefix);
  if (!before) return fail(Error(before.error()).with_context("look for candidates of an earlier run"));
  if (*before != 0) {
    return fail(
        Code::already_exists,
        format("{} holds {} candidates of an earlier run, {}-…: two runs would be mixed; give another --report or "
               "--repo, or another --prefix to let this one learn from those",
               options.repository, *before, options.search.prefix));
  }
  const auto space = make_dense_skip_space();
  std::optional<Ledger> ledger;
  if (!options.ledger.empty()) {
    FRESHET_ASSIGN(ledger, Ledger::open(options.ledger));
  }
  SearchOptions search_options = options.search;
  search_options.ledger = ledger ? &*ledger : nullptr;
  Search search(*repository, *space, search_options);
  const bool progress = !options.json;
  FRESHET_ASSIGN(const SearchSummary summary, search.run([&](const SearchSummary& so_far, const Evaluation& last) {
    if (!progress || so_far.candidates % 20 != 0) return;
    std::cerr << format("{:5} candidates, best {:.3f}, last {:.3f} from {}\n", so_far.candidates, so_far.best_quality,
                        last.outcome.quality,
                        last.begun.ancestor.model.empty() ? "scratch" : to_string(last.begun.ancestor));
  }));
  FRESHET_ASSIGN(const Rest rest, tidy_up(*repository, summary, options));
  const nlohmann::json json = to_json(summary, rest, options);
  // A path may be no UTF-8.
  const std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  FRESHET_TRY(write(options.report + "/summary.json", line + "\n"));
  if (options.json) {
    std::cout << line << std::endl;
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
      "the best ancestor in the repository, trains the rest (simulated), and is stored; who drops out is retired. "
      "While one "
      "of\n"
      "several providers is away, it goes on with the others.");
  app.add_option("--repo", options.repository, "folder or address (default: a folder in the report's)");
  CLI::Option* const keys = app.add_option("--keys", options.security.key_file, "this side's keys, for an address");
  app.add_option("--server-key", options.security.server_key, "the provider's public key, or its NAME.pub")
      ->needs(keys);
  app.add_option("--ledger", options.ledger, "a file for the name and the SHA-256 of each version that was stored");
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
  app.add_option("--patience", options.patience_s,
                 "seconds to wait while no provider answers, and to try to store one candidate")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app.add_option("--prefix", options.search.prefix, "candidate 7 is the model PREFIX-7")
      ->check(prefix_problem)
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
  options.search.patience.longest = std::chrono::nanoseconds(static_cast<std::int64_t>(options.patience_s * 1e9));
  const freshet::Status status = run(options);
  if (!status) std::cerr << "nas_evolution: " << freshet::printable(status.error().message()) << "\n";
  return status ? 0 : 1;
}
