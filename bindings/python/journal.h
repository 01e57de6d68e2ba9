// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The journal of a server's answers (bindings/serving/journal.h), as freshet.serving has it.

#include <nanobind/nanobind.h>

namespace freshet::python {

void bind_journal(nanobind::module_& module);

}  // namespace freshet::python
