// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A server's tensors on a GPU, as Python holds them. Addresses and streams are numbers, as frameworks give them.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/python/stream/subscriber.h"
#include "core/base/mutex.h"
#include "core/gpu/device.h"
#include "transport/subscribe/device/device_tensors.h"

namespace freshet::python {

/// One for each device of this process. Immutable.
class DeviceHandle {
 public:
  explicit DeviceHandle(std::shared_ptr<gpu::Device> device) : device_(std::move(device)) {}
  /// By its UUID, as nvidia-smi prints it; "" is the only device of the machine.
  static DeviceHandle open(const std::string& uuid);
  const std::shared_ptr<gpu::Device>& get() const { return device_; }

 private:
  std::shared_ptr<gpu::Device> device_;
};

/// Any thread. No call keeps the interpreter's lock, and none takes it while it has the mutex.
class DeviceTensorsHandle {
 public:
  using Row = std::tuple<std::string, std::string, Shape, std::uintptr_t>;  ///< Name, dtype, shape, address.
  static DeviceTensorsHandle* bind(const DeviceHandle& device, const std::vector<Row>& rows);
  DeviceTensorsHandle(std::shared_ptr<gpu::Device> device, std::unique_ptr<DeviceTensors> tensors)
      : device_(std::move(device)), tensors_(std::move(tensors)) {}
  ~DeviceTensorsHandle();

  /// How many tensors are copied. From the next version on, the subscriber takes the publisher's memory on this device
  /// too.
  std::uint64_t refresh(const Pin& pin, std::uintptr_t stream);
  void prepare(const Pin& pin);
  void use(std::uintptr_t stream);
  void forget(const std::optional<std::string>& name);
  void wait(std::optional<double> timeout_seconds);
  VersionNumber version();
  bool is_mixed();
  std::size_t pins();
  /// DeviceTensors::end().
  bool close();

 private:
  template <typename Call>
  auto locked(Call call) -> decltype(call(std::declval<DeviceTensors&>()));

  const std::shared_ptr<gpu::Device> device_;
  Mutex mutex_;
  std::unique_ptr<DeviceTensors> tensors_ FRESHET_GUARDED_BY(mutex_);
};

void bind_device_tensors(nanobind::module_& module);
/// The host device, for this package's own tests: no name of a user's.
void bind_host_device(nanobind::module_& module);

}  // namespace freshet::python
