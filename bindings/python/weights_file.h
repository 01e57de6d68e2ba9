// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace freshet::python {

/// read_safetensors() and write_safetensors(): files of weights as Python's arrays, in memory of their own. Any thread;
/// they let other threads of Python run. Errors as core/safetensors/safetensors.h has them, which name the path.
void bind_weights_file(nanobind::module_& module);

}  // namespace freshet::python
