#include "benchmarks/curve_fit/cases.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "core/format.h"

namespace freshet::benchmarks {
namespace {

constexpr double kPi = 3.14159265358979;

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
    Run run{.name = name, .losses = {}};
    for (std::size_t i = 1; i <= rows; ++i) run.losses.push_back(loss(static_cast<double>(i)));
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<Run> recorded_run(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, format("{}: cannot be read", path));
  std::string line, cell;
  std::getline(file, line);
  std::istringstream header(line);
  std::vector<std::string> names;
  while (std::getline(header, cell, ',')) names.push_back(cell);
  const auto column = std::find(names.begin(), names.end(), "loss") - names.begin();
  Run run{.name = path.substr(path.find_last_of('/') + 1), .losses = {}};
  while (std::getline(file, line)) {
    std::istringstream row(line);
    for (std::ptrdiff_t i = 0; i <= column && std::getline(row, cell, ','); ++i) {
      if (i == column) run.losses.push_back(std::strtod(cell.c_str(), nullptr));
    }
  }
  if (run.losses.size() < 200) return fail(Code::invalid_argument, format("{}: fewer than 200 losses", path));
  return run;
}

}  // namespace freshet::benchmarks
