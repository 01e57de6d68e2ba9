// SPDX-License-Identifier: Apache-2.0
/// How long fit() takes on runs of 10^3 to 10^5 rows, beside Eigen's Levenberg-Marquardt on all rows, and which way of
/// choosing among families predicts best (choice.h), on made runs and on those of the files that are named.

#include <CLI/CLI.hpp>
#include <ctime>

#include "benchmarks/common/command_line.h"
#include "benchmarks/curve_fit/cases.h"
#include "benchmarks/curve_fit/choice.h"
#include "benchmarks/curve_fit/plain_solver.h"
#include "core/base/format.h"
#include "predictor/fit.h"

namespace freshet::benchmarks {
namespace {

struct Options : CommonOptions {
  bool details = false;
  std::vector<std::string> files;
};

double thread_milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

/// The thread's own time, since all of the work is done by one: what else the machine does is no part of it.
template <typename F>
double milliseconds(F&& work) {
  const double before = thread_milliseconds();
  work();
  return thread_milliseconds() - before;
}

Status measure_times(const Options& options, Report& report) {
  for (const std::size_t rows : {1'000U, 10'000U, 100'000U}) {
    const std::string size = format("{} rows", rows);
    Samples ours, again, plain;
    for (const Run& run : made_runs(rows, 1)) {
      std::vector<double> iterations;
      std::vector<CurvePoint> points;
      for (std::size_t i = 0; i < rows; ++i) {
        iterations.push_back(static_cast<double>(i + 1));
        points.push_back({.x = iterations.back(), .y = run.losses[i]});
      }
      for (int round = 0; round < (options.quick ? 1 : 5); ++round) {
        FitOptions all;
        ours.add(milliseconds([&] { (void)fit(iterations, run.losses, all); }));
        if (round == 0) plain.add(milliseconds([&] { (void)plain_fit(CurveFamilies::standard(), points); }));
      }
      LossHistory history;
      for (std::size_t i = 0; i < rows; ++i) FRESHET_TRY(history.add(iterations[i], run.losses[i]));
      FRESHET_ASSIGN(const Forecast first, fit(history));
      FitOptions warm;
      warm.families = CurveFamilies();
      FRESHET_TRY(warm.families.add(first.chosen().family));
      warm.warm_starts = {first.chosen()};
      warm.max_points = 64;
      for (int round = 0; round < 5; ++round) again.add(milliseconds([&] { (void)fit(history, warm); }));
    }
    report.add_row(size, "freshet", "ms", ours);
    report.add_row(size, "freshet, chosen family again", "ms", again);
    report.add_row(size, "eigen on all rows", "ms", plain);
    report.set_ratio(format("eigen_vs_freshet_{}", rows), plain.median() / ours.median());
  }
  return {};
}

Status measure(const Options& options, Report& report) {
  FRESHET_TRY(measure_times(options, report));
  std::vector<Run> made;
  for (unsigned seed = 1; seed <= (options.quick ? 2U : 8U); ++seed) {
    auto runs = made_runs(3000, seed);
    made.insert(made.end(), runs.begin(), runs.end());
  }
  FRESHET_TRY(compare_choices("made", made, options.details, report));
  std::vector<Run> recorded;
  for (const std::string& file : options.files) {
    FRESHET_ASSIGN(Run run, recorded_run(file));
    recorded.push_back(std::move(run));
  }
  if (recorded.empty()) {
    report.skip("recorded", "no files named");
    return {};
  }
  return compare_choices("recorded", recorded, options.details, report);
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  Options options;
  const CommandLine line{.name = "curve_fit",
                         .about = "Fitting learning curves: time, and which choice of family predicts best",
                         .options = options,
                         .add_options = [&options](CLI::App& app) {
                           app.add_flag("--details", options.details, "Print each run, cut and way to stderr");
                           app.add_option("files", options.files, "CSVs with a column loss, a row per step");
                         }};
  return run_benchmark(argc, argv, line, [&options](Report& report) { return measure(options, report); });
}
