// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `freshet top --metrics`: a publisher and its subscribers in Prometheus' text format (version 0.0.4).

#include <string>

#include "bindings/cli/frame/output.h"

namespace freshet::cli {

/// `stat` is one model of a publisher's answer (transport/ask/ask_stat.h): untrusted. A member that is missing, or of
/// another type, gives no sample. Each series stands once, whatever the labels of the subscribers are.
std::string metrics_text(const std::string& model, const Json& stat);

}  // namespace freshet::cli
