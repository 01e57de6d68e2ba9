// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The tables that kernels work through, made on the host: tens of thousands of tensors are one launch. A table's rows
/// are copied to where the device reads them.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/digest.h"
#include "core/gpu/kernels/copy_kernels.h"
#include "core/gpu/kernels/delta_kernels.h"
#include "core/gpu/kernels/digest_kernels.h"

namespace freshet::gpu {

/// Numbers the rows' tiles from the first to the last, and returns how many there are.
std::uint64_t number_tiles(std::span<CopyTensor> tensors);
std::uint64_t number_tiles(std::span<DigestPart> parts);
std::uint64_t number_tiles(std::span<PackTensor> tensors);
/// `blocks`: how many a tensor's payload has (PayloadPlaces), one for each tensor.
std::uint64_t number_tiles(std::span<ApplyTensor> tensors, std::span<const std::uint64_t> blocks);

/// The digests of tensors in a device's memory, part by part as core/FORMAT.md says. Parts of kDigestHostBytesMax or
/// less are the host's: it copies their bytes, and digests them itself. One thread at a time.
class DigestPlan {
 public:
  struct HostPart {
    const std::uint8_t* bytes = nullptr;
    std::uint64_t length = 0;
  };

  void add(const std::uint8_t* bytes, std::uint64_t length);
  std::uint64_t tensors() const { return first_parts_.size(); }

  /// For kDigestSums and kDigestChain; numbered.
  std::span<const DigestPart> device_parts() const { return device_parts_; }
  std::uint64_t tiles() const { return tiles_; }
  std::span<const HostPart> host_parts() const { return host_parts_; }
  /// Where the tensor's sums begin, in kDigestSumsOfBlock: those of its parts follow each other.
  std::uint64_t first_tile(std::uint64_t tensor) const { return first_tiles_[tensor]; }

  /// The digest of the tensor that was added as `tensor`th. `device_digests`: what kDigestChain wrote. `host_digests`:
  /// of host_parts(), in their order.
  Digest digest_of(std::uint64_t tensor, std::span<const std::uint64_t> device_digests,
                   std::span<const Digest> host_digests) const;

 private:
  struct Part {
    bool is_device = false;
    std::uint64_t index = 0;
  };

  std::vector<DigestPart> device_parts_;
  std::vector<HostPart> host_parts_;
  std::vector<Part> parts_;
  std::vector<std::uint64_t> first_parts_;  ///< Of each tensor, in parts_.
  std::vector<std::uint64_t> first_tiles_;  ///< Of each tensor.
  std::uint64_t tiles_ = 0;
};

}  // namespace freshet::gpu
