// SPDX-License-Identifier: Apache-2.0
#pragma once

/// News of a host directory: which models got a new entry, current record or server. By inotify, so nobody looks again
/// and again.

#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

/// One thread at a time.
class HostWatch {
 public:
  /// unsupported when the system has no watches left; the caller then looks itself, now and then.
  static Result<HostWatch> open(const std::string& folder);

  int descriptor() const { return descriptor_.get(); }
  /// Takes what has come. True when it may concern `model`.
  bool take(const std::string& model);

 private:
  explicit HostWatch(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

}  // namespace freshet
