// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The subscribers that serve a model at this moment, for `freshet report`.

#include "bindings/cli/frame/output.h"
#include "transport/ask/ask_stat.h"

namespace freshet::cli {

/// Asks the publisher, and waits for two seconds at most: {"newest", "current", "hold", "subscribers": [{"label",
/// "pid", "serving", "channel", "silent", "failed"}], "left_out"}. If no publisher answers: {"error", "subscribers":
/// []}. The answer is the publisher's word: texts are shortened, and 1000 subscribers are listed at most.
Json serving_now(const StatQuery& query);

}  // namespace freshet::cli
