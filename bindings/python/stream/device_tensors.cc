// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/device_tensors.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "core/base/format.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

/// Devices stay open until the process ends: all tables of a device share its registrations.
Result<std::shared_ptr<gpu::Device>> open_device(const std::string& name) {
  static Mutex& mutex = *new Mutex;
  static auto& opened = *new std::map<gpu::Uuid, std::shared_ptr<gpu::Device>>;
  FRESHET_ASSIGN(const auto platform, gpu::open_driver_platform());
  FRESHET_ASSIGN(const auto devices, platform->devices());
  if (name.empty() && devices.size() > 1) {
    std::string there;
    for (const gpu::DeviceInfo& device : devices) there += (there.empty() ? "" : ", ") + device.uuid.text();
    return refuse(format("device: this machine has several, name one of {}", there));
  }
  gpu::Uuid uuid = devices.front().uuid;
  if (!name.empty()) {
    FRESHET_ASSIGN(uuid, gpu::Uuid::parse(name));
  }
  {
    MutexLock lock(mutex);
    if (const auto known = opened.find(uuid); known != opened.end()) return known->second;
  }
  FRESHET_ASSIGN(auto device, platform->open(uuid));
  MutexLock lock(mutex);
  return opened.try_emplace(uuid, std::move(device)).first->second;
}

gpu::StreamHandle stream_of(std::uintptr_t number) { return gpu::StreamHandle::of(number); }

}  // namespace

DeviceHandle DeviceHandle::open(const std::string& uuid) {
  auto device = [&] {
    const Unlocked unlocked;
    return open_device(uuid);
  }();
  return DeviceHandle(take(std::move(device)));
}

template <typename Call>
auto DeviceTensorsHandle::locked(Call call) -> decltype(call(std::declval<DeviceTensors&>())) {
  const Unlocked unlocked;
  MutexLock lock(mutex_);
  if (tensors_ == nullptr) return fail(Code::failed_precondition, "the device's tensors were closed");
  return call(*tensors_);
}

DeviceTensorsHandle* DeviceTensorsHandle::bind(const DeviceHandle& device, const std::vector<Row>& rows) {
  std::vector<DeviceTensor> tensors;
  tensors.reserve(rows.size());
  for (const auto& [name, dtype, shape, address] : rows) {
    const std::optional<DType> type = dtype_named(dtype);
    if (!type) raise(Code::invalid_argument, format("tensor {}: no dtype {}", name, dtype));
    tensors.push_back(
        {.spec = {.name = name, .dtype = *type, .shape = shape}, .address = reinterpret_cast<void*>(address)});
  }
  auto bound = [&] {
    const Unlocked unlocked;
    return DeviceTensors::bind(device.get(), std::move(tensors));
  }();
  return new DeviceTensorsHandle(device.get(), take(std::move(bound)));
}

DeviceTensorsHandle::~DeviceTensorsHandle() { close(); }

bool DeviceTensorsHandle::close() {
  const Unlocked unlocked;  // Waits for copies, and may end a subscriber.
  std::unique_ptr<DeviceTensors> closed;
  {
    MutexLock lock(mutex_);
    closed = std::move(tensors_);
  }
  return closed == nullptr || closed->end();
}

std::uint64_t DeviceTensorsHandle::refresh(const Pin& pin, std::uintptr_t stream) {
  std::shared_ptr<const PinnedVersion> pinned = pin.share();
  pinned->take_device_memory(device_);
  const Snapshot* const snapshot = &pinned->snapshot();
  return take(locked([&](DeviceTensors& tensors) {
           return tensors.refresh(std::shared_ptr<const Snapshot>(std::move(pinned), snapshot), stream_of(stream));
         }))
      .tensors;
}

void DeviceTensorsHandle::prepare(const Pin& pin) {
  const PinnedVersion& pinned = pin.get();
  pinned.take_device_memory(device_);
  take(locked([&](DeviceTensors& tensors) { return tensors.prepare(pinned.snapshot()); }));
}

void DeviceTensorsHandle::use(std::uintptr_t stream) {
  take(locked([&](DeviceTensors& tensors) { return tensors.use(stream_of(stream)); }));
}

void DeviceTensorsHandle::forget(const std::optional<std::string>& name) {
  take(locked([&](DeviceTensors& tensors) -> Status {
    if (name) return tensors.forget(*name);
    tensors.forget();
    return {};
  }));
}

/// In slices, so that neither Ctrl-C nor another thread waits for the whole of it.
void DeviceTensorsHandle::wait(std::optional<double> timeout_seconds) {
  take(wait_in_slices(timeout_seconds, [&](Duration at_most) -> Status {
    MutexLock lock(mutex_);
    if (tensors_ == nullptr) return fail(Code::failed_precondition, "the device's tensors were closed");
    return tensors_->wait(at_most);
  }));
}

VersionNumber DeviceTensorsHandle::version() {
  return take(locked([](DeviceTensors& tensors) -> Result<VersionNumber> { return tensors.version(); }));
}

bool DeviceTensorsHandle::is_mixed() {
  return take(locked([](DeviceTensors& tensors) -> Result<bool> {
    static_cast<void>(tensors.pins());  // It sees which deltas are done, and what came of them.
    return tensors.is_mixed();
  }));
}

std::size_t DeviceTensorsHandle::pins() {
  return take(locked([](DeviceTensors& tensors) -> Result<std::size_t> { return tensors.pins(); }));
}

void bind_device_tensors(nb::module_& module) {
  nb::class_<DeviceHandle>(module, "Device")
      .def_static("open", &DeviceHandle::open, nb::arg("uuid"))
      .def("uuid", [](const DeviceHandle& device) { return device.get()->info().uuid.text(); });
  nb::class_<DeviceTensorsHandle>(module, "DeviceTensors")
      .def_static("bind", &DeviceTensorsHandle::bind, nb::arg("device"), nb::arg("rows"), nb::rv_policy::take_ownership)
      .def("refresh", &DeviceTensorsHandle::refresh, nb::arg("pin"), nb::arg("stream"))
      .def("prepare", &DeviceTensorsHandle::prepare, nb::arg("pin"))
      .def("use", &DeviceTensorsHandle::use, nb::arg("stream"))
      .def("forget", &DeviceTensorsHandle::forget, nb::arg("name").none())
      .def("wait", &DeviceTensorsHandle::wait, nb::arg("timeout").none())
      .def("version", &DeviceTensorsHandle::version)
      .def("is_mixed", &DeviceTensorsHandle::is_mixed)
      .def("pins", &DeviceTensorsHandle::pins)
      .def("close", &DeviceTensorsHandle::close);
}

}  // namespace freshet::python
