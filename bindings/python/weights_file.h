// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace freshet::python {

/// read_safetensors() and write_safetensors().
void bind_weights_file(nanobind::module_& module);

}  // namespace freshet::python
