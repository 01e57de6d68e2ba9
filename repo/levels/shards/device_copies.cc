// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/device_copies.h"

#include <utility>
#include <vector>

namespace freshet::levels {

Status DeviceCopies::add(const std::shared_ptr<Share>& share, std::span<const Source> sources,
                         const std::shared_ptr<CheckpointCopies>& queued) {
  if (sources.empty()) return {};
  const ShareMemory& memory = share->memory;
  std::vector<TensorCopy> copies;
  std::vector<std::size_t> pieces;
  for (const Source& source : sources) {
    copies.push_back({.to = {memory.data() + cut_.offsets[source.piece], source.view.data.size()},
                      .from = source.view.data,
                      .tensor = &source.view});
    pieces.push_back(source.piece);
  }
  if (known_.insert(memory.data()).second) copier_.add_slab({memory.data(), memory.bytes()}, share);
  queued->add(pieces);
  return copier_.issue(std::move(copies), [queued](const TensorCopier::Copied& copied) {
    queued->complete(copied ? Status() : fail(Error(copied.error())));
  });
}

}  // namespace freshet::levels
