// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/keeper/reserve.h"

namespace freshet::tier {

void Reserve::add(const Copy& copy) {
  (void)remove(copy.key);
  copies_.push_back(copy);
  places_[copy.key] = std::prev(copies_.end());
  bytes_ += copy.bytes;
}

std::uint64_t Reserve::remove(std::uint64_t key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return 0;
  const std::uint64_t bytes = place->second->bytes;
  copies_.erase(place->second);
  places_.erase(place);
  bytes_ -= bytes;
  return bytes;
}

void Reserve::clear() {
  copies_.clear();
  places_.clear();
  reached_.clear();
  bytes_ = 0;
}

}  // namespace freshet::tier
