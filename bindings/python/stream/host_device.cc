// SPDX-License-Identifier: Apache-2.0
// The host device (core/gpu/host_device.h) for this package's own tests: its name begins with "_", and nothing of the
// package opens it.
#include "core/gpu/host_device.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <list>

#include "bindings/python/errors.h"
#include "bindings/python/stream/device_tensors.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

constexpr Duration kHostDevicePatience = std::chrono::minutes(1);

/// One thread at a time.
class HostDevice {
 public:
  explicit HostDevice(std::uint64_t seed)
      : platform_({.seed = seed}), device_(take(platform_.open(gpu::host_device_uuid(0)))) {}
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  DeviceHandle device() const { return DeviceHandle(device_); }
  /// Its memory is plain memory of this process, which the caller may read once work with it is finished.
  std::uintptr_t allocate(std::uint64_t bytes) {
    memory_.push_back(take(device_->allocate(bytes)));
    return reinterpret_cast<std::uintptr_t>(memory_.back().address());
  }
  std::uintptr_t stream() {
    streams_.push_back(take(device_->create_stream()));
    return reinterpret_cast<std::uintptr_t>(streams_.back().handle().native);
  }
  void copy(std::uintptr_t stream, std::uintptr_t to, std::uintptr_t from, std::uint64_t bytes) {
    take(device_->copy(gpu::StreamHandle::of(stream), reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
                       bytes));
  }
  /// All that the stream has so far is done.
  void finish(std::uintptr_t stream) {
    const gpu::Event event = take(device_->create_event());
    take(device_->record(event, gpu::StreamHandle::of(stream)));
    take(device_->wait(event, kHostDevicePatience));
  }
  void strike() { platform_.strike(0); }

 private:
  gpu::HostPlatform platform_;
  std::shared_ptr<gpu::Device> device_;
  std::list<gpu::Memory> memory_;
  std::list<gpu::Stream> streams_;
};

}  // namespace

void bind_host_device(nb::module_& module) {
  nb::class_<HostDevice>(module, "_HostDevice")
      .def(nb::init<std::uint64_t>())
      .def("device", &HostDevice::device)
      .def("allocate", &HostDevice::allocate)
      .def("stream", &HostDevice::stream)
      .def("copy", &HostDevice::copy)
      .def("finish", &HostDevice::finish)
      .def("strike", &HostDevice::strike);
}

}  // namespace freshet::python
