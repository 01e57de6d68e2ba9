// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A program's messages to the keeper of its tiers.

#include <nanobind/nanobind.h>

namespace freshet::python {

void bind_tier(nanobind::module_& module);

}  // namespace freshet::python
