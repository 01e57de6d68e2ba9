// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/fetch_plan.h"

namespace freshet::detail {
namespace {

/// Below this a delta saves nothing that a request would notice.
constexpr std::uint64_t kDeltaBytesMin = 1024;

}  // namespace

FetchPlan plan_fetch(const Manifest& wanted, const Manifest* served, const std::function<bool(const Content&)>& has,
                     const FetchLimits& limits) {
  const bool comparable = served != nullptr && served->architecture->digest() == wanted.architecture->digest();
  FetchPlan plan;
  std::uint64_t batch_bytes = 0;
  std::size_t batch_pieces = 0;
  const auto end_batch = [&] {
    if (batch_pieces > 0) plan.batches.push_back(batch_pieces);
    batch_bytes = 0;
    batch_pieces = 0;
  };
  for (std::uint32_t tensor = 0; tensor < wanted.owners.size(); ++tensor) {
    if (!limits.whole && !is_served(wanted.architecture->tensors()[tensor].role)) {
      plan.left.push_back(tensor);
      continue;
    }
    const Content content = content_of(wanted, tensor);
    if (has(content)) {
      plan.present.push_back(tensor);
      continue;
    }
    if (content.bytes == 0) {
      plan.empty.push_back(tensor);
      continue;
    }
    PlannedFetch fetch{.tensor = tensor, .bytes = content.bytes};
    // The same name with another digest is a lie of one of the two: nothing starts from it.
    if (comparable && content.bytes >= kDeltaBytesMin && served->owners[tensor] != content.name) {
      fetch.base = served->owners[tensor];
    }
    const bool full = batch_bytes > limits.batch_bytes || content.bytes > limits.batch_bytes - batch_bytes;
    if (full || batch_pieces >= limits.batch_pieces) end_batch();
    batch_bytes += content.bytes;
    ++batch_pieces;
    plan.fetch.push_back(fetch);
  }
  end_batch();
  return plan;
}

CatchUp catch_up(const Content* shadow, const Content& base, const KeptDeltas::Delta* kept) {
  if (shadow == nullptr) return CatchUp::copy;
  if (*shadow == base) return CatchUp::none;
  if (kept == nullptr) return CatchUp::copy;
  if (kept->base == *shadow && kept->target == base) return CatchUp::apply;
  if (kept->base == base && kept->target == *shadow) return CatchUp::revert;
  return CatchUp::copy;
}

}  // namespace freshet::detail
