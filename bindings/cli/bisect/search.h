// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The two searches of `freshet bisect`, free of I/O: they get verdicts from `judge`. An error of `judge` ends them,
/// and is their error.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "core/base/result.h"

namespace freshet::cli {

enum class Verdict { good, bad, skipped };

/// The line's members from 0, known to be good, to count - 1, known to be bad.
struct FirstBad {
  std::size_t last_good = 0;
  std::size_t first_bad = 0;         ///< The first one known to be bad.
  std::vector<std::size_t> skipped;  ///< Between those two: any of them may be the first bad one.
};
/// Halves what lies between until only skipped ones do; each member is judged once at most. Right when all before the
/// first bad one are good and all after it bad. REQUIRES: count >= 2.
Result<FirstBad> find_first_bad(std::size_t count, const std::function<Result<Verdict>(std::size_t)>& judge);

/// A least set of 0 … count - 1 that is still bad: without any one of its members it is not known to be (1-minimal;
/// delta debugging, Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", TSE 2002, algorithm
/// ddmin). One culprit is found in about 2 log2(count) judgements; no set is judged twice. Sets come in ascending
/// order. REQUIRES: all together are bad, none at all are good, count >= 1.
Result<std::vector<std::size_t>> find_least_bad_set(
    std::size_t count, const std::function<Result<Verdict>(std::span<const std::size_t>)>& judge);

}  // namespace freshet::cli
