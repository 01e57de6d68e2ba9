// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When to publish, for a training loop in Python.

#include <nanobind/nanobind.h>

namespace freshet::python {

void bind_scheduler(nanobind::module_& module);

}  // namespace freshet::python
