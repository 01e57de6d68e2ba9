// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/graph.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"

namespace freshet::python {

namespace nb = nanobind;

void bind_graph(nb::module_& module) {
  nb::class_<Graph>(module, "Graph")
      .def_static("parse",
                  [](const std::string& json) {
                    const Unlocked unlocked;
                    return Graph{take(parse_graph_json(json))};
                  })
      .def("json", [](const Graph& graph) { return to_graph_json(*graph.architecture); })
      .def("tensor_names", [](const Graph& graph) {
        std::vector<std::string> names;
        for (const TensorSpec& spec : graph.architecture->tensors()) names.push_back(spec.name);
        return names;
      });
}

}  // namespace freshet::python
