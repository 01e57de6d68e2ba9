// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Host memory that a driver knows, for what goes to a device beside tensors: tables for kernels, and their results.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/device.h"

namespace freshet::gpu {

/// Immutable; the bytes are the holder's.
class HostPages {
 public:
  /// Of `bytes` or more. Errors are those of Device::register_host(), and of the system.
  static Result<std::unique_ptr<HostPages>> make(Device& device, std::uint64_t bytes);
  /// Its end waits as that of a Registration. REQUIRES: no queued work has the pages.
  ~HostPages() = default;
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  std::byte* begin() const { return pages_.get(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  HostPages(std::shared_ptr<std::byte> pages, std::uint64_t bytes) : pages_(std::move(pages)), bytes_(bytes) {}

  const std::shared_ptr<std::byte> pages_;
  const std::uint64_t bytes_;
  Registration registration_;
};

/// Pages that are used again and again: the driver takes its time to register new ones. Their sizes are powers of two,
/// so sizes that grow leave little behind: of one holder at a time, all pages are less than four times the largest that
/// was asked for, or 128 KiB. Any thread.
class HostPagePool {
 public:
  Result<std::unique_ptr<HostPages>> take(Device& device, std::uint64_t bytes) FRESHET_EXCLUDES(mutex_);
  /// REQUIRES: no queued work has them.
  void give_back(std::unique_ptr<HostPages> pages) FRESHET_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<HostPages>> free_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::gpu
