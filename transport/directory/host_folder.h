// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The folder of a host directory. It may go away under a living process: at logout, or when old files are cleaned
/// away. A lock on it (flock, shared) tells systemd-tmpfiles to leave it alone while anybody uses it. If it was removed
/// all the same, it is found again at its path once somebody has made it anew.

#include <memory>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet {

/// Any thread.
class HostFolder {
 public:
  using Descriptor = std::shared_ptr<const FileDescriptor>;

  /// Makes the folder if there is none (its parent must exist). failed_precondition when somebody else could write
  /// there.
  static Result<std::shared_ptr<HostFolder>> open(std::string path);

  const std::string& path() const { return path_; }
  /// Of the folder that is at the path now, if it is a proper one; otherwise of the one that was there last.
  Descriptor descriptor() FRESHET_EXCLUDES(mutex_);
  /// Makes the folder again if it is gone. True if it is another one than before.
  Result<bool> make_again() FRESHET_EXCLUDES(mutex_);

 private:
  HostFolder(std::string path, Descriptor descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}
  static Result<Descriptor> open_checked(const std::string& path);
  bool is_at_path(const Descriptor& descriptor) const;
  /// The one that is held, taken anew if another one is at the path.
  Result<Descriptor> look() FRESHET_EXCLUDES(mutex_);

  const std::string path_;
  Mutex mutex_;
  Descriptor descriptor_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
