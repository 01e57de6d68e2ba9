// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/received_delta.h"

#include <utility>

#include "core/delta/raw_delta.h"

namespace freshet::detail {
namespace {

constexpr std::uint64_t kShareMax = 4;

}  // namespace

std::shared_ptr<const ReceivedDelta> ReceivedDelta::make(const DeltaSpec& spec, std::uint64_t tensor_bytes,
                                                         Bytes payload) {
  if (payload.size() > tensor_bytes / kShareMax) return nullptr;
  auto raw = raw_delta(payload, gpu::kChunkElementsMax);
  if (!raw || raw->size() > tensor_bytes / kShareMax) return nullptr;
  auto places = gpu::find_places(spec, tensor_bytes / word_bytes_of(spec.dtype), *raw);
  if (!places) return nullptr;
  return std::make_shared<const ReceivedDelta>(
      ReceivedDelta{.spec = spec, .payload = std::move(*raw), .places = std::move(*places)});
}

}  // namespace freshet::detail
