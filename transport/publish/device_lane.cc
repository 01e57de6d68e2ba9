// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/device_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/gpu/kernels/tables.h"

namespace freshet {
namespace {

/// A copy by the driver costs the loop and the device some microseconds, in which PCIe moves a hundred kilobytes. So
/// many small tensors are one launch over a table.
constexpr std::uint64_t kLaunchBytesMax = std::uint64_t{128} << 10;
constexpr std::size_t kLaunchRowsMin = 32;
/// Writes over PCIe need few processors of the device; the training step has the others.
constexpr std::uint64_t kLaunchBlocksMax = 128;
/// Of the device's memory, for what one version's pass makes beside the tensors' bytes.
constexpr std::uint64_t kPassBytesMax = std::uint64_t{512} << 20;

}  // namespace

Result<std::unique_ptr<DeviceLane>> DeviceLane::open(std::int32_t ordinal, std::shared_ptr<gpu::Device> device) {
  FRESHET_ASSIGN(gpu::Stream stream, device->create_stream());
  FRESHET_ASSIGN(gpu::Stream behind, device->create_stream());
  return std::unique_ptr<DeviceLane>(new DeviceLane(ordinal, std::move(device), std::move(stream), std::move(behind)));
}

Status DeviceLane::register_slabs(std::span<HostSlab> slabs) {
  std::size_t known = 0;
  {
    MutexLock lock(mutex_);
    known = slabs_known_;
  }
  for (HostSlab& slab : slabs.subspan(known)) {
    if (!slab.is_registered) FRESHET_TRY(register_slab(slab));
    MutexLock lock(mutex_);
    ++slabs_known_;
    if (slab.is_registered) registered_.push_back(slab.memory);
  }
  return {};
}

Status DeviceLane::register_slab(HostSlab& slab) {
  auto registration =
      device_->register_host(slab.memory.data(), slab.memory.size(), gpu::HostAccess::read_write, slab.owner);
  slab.is_registered = registration.has_value();
  if (registration) {
    registrations_.push_back(std::move(*registration));
    return {};
  }
  Error& error = registration.error();
  if (error.code() == Code::failed_precondition) return fail(std::move(error));
  if (error.code() == Code::already_exists) {
    return fail(Code::failed_precondition,
                format("{}, by another part of this process: copies from GPU {} might go to pages that are not the "
                       "publisher's; unregister that memory, or end the process and start it anew",
                       error.message(), ordinal_));
  }
  if (!std::exchange(said_refused_, true)) {
    log_line(LogLevel::warning, format("{}; versions are copied from GPU {} all the same, but slower, and the loop "
                                       "waits for the copy; this is said once",
                                       error.message(), ordinal_));
  }
  return {};
}

Error DeviceLane::named(const TensorCopy& copy, Error error) const {
  const std::string which = copy.tensor == nullptr ? std::string() : format(" {}", shown(copy.tensor->spec.name));
  return std::move(error).with_context(format("tensor{} on GPU {}", which, ordinal_));
}

Status DeviceLane::check(const TensorCopy& copy) {
  if (copy.from.empty()) return {};
  auto info = device_->describe(copy.from.data());
  if (!info) return fail(named(copy, std::move(info.error())));
  if (is_readable_by_host(info->kind)) {
    return fail(named(copy, Error(Code::invalid_argument, "the driver knows its address as host memory")));
  }
  if (info->kind == MemoryKind::device && info->device && *info->device != device_->info().uuid) {
    return fail(named(copy, Error(Code::invalid_argument, format("its memory is that of device {}, not of {}",
                                                                 info->device->text(), device_->info().uuid.text()))));
  }
  return {};
}

Status DeviceLane::follow(gpu::StreamHandle theirs) {
  FRESHET_ASSIGN(const gpu::Event so_far, device_->create_event());
  FRESHET_TRY(device_->record(so_far, theirs));
  return device_->make_wait(stream_.handle(), so_far.handle());
}

bool DeviceLane::is_registered(Bytes memory) const {
  if (registered_.size() == slabs_known_) return true;
  return std::ranges::any_of(registered_, [&](Bytes slab) {
    return memory.data() >= slab.data() && memory.data() < slab.data() + slab.size();
  });
}

std::vector<bool> DeviceLane::choose_for_launch(std::span<const TensorCopy> copies) const {
  std::vector<bool> chosen(copies.size());
  if (!device_->info().kernels_reach_host) return chosen;
  MutexLock lock(mutex_);
  if (!launches_) return chosen;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::uint64_t bytes = copies[i].from.size();
    chosen[i] = bytes > 0 && bytes <= kLaunchBytesMax && is_registered(copies[i].to);
  }
  if (static_cast<std::size_t>(std::ranges::count(chosen, true)) < kLaunchRowsMin) chosen.assign(copies.size(), false);
  return chosen;
}

