// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Processes that put versions into a bucket and read them back: by themselves, or through an owner.

#include <string>
#include <vector>

namespace freshet::benchmarks {

/// Arguments: PLACE TENSORS BYTES (of each tensor). A place is a bucket's, or an owner's address. Lines in: "store",
/// "load", "put N" (so many versions with fewer tensors), "match N" (for the newest version's layers); a line out with
/// milliseconds by the clock and of this process's processor time. Returns the exit code.
int run_bucket_worker(const std::vector<std::string>& arguments);

/// Owns a place, a bucket's or a folder, and serves it. Arguments: PLACE ADDRESS. For each line in, a line out with 0
/// and the milliseconds of this process's processor time since the line before.
int run_bucket_owner(const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
