// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A folder that is shown as a slow file system would: each operation takes its time, all share one line, everything is
/// counted, and errors come on request. A FUSE file system of ours does that, in a process that ends with this one,
/// whatever ends it, and leaves no mount.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

struct SlowFolderOptions {
  std::string backing;  ///< What is shown: a folder.
  std::string mount;    ///< Where; made when absent.
  Duration latency{};
  double bytes_per_second = 0;  ///< 0: no limit.
  bool cached = true;           ///< Whether the kernel remembers names, attributes and pages.
};

/// What was asked of the folder.
struct SlowCounters {
  std::uint64_t lookups = 0;
  std::uint64_t getattrs = 0;
  std::uint64_t opens = 0;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t others = 0;  ///< Folders, links, attributes, syncs.
  std::uint64_t bytes = 0;   ///< That reads gave.

  std::uint64_t operations() const { return lookups + getattrs + opens + reads + writes + others; }
};

/// One thread at a time.
class SlowFolder {
 public:
  /// unavailable, with the reason, where this machine or this build has no FUSE.
  static Result<std::unique_ptr<SlowFolder>> open(const SlowFolderOptions& options);
  ~SlowFolder();
  SlowFolder(const SlowFolder&) = delete;
  SlowFolder& operator=(const SlowFolder&) = delete;

  const std::string& mount() const { return options_.mount; }
  pid_t pid() const { return pid_; }

  Result<SlowCounters> counters();
  Status reset();
  /// The kernel forgets names, attributes and pages.
  Status invalidate();
  Status set_pace(Duration latency, double bytes_per_second);
  /// `operation` ("read", "open", "lookup", "getattr", "create", "write", "fsync", …; "any") on `path` (below the
  /// mount; "*": on any) fails with that errno once `after` of them worked.
  Status fail_on(const std::string& operation, int error, const std::string& path, std::uint64_t after = 0);
  /// The process that asks for that is killed (SIGKILL) before anything is done, once.
  Status kill_on(const std::string& operation, const std::string& path, std::uint64_t after = 0);
  /// Reads of that file end at that byte, whatever its size is said to be.
  Status cut(const std::string& path, std::uint64_t bytes);
  /// Takes all faults back.
  Status heal();

 private:
  explicit SlowFolder(const SlowFolderOptions& options) : options_(options) {}

  Result<std::string> ask(const std::string& command);
  Status tell(const std::string& command);
  Result<std::string> read_line();

  const SlowFolderOptions options_;
  pid_t pid_ = -1;
  FileDescriptor to_;
  FileDescriptor from_;
  std::string unread_;
};

}  // namespace freshet
