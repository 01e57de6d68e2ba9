// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/synthetic.h"

#include <cmath>
#include <functional>
#include <random>

namespace freshet::benchmarks {
namespace {

constexpr int kRows = 4000;
constexpr std::uint64_t kSyntheticSeed = 20240812;

/// The standard library's distributions differ between implementations; this one does not.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : random_(seed) {}
  /// In (0, 1).
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform()); }

 private:
  std::mt19937_64 random_;
};

/// The row's trend, with noise of `batch` and `held_out` as shares of it.
LearningCurve around(const char* name, double batch, double held_out, const std::function<double(double)>& trend) {
  LearningCurve curve{.name = name};
  Noise noise(kSyntheticSeed);
  for (int row = 1; row <= kRows; ++row) {
    const double value = trend(row);
    curve.loss.push_back(value * (1 + batch * noise.normal()));
    curve.eval_loss.push_back(value * (1 + held_out * noise.normal()));
  }
  return curve;
}

LearningCurve spikes() {
  LearningCurve curve =
      around("synthetic_spikes", 0.03, 0.005, [](double row) { return 0.3 + 2 * std::exp(-row / 700); });
  Noise noise(kSyntheticSeed + 1);
  double hurt = 0;  // What is left of the last spike in the held-out loss.
  for (int row = 0; row < kRows; ++row) {
    const auto i = static_cast<std::size_t>(row);
    hurt *= 0.8;
    if (noise.uniform() < 0.01) {
      const double height = 2 + 6 * noise.uniform();
      curve.loss[i] *= 1 + height;
      hurt += 0.1 * height;
    }
    curve.eval_loss[i] *= 1 + hurt;
  }
  return curve;
}

double plateau(double row) {
  const double start = 0.6 * std::exp(-row / 120);
  const double drop = 1.6 / (1 + std::exp((row - 1700) / 90));
  return 0.25 + start + drop + 0.2 * std::exp(-row / 2500);
}

/// Within a cycle the loss falls with the learning rate; at its end the rate is full again.
double restarts(double row) {
  constexpr double kCycle = 800;
  const double rate = 0.5 + 0.5 * std::cos(M_PI * std::fmod(row - 1, kCycle) / kCycle);
  return 0.2 + 1.5 * std::pow(1 + row / 60, -0.6) + 0.15 * rate;
}

}  // namespace

std::vector<LearningCurve> synthetic_curves() {
  std::vector<LearningCurve> curves;
  curves.push_back(around("synthetic_clean", 0, 0, [](double row) { return 0.4 + 2 * std::exp(-row / 900); }));
  curves.push_back(
      around("synthetic_noise", 0.2, 0.01, [](double row) { return 0.3 + 2 * std::pow(1 + row / 50, -0.7); }));
  curves.push_back(around("synthetic_plateau", 0.05, 0.005, plateau));
  curves.push_back(around("synthetic_power", 0.05, 0.005, [](double row) { return 4 * std::pow(row + 10, -0.22); }));
  curves.push_back(around("synthetic_restarts", 0.05, 0.005, restarts));
  curves.push_back(spikes());
  return curves;
}

}  // namespace freshet::benchmarks
