// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/records.h"

#include <nanobind/stl/string.h>

namespace freshet::python {

namespace nb = nanobind;

nb::dict to_python(const CurrentVersion& current) {
  nb::dict answer;
  answer["epoch"] = current.epoch;
  answer["version"] = current.version;
  answer["hold"] = current.hold;
  return answer;
}

nb::object text_to_python(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

nb::dict metrics_to_python(const Metrics& metrics) {
  nb::dict answer;
  for (const auto& [name, value] : metrics) answer[text_to_python(name)] = value;
  return answer;
}

nb::dict tags_to_python(const Tags& tags) {
  nb::dict answer;
  for (const auto& [key, value] : tags) answer[text_to_python(key)] = text_to_python(value);
  return answer;
}

}  // namespace freshet::python
