#include "bindings/python/errors.h"

#include <nanobind/nanobind.h>

namespace freshet::python {

namespace nb = nanobind;

void set_python_error(const Error& error) {
  try {
    const nb::object make = nb::module_::import_("freshet._errors").attr("error_of");
    // A message may hold a path of any bytes.
    const std::string& message = error.message();
    const nb::object text =
        nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
    const std::string_view code = name_of(error.code());
    const nb::object exception = make(nb::str(code.data(), code.size()), text);
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

}  // namespace freshet::python
