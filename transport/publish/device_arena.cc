// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/device_arena.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "core/gpu/device.h"

namespace freshet {
namespace {

constexpr std::uint64_t kSegmentUnit = 4096;
constexpr std::uint64_t kSlabBytesWhole = std::uint64_t{1} << 30;  // As an arena cuts large models into slabs.

}  // namespace

void DeviceArena::prepare(std::span<const std::uint64_t> tensor_bytes) {
  model_bytes_ = 0;
  for (const std::uint64_t bytes : tensor_bytes)
    model_bytes_ += round_up(std::max<std::uint64_t>(bytes, 1), kSegmentUnit);
}

/// Each slab is rounded up to what the device gives. Two slabs in a row hold more than one whole slab, so there are at
/// most twice as many.
std::uint64_t DeviceArena::limit_bytes(std::uint64_t granularity) const {
  if (limit_.bytes != 0) return limit_.bytes;
  const auto slabs = static_cast<double>(2 * (model_bytes_ / kSlabBytesWhole) + 2);
  return static_cast<std::uint64_t>(limit_.copies * static_cast<double>(model_bytes_) +
                                    std::ceil(limit_.copies) * slabs * static_cast<double>(granularity));
}

Status DeviceArena::find(std::span<const TensorView> tensors, std::span<Want> wants, TensorCopier& copier) {
  const std::int32_t ordinal = tensors[wants.front().tensor].place.device;
  for (const Want& want : wants) {
    const std::int32_t other = tensors[want.tensor].place.device;
    if (other == ordinal) continue;
    return fail(Code::unsupported, format("its tensors lie on GPU {} and on GPU {}; device memory is kept on one GPU",
                                          std::min(ordinal, other), std::max(ordinal, other)));
  }
  FRESHET_ASSIGN(const std::shared_ptr<gpu::Device> device, copier.device_of(ordinal));
  FRESHET_TRY(slabs_.use_device(device));
  slabs_.raise_limit(limit_bytes(device->info().granularity));
  Status status;
  if (slabs_.acquire(wants) > 0) status = slabs_.grow(wants);
  if (!status) slabs_.abandon(wants);
  return status;
}

DeviceArena::Segments DeviceArena::acquire(std::span<const TensorView> tensors, std::span<const Want> wants,
                                           TensorCopier* copier) {
  const auto is_for_here = [&](const Want& want) {
    return want.bytes > 0 && !is_readable_by_host(tensors[want.tensor].place.memory);
  };
  std::vector<Want> mine;
  if (limit_.is_wanted() && copier != nullptr) std::ranges::copy_if(wants, std::back_inserter(mine), is_for_here);
  if (mine.empty()) return Segments(wants.size());
  for (Want& want : mine) want.segment.reset();
  const Status found = find(tensors, mine, *copier);
  std::string why = found ? std::string() : found.error().message();
  {
    MutexLock lock(mutex_);
    std::swap(why, why_not_);
  }
  if (!found && why != found.error().message()) {
    log_line(LogLevel::warning, format("publish: versions go to host memory alone: {}", found.error().message()));
  }
  Segments segments(wants.size());
  for (std::size_t want = 0, next = 0; found && want < wants.size(); ++want) {
    if (is_for_here(wants[want])) segments[want] = mine[next++].segment;
  }
  return segments;
}

std::string DeviceArena::why_not() const {
  MutexLock lock(mutex_);
  return why_not_;
}

}  // namespace freshet
