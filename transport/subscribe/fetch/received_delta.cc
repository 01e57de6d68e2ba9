// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/received_delta.h"

#include <algorithm>
#include <utility>

#include "core/delta/raw_delta.h"
#include "core/gpu/kernels/tables.h"

namespace freshet::detail {
namespace {

constexpr std::uint64_t kShareMax = 4;

}  // namespace

std::uint64_t ReceivedDelta::table_bytes() const {
  return sizeof(gpu::ApplyTensor) + sizeof(gpu::ApplyResult) + places.places.size() * sizeof(gpu::BlockPlace) +
         places.blocks_bytes;
}

std::shared_ptr<const ReceivedDelta> ReceivedDelta::make(const DeltaSpec& spec, std::uint64_t tensor_bytes,
                                                         Bytes payload, std::uint64_t room) {
  const std::uint64_t bytes_max = std::min(tensor_bytes / kShareMax, room);
  if (tensor_bytes <= gpu::kCopyTileBytes || payload.size() > bytes_max) return nullptr;
  auto raw = raw_delta(payload, gpu::kChunkElementsMax);
  if (!raw || raw->size() > bytes_max) return nullptr;
  auto places = gpu::find_places(spec, tensor_bytes / word_bytes_of(spec.dtype), *raw);
  if (!places) return nullptr;
  auto made = std::make_shared<const ReceivedDelta>(
      ReceivedDelta{.spec = spec, .payload = std::move(*raw), .places = std::move(*places)});
  return made->table_bytes() <= room ? made : nullptr;
}

}  // namespace freshet::detail
