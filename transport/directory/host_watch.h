// SPDX-License-Identifier: Apache-2.0
#pragma once

/// News of a host directory: which models got a new entry, current record or server. By inotify, so nobody looks again
/// and again.

#include <string>

#include "core/base/result.h"
#include "core/host/folder_news.h"

namespace freshet {

/// One thread at a time.
class HostWatch {
 public:
  /// unsupported when the system has no watches left; the caller then looks itself, now and then.
  static Result<HostWatch> open(const std::string& folder);

  int descriptor() const { return news_.descriptor(); }
  /// Takes what has come. True when it may concern `model`.
  bool take(const std::string& model);

 private:
  explicit HostWatch(FolderNews news) : news_(std::move(news)) {}
  FolderNews news_;
};

}  // namespace freshet
