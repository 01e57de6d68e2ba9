// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Small records as Python's dictionaries, with C++'s names; durations are seconds.

#include <nanobind/nanobind.h>

#include <chrono>

#include "core/base/clock.h"
#include "core/model/manifest.h"
#include "transport/current.h"

namespace freshet::python {

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
nanobind::dict to_python(const CurrentVersion& current);
nanobind::dict metrics_to_python(const Metrics& metrics);
nanobind::dict tags_to_python(const Tags& tags);
/// Text that somebody else wrote, of any bytes.
nanobind::object text_to_python(const std::string& text);

}  // namespace freshet::python
