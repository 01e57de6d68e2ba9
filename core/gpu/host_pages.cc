// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/host_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "core/base/format.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kHostPagesMin = std::uint64_t{64} << 10;
constexpr std::uint64_t kHostPageUnit = 4096;

}  // namespace

Result<std::unique_ptr<HostPages>> HostPages::make(Device& device, std::uint64_t bytes) {
  const std::uint64_t whole = (std::max(bytes, kHostPagesMin) + kHostPageUnit - 1) / kHostPageUnit * kHostPageUnit;
  // Shared: after a fork of the process, on an older kernel, the next write to a private page goes to another page than
  // the device's.
  void* const mapped = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return fail_errno(errno, format("map {} bytes for a device's tables", whole));
  const std::shared_ptr<std::byte> owner(static_cast<std::byte*>(mapped),
                                         [whole](std::byte* begin) { ::munmap(begin, whole); });
  std::unique_ptr<HostPages> pages(new HostPages(owner, whole));
  FRESHET_ASSIGN(pages->registration_, device.register_host(mapped, whole, HostAccess::read_write, owner));
  return pages;
}

Result<std::unique_ptr<HostPages>> HostPagePool::take(Device& device, std::uint64_t bytes) {
  {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(free_, [&](const auto& pages) { return pages->bytes() >= bytes; });
    if (found != free_.end()) {
      auto pages = std::move(*found);
      free_.erase(found);
      return pages;
    }
  }
  return HostPages::make(device, std::bit_ceil(std::max(bytes, kHostPagesMin)));
}

void HostPagePool::give_back(std::unique_ptr<HostPages> pages) {
  if (pages == nullptr) return;
  MutexLock lock(mutex_);
  free_.push_back(std::move(pages));
}

}  // namespace freshet::gpu
