// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Copies of pieces in GPUs' memory into shares, by the publisher's copier: transport/publish/device_copier.h has the
/// order of the streams. A share's memory is registered with the driver once, by the first capture that uses it.

#include <memory>
#include <set>
#include <span>
#include <utility>

#include "core/base/result.h"
#include "core/model/tensor.h"
#include "repo/levels/shards/share.h"
#include "repo/levels/terms/checkpoint_copies.h"
#include "transport/publish/device_copier.h"

namespace freshet::levels {

/// One thread at a time.
class DeviceCopies {
 public:
  /// `platform`: null opens NVIDIA's driver, with the first copy.
  DeviceCopies(const ShareCut& cut, std::shared_ptr<gpu::Platform> platform)
      : cut_(cut), copier_(std::move(platform)) {}

  struct Source {
    std::size_t piece = 0;
    TensorView view;  ///< The piece's bytes in a GPU's memory. The name is for errors.
  };
  /// Queues the copies and returns. The share stays as long as this object, and as long as copies that run on then; its
  /// bytes are the copies' until `queued` says that they have ended. Errors: those of DeviceCopier::issue().
  Status add(const std::shared_ptr<Share>& share, std::span<const Source> sources,
             const std::shared_ptr<CheckpointCopies>& queued);

 private:
  const ShareCut& cut_;
  std::set<const std::byte*> known_;  ///< Shares' memory that the copier was told of.
  DeviceCopier copier_;
};

}  // namespace freshet::levels