Status DeviceLane::queue(gpu::StreamHandle stream, std::span<const TensorCopy> copies, Used& used) {
  const std::vector<bool> chosen = choose_for_launch(copies);
  std::vector<gpu::CopyTensor> rows;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (!chosen[i]) continue;
    rows.push_back({.from = reinterpret_cast<const std::uint8_t*>(copies[i].from.data()),
                    .to = reinterpret_cast<std::uint8_t*>(copies[i].to.data()),
                    .bytes = copies[i].from.size(),
                    .first_tile = 0});
  }
  bool is_launched = false;
  if (!rows.empty()) {
    FRESHET_ASSIGN(is_launched, launch(stream, std::move(rows), used));
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const TensorCopy& copy = copies[i];
    if (copy.from.empty() || (is_launched && chosen[i])) continue;
    auto status = device_->copy(stream, copy.to.data(), copy.from.data(), copy.from.size());
    if (!status) return fail(named(copy, std::move(status.error())));
  }
  return {};
}

Result<bool> DeviceLane::launch(gpu::StreamHandle stream, std::vector<gpu::CopyTensor> rows, Used& used) {
  const std::uint64_t tiles = gpu::number_tiles(std::span(rows));
  auto table = pages_.take(*device_, rows.size() * sizeof(gpu::CopyTensor));
  if (!table) {
    if (table.error().code() == Code::failed_precondition) return fail(std::move(table.error()));
    return false;  // The driver's own copies need no table.
  }
  std::memcpy((*table)->begin(), rows.data(), rows.size() * sizeof(gpu::CopyTensor));
  const gpu::CopyArguments arguments{.tensors = reinterpret_cast<const gpu::CopyTensor*>((*table)->begin()),
                                     .tensor_count = rows.size(),
                                     .tiles = tiles};
  auto status = device_->launch(stream,
                                {.kernel = gpu::Kernel::kCopy,
                                 .blocks = static_cast<std::uint32_t>(std::min(tiles, kLaunchBlocksMax)),
                                 .threads = gpu::kCopyThreadsMax},
                                arguments);
  if (!status && status.error().code() == Code::unsupported) {
    pages_.give_back(std::move(*table));
    MutexLock lock(mutex_);
    launches_ = false;
    return false;
  }
  used.rows = std::move(*table);
  FRESHET_TRY(std::move(status));
  return true;
}

Result<std::vector<bool>> DeviceLane::pack(std::span<const TensorCopy> copies, Used& used) {
  std::vector<bool> chosen(copies.size());
  std::vector<gpu::Packer::Tensor> tensors;
  std::uint64_t room = 0;
  for (std::size_t i = 0; packs_ && i < copies.size(); ++i) {
    const TensorCopy& copy = copies[i];
    const DType dtype = copy.tensor->spec.dtype;
    if (copy.via.empty() || !gpu::Packer::takes(copy.from.size(), dtype)) continue;
    const gpu::Packer::Tensor tensor{
        .from = copy.from, .to = copy.via.data(), .dtype = dtype, .is_packed = copy.is_paired};
    if (room + gpu::Packer::room_for(tensor) > kPassBytesMax) continue;
    room += gpu::Packer::room_for(tensor);
    tensors.push_back(tensor);
    chosen[i] = true;
  }
  if (tensors.empty()) return chosen;
  used.packed = std::make_shared<gpu::Packer::Job>();
  Status status = packer_.queue(stream_.handle(), tensors, *used.packed);
  if (status) return chosen;
  if (status.error().code() == Code::failed_precondition) return fail(std::move(status.error()));
  packs_ = status.error().code() != Code::unsupported;
  if (packs_ && !std::exchange(said_no_pass_, true)) {
    log_line(LogLevel::warning,
             format("{}; what GPU {} publishes is copied and digested one after the other; this is said once",
                    status.error().message(), ordinal_));
  }
  chosen.assign(copies.size(), false);
  return chosen;
}

Status DeviceLane::finish_packed(Used& used) { return packer_.finish(stream_.handle(), *used.packed); }

Result<bool> DeviceLane::bring_deltas(std::span<const TensorCopy> copies, Used& used) {
  std::uint64_t bytes = 0;
  for (const TensorCopy& copy : copies) bytes += copy.delta->blocks().size();
  auto pages = pages_.take(*device_, bytes);
  if (!pages && pages.error().code() == Code::failed_precondition) return fail(std::move(pages.error()));
  if (!pages) return false;
  used.rows = std::move(*pages);
  std::byte* to = used.rows->begin();
  for (const TensorCopy& copy : copies) {
    const Bytes blocks = copy.delta->blocks();
    FRESHET_TRY(device_->copy(behind_.handle(), to, blocks.data(), blocks.size()));
    to += blocks.size();
  }
  return true;
}

Status DeviceLane::digest(std::span<const Bytes> ranges, Used& used) {
  if (!digests_) return {};
  Status status = digester_.queue(stream_.handle(), ranges, used.digests);
  if (status || status.error().code() == Code::failed_precondition) return status;
  digests_ = status.error().code() != Code::unsupported;
  if (!std::exchange(said_no_digests_, true)) {
    log_line(LogLevel::warning,
             format("{}; the processor forms the digests of what GPU {} publishes; this is said once",
                    status.error().message(), ordinal_));
  }
  return {};
}

void DeviceLane::give_back(Used used) {
  pages_.give_back(std::move(used.rows));
  digester_.give_back(std::move(used.digests));
}

}  // namespace freshet
