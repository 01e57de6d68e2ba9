// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `freshet top --metrics`: publishers and their subscribers in Prometheus' text format (version 0.0.4).

#include <string>
#include <vector>

#include "bindings/cli/frame/output.h"

namespace freshet::cli {

/// Of the models of publishers' answers (bindings/cli/top/sample.h): untrusted. A member that is missing, or of
/// another type, gives no sample. Each series stands once, whatever the labels of the subscribers are.
std::string metrics_text(const std::vector<Json>& models);

}  // namespace freshet::cli
