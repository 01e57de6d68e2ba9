// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/tensors.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings/python/errors.h"
#include "core/base/format.h"

namespace freshet::python {

namespace nb = nanobind;

Role role_named(const std::string& tensor, const std::string& role) {
  for (const Role one : {Role::weight, Role::buffer, Role::optimizer, Role::opaque}) {
    if (name_of(one) == role) return one;
  }
  raise(Code::invalid_argument,
        format("tensor {}: role \"{}\" is none of weight, buffer, optimizer, opaque", tensor, role));
}

TensorSpec Tensors::spec_of(std::string name, const std::string& dtype, Shape shape, const std::string& role) {
  const std::optional<DType> type = dtype_named(dtype);
  if (!type) raise(Code::invalid_argument, format("tensor {}: no dtype {}", name, dtype));
  const Role meant = role_named(name, role);
  TensorSpec spec{.name = std::move(name), .dtype = *type, .shape = std::move(shape), .role = meant};
  take(spec.check());
  return spec;
}

void Tensors::add(std::string name, const std::string& dtype, Shape shape, ByteArray bytes, const std::string& role) {
  TensorView view{.spec = spec_of(std::move(name), dtype, std::move(shape), role),
                  .data = bytes_of(bytes.data(), bytes.shape(0))};
  if (view.spec.bytes() != view.data.size()) {
    raise(Code::invalid_argument, format("tensor {}: {} bytes are not {}", view.spec.name, view.data.size(),
                                         describe(view.spec.dtype, view.spec.shape)));
  }
  arrays_.push_back(std::move(bytes));
  views_.push_back(std::move(view));
}

void Tensors::add_on_device(std::string name, const std::string& dtype, Shape shape, std::uintptr_t address,
                            std::int32_t device, std::uintptr_t stream, nb::object kept, const std::string& role) {
  TensorView view{.spec = spec_of(std::move(name), dtype, std::move(shape), role)};
  view.data = {reinterpret_cast<const std::byte*>(address), view.spec.bytes()};
  view.place = {.memory = MemoryKind::device, .device = device, .stream = stream};
  kept_.push_back(std::move(kept));
  views_.push_back(std::move(view));
}

nb::tuple to_python(const TensorSpec& spec) {
  nb::list shape;
  for (const std::uint64_t extent : spec.shape) shape.append(extent);
  const std::string_view dtype = name_of(spec.dtype);
  const std::string_view role = name_of(spec.role);
  return nb::make_tuple(spec.name, nb::str(dtype.data(), dtype.size()), nb::tuple(shape),
                        nb::str(role.data(), role.size()));
}

void bind_tensors(nb::module_& module) {
  nb::class_<Tensors>(module, "Tensors")
      .def(nb::init<>())
      .def("add", &Tensors::add, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("bytes").noconvert(),
           nb::arg("role"))
      .def("add_on_device", &Tensors::add_on_device, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("address"), nb::arg("device"), nb::arg("stream"), nb::arg("kept"), nb::arg("role"))
      .def("__len__", [](const Tensors& tensors) { return tensors.views().size(); });
}

}  // namespace freshet::python
