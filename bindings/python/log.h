// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The lines that C++ logs (core/base/log.h), on their way to Python's `logging`: a queue, from which a thread of
/// Python's takes.

#include <nanobind/nanobind.h>

namespace freshet::python {

void bind_log(nanobind::module_& module);

}  // namespace freshet::python
