// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/curve_fit/choice.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/base/format.h"
#include "predictor/cumulative_loss.h"
#include "predictor/fit.h"
#include "predictor/optimal.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kReach = 25;
constexpr std::size_t kLooks = 200;  // Iterations at which a prediction is compared.

struct Way {
  std::string name;
  FitOptions options;
};

std::vector<Way> ways() {
  const auto way = [](CurveFamilies families, Criterion criterion, Combine combine) {
    FitOptions options;
    options.families = std::move(families);
    options.criterion = criterion;
    options.combine = combine;
    return options;
  };
  FitOptions paper = way(CurveFamilies::viper(), Criterion::mse, Combine::best);
  paper.recency = 0;
  paper.robust = RobustLoss::none;
  FitOptions even = way(CurveFamilies::distinct(), Criterion::holdout, Combine::best);
  even.recency = 0;
  return {{"as in the paper", paper},
          {"viper's four, mse", way(CurveFamilies::viper(), Criterion::mse, Combine::best)},
          {"mse", way(CurveFamilies::distinct(), Criterion::mse, Combine::best)},
          {"aicc", way(CurveFamilies::distinct(), Criterion::aicc, Combine::best)},
          {"holdout", way(CurveFamilies::distinct(), Criterion::holdout, Combine::best)},
          {"holdout, no recency", even},
          {"aicc ensemble", way(CurveFamilies::distinct(), Criterion::aicc, Combine::ensemble)},
          {"holdout ensemble", way(CurveFamilies::distinct(), Criterion::holdout, Combine::ensemble)}};
}

std::vector<double> trend_of(const std::vector<double>& losses) {
  std::vector<double> trend;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::size_t first = i > kReach ? i - kReach : 0, end = std::min(losses.size(), i + kReach + 1);
    double sum = 0;
    for (std::size_t k = first; k < end; ++k) sum += losses[k];
    trend.push_back(sum / static_cast<double>(end - first));
  }
  return trend;
}

struct Outcome {
  double error = 0;  ///< In units of the error of "it stays as it is".
  double inside = 0;
  double width = 0;  ///< Of the band, in the same units.
};

constexpr std::int64_t kStep = 10'000'000;  // Nanoseconds; a request comes per step.

// By how many percent the schedule that is best for the forecast costs more than the best one.
Result<double> excess(const Forecast& forecast, const std::vector<double>& trend, std::size_t cut, std::int64_t stall) {
  const Horizon horizon{.warmup = static_cast<std::int64_t>(cut),
                        .rows = static_cast<std::int64_t>(trend.size()),
                        .requests = static_cast<std::int64_t>(trend.size() - cut)};
  const Timing timing{.step_ns = kStep, .stall_ns = stall, .delivery_ns = stall, .infer_ns = kStep};
  FRESHET_ASSIGN(const ReplayClock clock, ReplayClock::make(timing, horizon));
  std::vector<double> predicted;
  for (std::size_t row = cut; row <= trend.size(); ++row) predicted.push_back(forecast(static_cast<double>(row)));
  const std::span<const double> costs = std::span(trend).subspan(cut - 1);
  FRESHET_ASSIGN(const PublishRows ours, quick_schedule(clock, predicted));
  FRESHET_ASSIGN(const PublishRows best, quick_schedule(clock, costs));
  FRESHET_ASSIGN(const double our_loss, cumulative_loss(clock, costs, ours));
  FRESHET_ASSIGN(const double best_loss, cumulative_loss(clock, costs, best));
  return 100 * (our_loss / best_loss - 1);
}

Outcome judge(const Forecast& forecast, const std::vector<double>& trend, std::size_t cut) {
  // What somebody without a curve would say: the mean of the newest rows.
  const double stays = trend[cut - kReach - 1];
  const auto [least, most] = std::minmax_element(trend.begin(), trend.end());
  // What is finer than a thousandth of the whole range is of no use to anybody.
  double ours = 0, constant = kLooks * 1e-3 * (*most - *least), inside = 0, width = 0;
  for (std::size_t look = 1; look <= kLooks; ++look) {
    const std::size_t i = cut + (trend.size() - 1 - cut) * look / kLooks;
    const Band band = forecast.band(static_cast<double>(i + 1));
    ours += std::abs(band.middle - trend[i]);
    constant += std::abs(stays - trend[i]);
    width += band.upper - band.lower;
    inside += band.lower <= trend[i] && trend[i] <= band.upper ? 1 : 0;
  }
  return {.error = ours / constant, .inside = inside / kLooks, .width = width / constant};
}

}  // namespace

Status compare_choices(const std::string& title, const std::vector<Run>& runs, bool details, Report& report) {
  for (const Way& way : ways()) {
    Samples errors, inside, widths, cheap, dear;
    for (const Run& run : runs) {
      const std::vector<double> trend = trend_of(run.losses), served = trend_of(run.eval_losses);
      for (const double part : {0.1, 0.25, 0.5}) {
        const auto cut = static_cast<std::size_t>(part * static_cast<double>(run.losses.size()));
        LossHistory history;
        for (std::size_t i = 0; i < cut; ++i) FRESHET_TRY(history.add(static_cast<double>(i + 1), run.losses[i]));
        FRESHET_ASSIGN(const Forecast forecast, fit(history, way.options));
        const Outcome outcome = judge(forecast, trend, cut);
        errors.add(outcome.error);
        inside.add(100 * outcome.inside);
        widths.add(outcome.width);
        FRESHET_ASSIGN(const double with_cheap, excess(forecast, served, cut, kStep / 2));
        FRESHET_ASSIGN(const double with_dear, excess(forecast, served, cut, 50 * kStep));
        cheap.add(with_cheap);
        dear.add(with_dear);
        if (details) {
          std::cerr << format("{:28} {:4.2f} {:20} {:10} {:8.3f} {:5.0f} % {:7.4f} {:7.4f}\n", run.name, part, way.name,
                              forecast.chosen().name(), outcome.error, 100 * outcome.inside, with_cheap, with_dear);
        }
      }
    }
    report.add_row(title, way.name, "error / that of no change", errors);
    report.add_row(title + ", band", way.name, "% of the trend within", inside);
    report.add_row(title + ", band's width", way.name, "width / error of no change", widths);
    report.add_row(title + ", cheap", way.name, "% above the best schedule", cheap);
    report.add_row(title + ", dear", way.name, "% above the best schedule", dear);
  }
  return {};
}

}  // namespace freshet::benchmarks
