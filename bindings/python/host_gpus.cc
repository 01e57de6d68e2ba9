// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/host_gpus.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings/python/errors.h"
#include "core/base/format.h"

namespace freshet::python {

namespace nb = nanobind;

HostGpus::HostGpus(std::uint64_t seed)
    : host_(std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = seed, .devices = 2})), platform_(host_) {
  for (const gpu::DeviceInfo& info : take(host_->devices())) devices_.push_back(take(host_->open(info.uuid)));
}

/// The ends of streams and memory wait for their work.
HostGpus::~HostGpus() { host_->hold(false); }

gpu::Device& HostGpus::device(std::int32_t ordinal) const {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices_.size()) {
    raise(Code::invalid_argument, format("there is no device {}", ordinal));
  }
  return *devices_[static_cast<std::size_t>(ordinal)];
}

std::uintptr_t HostGpus::allocate(std::int32_t ordinal, std::uint64_t bytes) {
  memory_.push_back(take(device(ordinal).allocate(bytes)));
  return reinterpret_cast<std::uintptr_t>(memory_.back().address());
}

std::uintptr_t HostGpus::create_stream(std::int32_t ordinal) {
  streams_.push_back(take(device(ordinal).create_stream()));
  return reinterpret_cast<std::uintptr_t>(streams_.back().handle().native);
}

void HostGpus::write(std::int32_t ordinal, std::uintptr_t stream, std::uintptr_t to, const ByteArray& bytes) {
  written_.push_back(bytes);
  take(device(ordinal).copy(gpu::StreamHandle::of(stream), reinterpret_cast<void*>(to), bytes.data(), bytes.shape(0)));
}

void HostGpus::make_wait(std::int32_t ordinal, std::uintptr_t stream, std::uintptr_t other) {
  const gpu::Event so_far = take(device(ordinal).create_event());
  take(device(ordinal).record(so_far, gpu::StreamHandle::of(other)));
  take(device(ordinal).make_wait(gpu::StreamHandle::of(stream), so_far.handle()));
}

void bind_host_gpus(nb::module_& module) {
  nb::class_<HostGpus>(module, "HostGpus", "For the package's own tests.")
      .def(nb::init<std::uint64_t>(), nb::arg("seed"))
      .def("allocate", &HostGpus::allocate, nb::arg("device"), nb::arg("bytes"))
      .def("create_stream", &HostGpus::create_stream, nb::arg("device"))
      .def("write", &HostGpus::write, nb::arg("device"), nb::arg("stream"), nb::arg("to"), nb::arg("bytes").noconvert())
      .def("make_wait", &HostGpus::make_wait, nb::arg("device"), nb::arg("stream"), nb::arg("other"))
      .def("hold", &HostGpus::hold, nb::arg("is_held"))
      .def("strike", &HostGpus::strike, nb::arg("device"));
  module.def("why_no_gpus", []() -> std::optional<std::string> {
    const auto platform = gpu::open_driver_platform();
    if (platform) return std::nullopt;
    return platform.error().message();
  });
}

}  // namespace freshet::python
