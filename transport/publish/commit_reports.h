// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The outcomes of the last versions of a publisher, for callers that wait for one.

#include <map>
#include <optional>
#include <stop_token>

#include "core/base/mutex.h"
#include "transport/publisher.h"

namespace freshet {

/// Any thread.
class CommitReports {
 public:
  void begin(VersionNumber version) FRESHET_EXCLUDES(mutex_);
  /// It never came about, and nobody was told of it.
  void abandon(VersionNumber version) FRESHET_EXCLUDES(mutex_);
  void finish(VersionNumber version, Result<CommitReport> report) FRESHET_EXCLUDES(mutex_);

  Result<CommitReport> wait(VersionNumber version, Duration at_most, const std::stop_token& stop)
      FRESHET_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kReportsMax = 1024 + 3;  ///< Three may be in the making.

  Mutex mutex_;
  CondVar finished_;
  /// Nothing yet of those that were begun.
  std::map<VersionNumber, std::optional<Result<CommitReport>>> reports_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
