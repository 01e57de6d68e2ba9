// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/device_lane.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
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
constexpr std::uint64_t kRowPagesBytesMin = std::uint64_t{64} << 10;
constexpr std::uint64_t kHostPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<RowPages>> RowPages::make(gpu::Device& device, std::uint64_t bytes) {
  const std::uint64_t whole =
      (std::max(bytes, kRowPagesBytesMin) + kHostPageBytes - 1) / kHostPageBytes * kHostPageBytes;
  void* const mapped = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return fail_errno(errno, format("map {} bytes for a table of copies", whole));
  std::unique_ptr<RowPages> pages(new RowPages(static_cast<std::byte*>(mapped), whole));
  FRESHET_ASSIGN(pages->registration_, device.register_host(mapped, whole, gpu::HostAccess::read_write));
  return pages;
}

RowPages::~RowPages() {
  registration_ = gpu::Registration();
  ::munmap(begin_, bytes_);
}

Result<std::unique_ptr<DeviceLane>> DeviceLane::open(std::int32_t ordinal, std::shared_ptr<gpu::Device> device) {
  FRESHET_ASSIGN(gpu::Stream stream, device->create_stream());
  return std::unique_ptr<DeviceLane>(new DeviceLane(ordinal, std::move(device), std::move(stream)));
}

Status DeviceLane::register_slabs(std::span<const Bytes> slabs) {
  for (; slabs_known_ < slabs.size(); ++slabs_known_) {
    const Bytes slab = slabs[slabs_known_];
    auto registration = device_->register_host(slab.data(), slab.size(), gpu::HostAccess::read_write);
    // Registered memory is so for all devices, and another one's lane may have been first.
    if (registration || registration.error().code() == Code::already_exists) {
      if (registration) registrations_.push_back(std::move(*registration));
      registered_.push_back(slab);
      continue;
    }
    if (registration.error().code() == Code::failed_precondition) return fail(std::move(registration.error()));
    if (!std::exchange(said_refused_, true)) {
      log_line(LogLevel::warning, format("{}; versions are copied from GPU {} all the same, but slower, and the loop "
                                         "waits for the copy; this is said once",
                                         registration.error().message(), ordinal_));
    }
  }
  return {};
}

Error DeviceLane::named(const TensorCopy& copy, Error error) const {
  return std::move(error).with_context(format("tensor {} on GPU {}", shown(copy.tensor->spec.name), ordinal_));
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

bool DeviceLane::is_for_launch(const TensorCopy& copy) const {
  return copy.from.size() <= kLaunchBytesMax && is_registered(copy.to);
}

Status DeviceLane::queue(std::span<const TensorCopy> copies, std::vector<std::unique_ptr<RowPages>>& pages) {
  std::vector<gpu::CopyTensor> rows;
  if (launches_ && device_->info().kernels_reach_host) {
    for (const TensorCopy& copy : copies) {
      if (copy.from.empty() || !is_for_launch(copy)) continue;
      rows.push_back({.from = reinterpret_cast<const std::uint8_t*>(copy.from.data()),
                      .to = reinterpret_cast<std::uint8_t*>(copy.to.data()),
                      .bytes = copy.from.size(),
                      .first_tile = 0});
    }
  }
  bool is_launched = false;
  if (rows.size() >= kLaunchRowsMin) {
    FRESHET_ASSIGN(is_launched, launch(std::move(rows), pages));
  }
  for (const TensorCopy& copy : copies) {
    if (copy.from.empty() || (is_launched && is_for_launch(copy))) continue;
    auto status = device_->copy(stream_.handle(), copy.to.data(), copy.from.data(), copy.from.size());
    if (!status) return fail(named(copy, std::move(status.error())));
  }
  return {};
}

Result<bool> DeviceLane::launch(std::vector<gpu::CopyTensor> rows, std::vector<std::unique_ptr<RowPages>>& pages) {
  const std::uint64_t tiles = gpu::number_tiles(std::span(rows));
  auto table = take_pages(rows.size() * sizeof(gpu::CopyTensor));
  if (!table) {
    if (table.error().code() == Code::failed_precondition) return fail(std::move(table.error()));
    return false;  // The driver's own copies need no table.
  }
  std::memcpy((*table)->begin(), rows.data(), rows.size() * sizeof(gpu::CopyTensor));
  const gpu::CopyArguments arguments{.tensors = reinterpret_cast<const gpu::CopyTensor*>((*table)->begin()),
                                     .tensor_count = rows.size(),
                                     .tiles = tiles};
  auto status = device_->launch(stream_.handle(),
                                {.kernel = gpu::Kernel::kCopy,
                                 .blocks = static_cast<std::uint32_t>(std::min(tiles, kLaunchBlocksMax)),
                                 .threads = gpu::kCopyThreadsMax},
                                arguments);
  if (!status && status.error().code() == Code::unsupported) {
    std::vector<std::unique_ptr<RowPages>> unused;
    unused.push_back(std::move(*table));
    give_back(std::move(unused));
    launches_ = false;
    return false;
  }
  pages.push_back(std::move(*table));
  FRESHET_TRY(std::move(status));
  return true;
}

Result<std::unique_ptr<RowPages>> DeviceLane::take_pages(std::uint64_t bytes) {
  {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(free_pages_, [&](const auto& pages) { return pages->bytes() >= bytes; });
    if (found != free_pages_.end()) {
      auto pages = std::move(*found);
      free_pages_.erase(found);
      return pages;
    }
  }
  return RowPages::make(*device_, bytes);
}

void DeviceLane::give_back(std::vector<std::unique_ptr<RowPages>> pages) {
  MutexLock lock(mutex_);
  for (auto& one : pages) free_pages_.push_back(std::move(one));
}

}  // namespace freshet
