// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the kernel may ask of the slow folder, answered by the backing folder once the operation's time is over.

#include <array>
#include <atomic>
#include <cstdint>

#include "tests/support/slow_folder/backing.h"
#include "tests/support/slow_folder/faults.h"
#include "tests/support/slow_folder/pace.h"

struct fuse_lowlevel_ops;

namespace freshet::slow {

/// What was asked for. `kOthers` is what has no counter of its own: folders, links, attributes, syncs.
enum Counter { kLookups, kGetattrs, kOpens, kReads, kWrites, kOthers, kBytes, kCounters };
inline constexpr const char* kCounterNames[kCounters] = {"lookups", "getattrs", "opens", "reads",
                                                         "writes",  "others",   "bytes"};

/// Any thread.
struct SlowFs {
  SlowFs(FileDescriptor root, bool is_cached) : backing(std::move(root)), cached(is_cached) {}

  Backing backing;
  const bool cached;  ///< Whether the kernel may remember names, attributes and pages.
  Pace pace;
  Faults faults;
  std::array<std::atomic<std::uint64_t>, kCounters> counters{};
};

const fuse_lowlevel_ops& operations();

}  // namespace freshet::slow
