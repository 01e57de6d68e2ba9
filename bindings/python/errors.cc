// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/errors.h"

#include <nanobind/nanobind.h>

#include <array>

namespace freshet::python {

namespace nb = nanobind;

namespace {

/// By code. They stay for ever: a thread may be told of an error while the interpreter ends.
std::array<PyObject*, static_cast<std::size_t>(Code::io_error) + 1> g_classes{};

}  // namespace

void load_error_classes() {
  const nb::object classes = nb::module_::import_("freshet._errors").attr("BY_CODE");
  for (std::size_t i = 0; i < g_classes.size(); ++i) {
    const std::string_view code = name_of(static_cast<Code>(i));
    g_classes[i] = nb::object(classes[nb::str(code.data(), code.size())]).release().ptr();
  }
}

void set_python_error(const Error& error) {
  // No Python code runs here: an interpreter that ends takes its threads away where they run some, and from inside of a
  // C++ handler that ends the process. A message may hold a path of any bytes.
  const std::string& message = error.message();
  const nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
  if (text.is_valid()) PyErr_SetObject(g_classes[static_cast<std::size_t>(error.code())], text.ptr());
}

}  // namespace freshet::python
