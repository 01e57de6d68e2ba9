// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The element deltas that were applied last, one for each tensor, as far as they fit: a shadow that is one version
/// behind is caught up by applying again what was applied to its twin, instead of by copying the tensor. A delta works
/// in both directions, so one that went back can go forth.
///
/// One thread at a time.

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "core/model/dtype.h"
#include "transport/subscribe/fetch/content.h"

namespace freshet::detail {

class KeptDeltas {
 public:
  explicit KeptDeltas(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  struct Delta {
    DType dtype = DType::f32;
    Content base;
    Content target;
    std::vector<std::byte> payload;
  };
  /// Takes the place of the tensor's last one; the oldest go when there are too many bytes. One that is larger than all
  /// of the room is not kept.
  void keep(std::uint32_t tensor, Delta delta);
  /// Null when none is kept for the tensor.
  const Delta* find(std::uint32_t tensor) const;
  void drop(std::uint32_t tensor);

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    Delta delta;
    std::list<std::uint32_t>::iterator age;
  };

  const std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  std::unordered_map<std::uint32_t, Entry> deltas_;
  std::list<std::uint32_t> oldest_first_;
};

}  // namespace freshet::detail
