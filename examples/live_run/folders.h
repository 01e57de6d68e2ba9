// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The two folders of a run: the report, which stays, and the run's own (sockets, journals, configuration), which goes.

#include <string>

#include "core/base/result.h"

namespace freshet::live {

/// Holds summary.json, the plots and the repository. Locked while a run uses it. What an earlier run left in it is
/// replaced; a folder that holds something else is refused.
class ReportFolder {
 public:
  /// Empty: live_run_report in the current folder, or live_run_report-2, -3, … while other runs use those.
  static Result<ReportFolder> open(const std::string& wanted);
  ReportFolder(ReportFolder&& other) noexcept;
  ReportFolder& operator=(ReportFolder&&) = delete;
  ~ReportFolder();

  const std::string& path() const { return path_; }  ///< Absolute.
  std::string repository() const { return path_ + "/repository"; }

 private:
  ReportFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  static Result<ReportFolder> open_at(const std::string& path);
  std::string path_;
  int lock_;
};

/// A folder under the temporary one, for this user alone; removed with everything in it.
class RunFolder {
 public:
  static Result<RunFolder> create();
  RunFolder(RunFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  const std::string& path() const { return path_; }

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace freshet::live
