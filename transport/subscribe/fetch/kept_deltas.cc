// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/kept_deltas.h"

#include <utility>

namespace freshet::detail {

void KeptDeltas::keep(std::uint32_t tensor, Delta delta) {
  drop(tensor);
  if (delta.payload.size() > bytes_max_) return;
  while (bytes_ > bytes_max_ - delta.payload.size()) drop(oldest_first_.front());
  bytes_ += delta.payload.size();
  const auto age = oldest_first_.insert(oldest_first_.end(), tensor);
  deltas_.emplace(tensor, Entry{.delta = std::move(delta), .age = age});
}

const KeptDeltas::Delta* KeptDeltas::find(std::uint32_t tensor) const {
  const auto at = deltas_.find(tensor);
  return at == deltas_.end() ? nullptr : &at->second.delta;
}

void KeptDeltas::drop(std::uint32_t tensor) {
  const auto at = deltas_.find(tensor);
  if (at == deltas_.end()) return;
  bytes_ -= at->second.delta.payload.size();
  oldest_first_.erase(at->second.age);
  deltas_.erase(at);
}

}  // namespace freshet::detail
