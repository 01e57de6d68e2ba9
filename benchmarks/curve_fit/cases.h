#pragma once

/// Losses to fit: made ones of several kinds, and recorded ones from files.

#include <string>
#include <vector>

#include "core/result.h"

namespace freshet::benchmarks {

/// losses[i] is that of iteration i + 1.
struct Run {
  std::string name;
  std::vector<double> losses;
};

/// Clean, noise, spikes, slow power law, warm-up that rises, plateau then drop, warm restarts; from one seed.
std::vector<Run> made_runs(std::size_t rows, unsigned seed);

/// The column `loss` of a CSV with a header.
Result<Run> recorded_run(const std::string& path);

}  // namespace freshet::benchmarks
