// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Losses to fit: made ones of several kinds, and recorded ones from files.

#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

/// losses[i] is that of iteration i + 1.
struct Run {
  std::string name;
  std::vector<double> losses;
  std::vector<double> eval_losses;  ///< What a server would have seen; as losses where nobody measured it.
};

/// Clean, noise, spikes, slow power law, warm-up that rises, plateau then drop, warm restarts; from one seed.
std::vector<Run> made_runs(std::size_t rows, unsigned seed);

/// The columns `loss`, and `eval_loss` where there is one, of a CSV with a header.
Result<Run> recorded_run(const std::string& path);

}  // namespace freshet::benchmarks
