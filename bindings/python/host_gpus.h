// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The host device (core/gpu/host_device.h) for the package's own tests, which run where no GPU is. No option of a
/// user's opens it.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/python/tensors.h"
#include "core/gpu/host_device.h"

namespace freshet::python {

/// Two devices, and what a framework does with them. The interpreter's lock guards it.
class HostGpus {
 public:
  explicit HostGpus(std::uint64_t seed);
  ~HostGpus();
  HostGpus(const HostGpus&) = delete;
  HostGpus& operator=(const HostGpus&) = delete;

  const std::shared_ptr<gpu::Platform>& platform() const { return platform_; }
  std::uintptr_t allocate(std::int32_t device, std::uint64_t bytes);
  std::uintptr_t create_stream(std::int32_t device);
  /// Queues a copy of `bytes` to an address; they are kept.
  void write(std::int32_t device, std::uintptr_t stream, std::uintptr_t to, const ByteArray& bytes);
  /// What `stream` gets from now on runs after all that `other` has so far.
  void make_wait(std::int32_t device, std::uintptr_t stream, std::uintptr_t other);
  void hold(bool is_held) { host_->hold(is_held); }
  void strike(std::int32_t device) { host_->strike(static_cast<std::size_t>(device)); }

 private:
  gpu::Device& device(std::int32_t ordinal) const;

  const std::shared_ptr<gpu::HostPlatform> host_;
  const std::shared_ptr<gpu::Platform> platform_;
  std::vector<std::shared_ptr<gpu::Device>> devices_;
  std::vector<ByteArray> written_;
  std::vector<gpu::Memory> memory_;
  std::vector<gpu::Stream> streams_;
};

/// Also `why_no_gpus`: None, or why tensors in GPUs' memory cannot be read here.
void bind_host_gpus(nanobind::module_& module);

}  // namespace freshet::python
