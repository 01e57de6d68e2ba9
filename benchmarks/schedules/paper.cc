// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/paper.h"

#include <cmath>
#include <random>

#include "benchmarks/schedules/contenders.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

/// What the paper says of a setting, and the step and request times that its figures let one read only roughly.
struct Setting {
  const char* model;
  std::int64_t epoch_rows;
  std::int64_t epochs;  ///< Publishes of the epoch schedule (Table 1): as many follow the warm-up.
  std::int64_t requests;
  double stall_least_ms;  ///< Table 1's overhead by its publishes: the smallest of the three schedules',
  double stall_most_ms;   ///< and the largest, which is the epoch schedule's.
  double delivery_ms;
  double step_ms;
  PaperGain reported;
};

/// NT3 has 1120 samples, in batches of 20 (CANDLE's default); TC1's 216 rows are printed (section 5.3); PtychoNN has
/// 16100, in batches of 64. Step times are assumed, requests spread evenly over the training. Deliveries are GPU to
/// GPU (Figure 8: 0.9 s for TC1, 0.55 s for PtychoNN; 1.7 GB of NT3.B by size).
const Setting kSettings[] = {
    {"NT3.B",
     56,
     7,
     25'000,
     7.6,
     15.3,
     330,
     60,
     {.fixed = 1 - 3.6 / 3.8, .greedy = 1 - 3.0 / 3.8, .publishes_fixed = 49, .publishes_greedy = 40}},
    {"TC1",
     216,
     16,
     50'000,
     26.9,
     80.6,
     900,
     60,
     {.fixed = 1 - 30.6 / 32.8, .greedy = 1 - 30.4 / 32.8, .publishes_fixed = 128, .publishes_greedy = 63}},
    {"PtychoNN",
     252,
     13,
     40'000,
     30,
     30,
     550,
     60,
     {.fixed = 1 - 52.9 / 66.2, .greedy = 1 - 45.1 / 66.2, .publishes_fixed = 16, .publishes_greedy = 6}},
};

/// c + (1 - c) exp(-(row - warm-up) / tau), tau in epochs: Exp3, which the paper chose for TC1. Its height cancels out.
struct Shape {
  double tau_epochs;
  double floor;  ///< As a share of the loss at the warm-up's end.
  double noise;  ///< Of a batch, as a share of its loss. Keras reports the epoch's mean so far, which is smooth.
};
constexpr Shape kShapes[] = {{1, 0.1, 0}, {2, 0.1, 0}, {2, 0.5, 0}, {8, 0.1, 0}, {2, 0.1, 0.1}};
constexpr std::int64_t kWarmupEpochs = 3;  // "A few initial epochs" (section 3).
constexpr std::uint64_t kSeed = 5;

std::int64_t nanoseconds(double ms) { return std::llround(ms * 1e6); }

Result<Case> case_of(const Setting& setting, const Shape& shape, double stall_ms) {
  const std::int64_t warmup = kWarmupEpochs * setting.epoch_rows;
  const std::int64_t rows = warmup + setting.epochs * setting.epoch_rows;
  const double span_ms = static_cast<double>(rows - warmup) * setting.step_ms +
                         static_cast<double>(setting.epochs) * stall_ms + setting.delivery_ms;
  FRESHET_ASSIGN(const ReplayClock clock,
                 ReplayClock::make({.step_ns = nanoseconds(setting.step_ms),
                                    .stall_ns = nanoseconds(stall_ms),
                                    .delivery_ns = nanoseconds(setting.delivery_ms),
                                    .infer_ns = nanoseconds(span_ms / static_cast<double>(setting.requests))},
                                   {.warmup = warmup, .rows = rows, .requests = setting.requests}));
  Case made{.name = setting.model, .clock = clock, .epoch_rows = setting.epoch_rows};
  std::mt19937_64 random(kSeed);
  for (std::int64_t row = 1; row <= rows; ++row) {
    const double epochs = static_cast<double>(row - warmup) / static_cast<double>(setting.epoch_rows);
    made.trend.push_back(shape.floor + (1 - shape.floor) * std::exp(-epochs / shape.tau_epochs));
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;  // Of deviation 1 / sqrt(12).
    made.loss.push_back(made.trend.back() * (1 + shape.noise * std::sqrt(12.0) * (uniform - 0.5)));
  }
  return made;
}

Result<PaperGain> gain_of(const Setting& setting, const Shape& shape, double stall_ms) {
  FRESHET_ASSIGN(const Case played, case_of(setting, shape, stall_ms));
  FRESHET_ASSIGN(const auto outcomes, play(played));
  const double epoch = outcomes.at(kEpoch).loss;
  const auto gain = [&](const char* contender) { return 1 - outcomes.at(contender).loss / epoch; };
  return PaperGain{.model = setting.model,
                   .assumed = format("time constant {:g} epochs, floor {:g}, noise {:g}, stall {:g} ms",
                                     shape.tau_epochs, shape.floor, shape.noise, stall_ms),
                   .fixed = gain(kFixed),
                   .greedy = gain(kGreedy),
                   .optimal = gain(kOptimal),
                   .online = gain(kOnline),
                   .oracle = gain(kOracle),
                   .publishes_fixed = outcomes.at(kFixed).rows.size(),
                   .publishes_greedy = outcomes.at(kGreedy).rows.size(),
                   .publishes_online = outcomes.at(kOnline).rows.size()};
}

std::string percent(double share) { return std::isfinite(share) ? format("{:.1f} %", 100 * share) : "–"; }

}  // namespace

Result<std::vector<PaperGain>> paper_gains() {
  std::vector<PaperGain> gains;
  for (const Setting& setting : kSettings) {
    PaperGain reported = setting.reported;
    reported.model = setting.model;
    reported.assumed = "as the paper reports";
    reported.optimal = reported.online = reported.oracle = std::nan("");
    gains.push_back(std::move(reported));
    for (const Shape& shape : kShapes) {
      FRESHET_ASSIGN(PaperGain gain, gain_of(setting, shape, setting.stall_least_ms));
      gains.push_back(std::move(gain));
    }
    if (setting.stall_most_ms > setting.stall_least_ms) {
      FRESHET_ASSIGN(PaperGain gain, gain_of(setting, kShapes[1], setting.stall_most_ms));
      gains.push_back(std::move(gain));
    }
  }
  return gains;
}

std::string paper_table(const std::vector<PaperGain>& gains) {
  std::string text =
      "| model | assumed | fixed | greedy | optimal | online | oracle | publishes: fixed, greedy, online |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const PaperGain& gain : gains) {
    text += format("| {} | {} | {} | {} | {} | {} | {} | {}, {}, {} |\n", gain.model, gain.assumed, percent(gain.fixed),
                   percent(gain.greedy), percent(gain.optimal), percent(gain.online), percent(gain.oracle),
                   gain.publishes_fixed, gain.publishes_greedy,
                   std::isfinite(gain.online) ? format("{}", gain.publishes_online) : "–");
  }
  return text;
}

}  // namespace freshet::benchmarks
