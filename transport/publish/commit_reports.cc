// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/commit_reports.h"

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet {

void CommitReports::begin(VersionNumber version) {
  MutexLock lock(mutex_);
  reports_[version];
}

void CommitReports::abandon(VersionNumber version) {
  MutexLock lock(mutex_);
  reports_.erase(version);
  finished_.notify_all();
}

void CommitReports::finish(VersionNumber version, Result<CommitReport> report) {
  MutexLock lock(mutex_);
  reports_[version] = std::move(report);
  // The first is finished: versions are sealed in order, and two at most wait for that.
  if (reports_.size() > kReportsMax) reports_.erase(reports_.begin());
  finished_.notify_all();
}

Result<CommitReport> CommitReports::wait(VersionNumber version, Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  const StopWakes wakes(stop, mutex_, finished_);
  MutexLock lock(mutex_);
  for (;;) {
    const auto at = reports_.find(version);
    if (at == reports_.end())
      return fail(Code::not_found, format("version {} is none of the last published ones", version));
    if (at->second) return *at->second;
    if (stop.stop_requested()) {
      return fail(Code::cancelled, format("the wait for version {} was stopped by its caller", version));
    }
    if (!finished_.wait_until(mutex_, deadline)) {
      return fail(Code::timed_out, format("version {} is not sealed yet", version));
    }
  }
}

}  // namespace freshet
