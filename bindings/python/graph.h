// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Architectures, as graph files tell them.

#include <nanobind/nanobind.h>

#include <memory>

#include "core/model/graph.h"

namespace freshet::python {

struct Graph {
  std::shared_ptr<const Architecture> architecture;
};

void bind_graph(nanobind::module_& module);

}  // namespace freshet::python
