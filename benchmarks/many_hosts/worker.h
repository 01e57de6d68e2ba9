// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A process that puts versions into a bucket and reads them back.

#include <string>
#include <vector>

namespace freshet::benchmarks {

/// Arguments: PLACE TENSORS BYTES (of each tensor). Lines in: "store" or "load"; a line out with milliseconds by the
/// clock and of this process's processor time. Returns the exit code.
int run_bucket_worker(const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
