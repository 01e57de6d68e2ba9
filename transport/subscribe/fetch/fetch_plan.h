// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The tensors to fetch for a version, from a comparison of owner maps alone. Pure functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/model/manifest.h"
#include "transport/subscribe/fetch/content.h"
#include "transport/subscribe/fetch/kept_deltas.h"

namespace freshet::detail {

struct PlannedFetch {
  std::uint32_t tensor = 0;
  std::uint64_t bytes = 0;
  /// A segment of this tensor that is here: the answer may be a delta that starts from it.
  std::optional<SegmentName> base;
};

struct FetchPlan {
  std::vector<std::uint32_t> present;  ///< Tensors that are here already.
  std::vector<std::uint32_t> empty;    ///< Tensors without bytes: nothing has to come.
  std::vector<std::uint32_t> left;     ///< Tensors that are not taken.
  std::vector<PlannedFetch> fetch;
  /// Of `fetch`, in order: what one request asks for, as the number of pieces.
  std::vector<std::size_t> batches;
};

struct FetchLimits {
  std::uint64_t batch_bytes = std::uint64_t{32} << 20;  ///< A larger tensor is a request of its own.
  std::size_t batch_pieces = 1024;
  bool whole = true;  ///< Also tensors that are not served (Role).
};

/// `has`: whether a content is here. `served`: the version that deltas may start from, null for none; the segments that
/// it names are here.
FetchPlan plan_fetch(const Manifest& wanted, const Manifest* served, const std::function<bool(const Content&)>& has,
                     const FetchLimits& limits);

/// How a shadow is brought to the base of a delta, at the least cost.
enum class CatchUp : std::uint8_t {
  none,    ///< It holds the base.
  apply,   ///< The kept delta leads from what it holds to the base.
  revert,  ///< The kept delta leads from the base to what it holds.
  copy,    ///< The base's bytes are copied into it.
};
/// `shadow` and `kept` may be null.
CatchUp catch_up(const Content* shadow, const Content& base, const KeptDeltas::Delta* kept);

}  // namespace freshet::detail
