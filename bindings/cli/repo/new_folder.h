// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A new repository's folder. The command that made it removes it again if it fails before anybody could use it.

#include <filesystem>
#include <set>
#include <string>

namespace freshet::cli {

/// Records the folder's state. One thread at a time.
class NewFolder {
 public:
  explicit NewFolder(const std::string& place);

  /// Removes the repository that came into being there since, with the folders that were made for it, unless it has a
  /// version or belongs to providers by now, or somebody has it open. Files that were there before stay.
  void remove_unused() const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path first_made_;        ///< The outermost folder that was missing; empty when none was.
  std::set<std::filesystem::path> before_;  ///< What was in it, by name.
  bool was_repository_ = true;
};

}  // namespace freshet::cli
