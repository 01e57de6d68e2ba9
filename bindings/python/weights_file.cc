// SPDX-License-Identifier: Apache-2.0
// safetensors files, by the reader and the writer that the command has.

#include "bindings/python/weights_file.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/tensors.h"
#include "core/safetensors/model_file.h"
#include "core/safetensors/safetensors.h"

namespace freshet::python {

namespace nb = nanobind;

namespace {

using Row = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

/// [(spec, bytes)]; each row of bytes keeps the file's memory.
nb::list read_safetensors(const std::string& path) {
  auto read = [&] {
    const Unlocked unlocked;
    return ModelFile::read(path);
  }();
  auto owned = std::make_unique<ModelFile>(take(std::move(read)));
  ModelFile* const file = owned.get();
  const nb::capsule owner(file, [](void* held) noexcept { delete static_cast<ModelFile*>(held); });
  owned.release();
  nb::list answer;
  for (std::size_t i = 0; i < file->tensors().size(); ++i) {
    const MutableBytes memory = file->memory_of(i);
    answer.append(
        nb::make_tuple(to_python(file->tensors()[i].spec), nb::cast(Row(memory.data(), {memory.size()}, owner))));
  }
  return answer;
}

void write(const std::string& path, const Tensors& tensors) {
  const Status written = [&] {
    const Unlocked unlocked;
    return write_safetensors(path, tensors.views(), {}, true);
  }();
  take(written);
}

}  // namespace

void bind_weights_file(nb::module_& module) {
  module.def("read_safetensors", &read_safetensors, nb::arg("path"));
  module.def("write_safetensors", &write, nb::arg("path"), nb::arg("tensors"));
}

}  // namespace freshet::python
