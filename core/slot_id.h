// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Slot ids of a graph's layer calls. The definition, byte for byte, is in core/FORMAT.md, "Slot ids".

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/graph.h"
#include "core/mutex.h"
#include "core/result.h"

namespace freshet {

/// The hash's state after a config, for configs that came before (DStore): a layer whose config is known costs the hash
/// of its inputs alone. A search mutates a candidate in a place or two, so nearly all of its configs are known; its
/// slot ids are not, below the mutation. Keeps whole configs, so no two are ever taken for one. Any thread.
class ConfigHashes {
 public:
  /// At most about twice as many configs are kept: those of the last `entries_max` and of the ones before.
  explicit ConfigHashes(std::size_t entries_max = 8192) : entries_max_(entries_max) {}

  /// A state that has taken the domain and the config; opaque here. Aligned as the hash wants it.
  struct alignas(64) State {
    std::array<std::uint8_t, 384> bytes;
  };
  std::shared_ptr<const State> find(std::string_view key);
  void add(std::string key, std::shared_ptr<const State> state);

  std::uint64_t hits() const;
  std::uint64_t misses() const;

 private:
  using Map = std::unordered_map<std::string, std::shared_ptr<const State>>;

  const std::size_t entries_max_;
  mutable Mutex mutex_;
  Map newer_ FRESHET_GUARDED_BY(mutex_);
  Map older_ FRESHET_GUARDED_BY(mutex_);  ///< Dropped when `newer_` is full and takes its place.
  std::uint64_t hits_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::uint64_t misses_ FRESHET_GUARDED_BY(mutex_) = 0;
};

/// One id per layer. REQUIRES: the layers passed Architecture::build's checks. Linear in the size of the graph.
std::vector<SlotId> compute_slots(std::span<const Layer> layers, std::span<const TensorSpec> tensors);
/// The same ids, with a cache, for layers of which nobody has made an Architecture: configs may be any JSON objects.
/// invalid_argument names the layer that has none, or whose inputs, tensors or tensors_of are not there.
Result<std::vector<SlotId>> compute_slots(std::span<const Layer> layers, std::span<const TensorSpec> tensors,
                                          ConfigHashes& known);

}  // namespace freshet
