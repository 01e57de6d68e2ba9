// SPDX-License-Identifier: Apache-2.0
#pragma once

/// News of the files in a folder, by inotify, so that nobody looks again and again. They are hints: the kernel may lose
/// some (IN_Q_OVERFLOW), and it hears nothing of what another host does to a shared file system.

#include <sys/inotify.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

/// One thread at a time.
class FolderNews {
 public:
  /// `events` are inotify's. not_found or failed_precondition when there is no such folder. out_of_space, logged once:
  /// this user has no inotify instances or watches left. The caller then looks itself, now and then.
  static Result<FolderNews> open(const std::string& folder, std::uint32_t events);

  /// Readable when there is something to take.
  int descriptor() const { return descriptor_.get(); }
  /// Calls back for all that has come, until the first error.
  using Each = std::function<Status(std::uint32_t events, std::string_view name)>;
  Status take(const Each& each = {}) const;

 private:
  explicit FolderNews(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

}  // namespace freshet
