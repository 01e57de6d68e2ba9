// SPDX-License-Identifier: Apache-2.0
/// nas: an architecture search by aging evolution with a simulated trainer, three ways, as in the EvoStore paper
/// (sections 5.6 and 5.7): every candidate from scratch; layers transferred through HDF5 files and Redis; through
/// Freshet. The last two with candidates retired when they drop out of the population, and without.
///
/// usage: nas [--quick] [--json] [--folder DIR] [--timeline FILE.csv] [--seed N]

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "benchmarks/nas/arms.h"
#include "benchmarks/nas/simulation.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  std::string folder = std::filesystem::temp_directory_path();
  std::string timeline;
  std::uint64_t seed = 1;
};

class Benchmark {
 public:
  Benchmark(Options options, Report& report) : options_(std::move(options)), report_(report) {
    if (!options_.timeline.empty()) {
      timeline_.open(options_.timeline);
      timeline_ << "arm,candidate,worker,start_s,finish_s,quality\n";
    }
  }

  Status run() {
    FRESHET_TRY(in_new_folder(options_.folder, [this](const std::string& folder) { return run_arms(folder); }));
    set_ratios();
    return {};
  }

 private:
  static constexpr double kQualities[] = {0.3, 0.4, 0.5, 0.6, 0.7};

  Status run_arms(const std::string& folder) {
    FRESHET_TRY(run_arm(
        "no_transfer", [](const std::string&) -> Result<std::unique_ptr<Arm>> { return make_no_transfer(); }, folder));
    for (const bool retire : {false, true}) {
      const std::string suffix = retire ? "_retired" : "";
      FRESHET_TRY(run_arm(
          "files" + suffix, [retire](const auto& place) { return make_files(place, retire); }, folder));
      FRESHET_TRY(run_arm(
          "freshet" + suffix, [retire](const auto& place) { return make_freshet(place, retire); }, folder));
    }
    return {};
  }

  Status run_arm(const std::string& name, const std::function<Result<std::unique_ptr<Arm>>(const std::string&)>& make,
                 const std::string& folder) {
    std::cerr << "nas: " << name << std::endl;
    const std::string place = folder + "/" + name;
    auto arm = make(place);
    if (!arm && (arm.error().code() == Code::unsupported || arm.error().code() == Code::unavailable)) {
      report_.skip(name, arm.error().message());
      return {};
    }
    if (!arm) return fail(std::move(arm).error());
    // Models of about a megabyte: widths of 32 to 192.
    const auto space = nas::make_dense_skip_space({.inputs = 256, .outputs = 2, .width_step = 32});
    SimulationOptions simulation{.candidates = options_.quick ? 300u : 1000u, .workers = 16};
    simulation.evolution = {.population = options_.quick ? 30u : 100u, .sample = 10, .seed = options_.seed};
    simulation.trainer.seed = options_.seed;
    auto result = simulate(**arm, *space, simulation);
    if (!result) return fail(std::move(result).error().with_context(name));
    add_rows(name, *result);
    FRESHET_ASSIGN(const std::uint64_t bytes, (*arm)->bytes());
    report_.add_row(name, "kept", "MB", static_cast<double>(bytes) / 1e6);
    arm->reset();
    std::error_code ignored;
    std::filesystem::remove_all(place, ignored);
    return {};
  }

  void add_rows(const std::string& name, const SimulationResult& result) {
    report_.add_row(name, "search", "s", result.end_s());
    for (const double quality : kQualities) {
      const double time = result.time_to(quality);
      if (std::isfinite(time)) report_.add_row(name, format("until_quality_{}", quality), "s", time);
    }
    report_.add_row(name, "quality_of_last_100", "", result.mean_quality(100));
    report_.add_row(name, "repository_share", "%", 100 * result.repository_s / result.evaluation_s);
    const double per_candidate_s = result.repository_s / static_cast<double>(result.tasks.size());
    report_.add_row(name, "repository_share_of_1s_evaluation", "%", 100 * per_candidate_s);
    report_.add_row(name, "models", "MB", static_cast<double>(result.model_bytes) / 1e6);
    report_.add_row(name, "transfer", "ms", result.transfer_ms);
    report_.add_row(name, "keep", "ms", result.keep_ms);
    for (const SimulatedTask& task : result.tasks) {
      if (timeline_.is_open()) {
        timeline_ << format("{},{},{},{:.6f},{:.6f},{:.6f}\n", name, task.id, task.worker, task.start_s, task.finish_s,
                            task.quality);
      }
    }
  }

  void set_ratios() {
    const auto value = [this](const char* arm, const std::string& subject) { return report_.median(arm, subject); };
    report_.set_ratio("files_bytes_vs_freshet", value("files", "kept") / value("freshet", "kept"));
    report_.set_ratio("kept_bytes_vs_retired", value("freshet", "kept") / value("freshet_retired", "kept"));
    report_.set_ratio("files_retired_bytes_vs_freshet_retired",
                      value("files_retired", "kept") / value("freshet_retired", "kept"));
    report_.set_ratio("search_time_vs_no_transfer", value("no_transfer", "search") / value("freshet", "search"));
    report_.set_ratio("search_time_vs_files", value("files", "search") / value("freshet", "search"));
    report_.set_ratio("transfer_time_vs_files", value("files", "transfer") / value("freshet", "transfer"));
    for (const double quality : kQualities) {
      const std::string subject = format("until_quality_{}", quality);
      report_.set_ratio(subject + "_vs_no_transfer", value("no_transfer", subject) / value("freshet", subject));
    }
  }

  const Options options_;
  std::ofstream timeline_;
  Report& report_;
};

}  // namespace
}  // namespace freshet::benchmarks

int main(int count, char** words) {
  using namespace freshet::benchmarks;
  Options options;
  return run_benchmark(count, words,
                       {.name = "nas",
                        .about = "An architecture search without transfer, with files, and with a repository",
                        .options = options,
                        .add_options =
                            [&](CLI::App& app) {
                              app.add_option("--folder", options.folder, "Where models are kept");
                              app.add_option("--timeline", options.timeline, "A CSV of every candidate");
                              app.add_option("--seed", options.seed, "Of the search");
                            }},
                       [&](Report& report) { return Benchmark(options, report).run(); });
}
