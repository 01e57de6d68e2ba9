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

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/graph.h"

namespace freshet {

/// A cache. For each config, it keeps the state of the hash function after the function has taken this config as input
/// (DStore). A layer with a known config then costs only the hash of its inputs. A search changes a candidate in one or
/// two places, so nearly all of its configs are known. All slot ids after the change are new, so the cache keeps no
/// slot ids. The cache keeps whole configs, so it never takes two different configs for one. Any thread.
class ConfigHashes {
 public:
  /// The cache keeps at most about twice `entries_max` configs: the newest `entries_max`, and those before them.
  explicit ConfigHashes(std::size_t entries_max = 8192) : entries_max_(entries_max) {}

  /// The state of the hash function after it has taken the fixed first text ("freshet slot id 1", core/FORMAT.md) and a
  /// config. Opaque here. Aligned as the hash function wants it.
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
/// The same ids, with a cache, for layers without an Architecture: configs may be any JSON objects. The message of
/// invalid_argument names a layer that has no config object, or that names inputs, tensors or tensors_of that do not
/// exist.
Result<std::vector<SlotId>> compute_slots(std::span<const Layer> layers, std::span<const TensorSpec> tensors,
                                          ConfigHashes& known);

}  // namespace freshet
