// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/curve_fit/cases.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr double kPi = 3.14159265358979;

std::vector<std::string> cells_of(const std::string& line) {
  std::istringstream row(line);
  std::vector<std::string> cells;
  for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
  return cells;
}

}  // namespace

std::vector<Run> made_runs(std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<> normal;
  const auto length = static_cast<double>(rows);
  const double rate = std::uniform_real_distribution<>(4, 20)(random) / length;
  const double exponent = std::uniform_real_distribution<>(0.3, 0.9)(random);
  const double floor = std::uniform_real_distribution<>(0.05, 0.5)(random);
  const auto decay = [&](double x) { return 2 * std::exp(-rate * x) + floor; };
  const auto power = [&](double x) { return 2.5 * std::pow(x + 5, -exponent) + floor; };
  const auto noisy = [&](double loss, double part) { return loss * std::exp(part * normal(random) - part * part / 2); };
  const std::vector<std::pair<std::string, std::function<double(double)>>> kinds{
      {"clean", decay},
      {"noise", [&](double x) { return noisy(decay(x), 0.2); }},
      {"spikes", [&](double x) { return noisy(power(x), 0.1) + (random() % 60 == 0 ? 10 : 0); }},
      {"slow power", [&](double x) { return noisy(3 * std::pow(x + 1, -0.15), 0.1); }},
      {"rising warm-up",
       [&](double x) {
         return noisy(power(x) + 2 * std::exp(-std::pow((x - 0.03 * length) / (0.02 * length), 2)), 0.1);
       }},
      {"plateau then drop",
       [&](double x) {
         return noisy(floor + 1 / (1 + std::exp((x / length - 0.4) * 30)) + 0.3 * std::exp(-rate * x), 0.1);
       }},
      {"warm restarts", [&](double x) {
         const double phase = std::fmod(x / length * 4, 1.0);
         return noisy(power(x) + 0.1 * (1 + std::cos(kPi * phase)), 0.1);
       }}};
  std::vector<Run> runs;
  for (const auto& [name, loss] : kinds) {
    Run run{.name = name, .losses = {}, .eval_losses = {}};
    for (std::size_t i = 1; i <= rows; ++i) run.losses.push_back(loss(static_cast<double>(i)));
    run.eval_losses = run.losses;
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<Run> recorded_run(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, format("{}: cannot be read", path));
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = cells_of(line);
  const auto column_of = [&](const char* name) {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const std::size_t loss = column_of("loss"), eval = column_of("eval_loss");
  Run run{.name = path.substr(path.find_last_of('/') + 1), .losses = {}, .eval_losses = {}};
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = cells_of(line);
    if (loss >= cells.size()) return fail(Code::invalid_argument, format("{}: a row without a loss", path));
    run.losses.push_back(std::strtod(cells[loss].c_str(), nullptr));
    run.eval_losses.push_back(eval < cells.size() ? std::strtod(cells[eval].c_str(), nullptr) : run.losses.back());
  }
  if (run.losses.size() < 200) return fail(Code::invalid_argument, format("{}: fewer than 200 losses", path));
  return run;
}

}  // namespace freshet::benchmarks
