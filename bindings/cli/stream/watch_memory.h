// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The last file that `publish --watch` published of a folder: at its next start the publisher must not take its
/// subscribers back to the folder's oldest file. The memory is a small file of the user's state folder, one for each
/// model and folder. Files count by their time of modification; those of one time by their names.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "core/base/result.h"

namespace freshet::cli {

/// One thread at a time.
class WatchMemory {
 public:
  /// Never fails: without a state folder, or with a file that cannot be read, nothing is remembered.
  static WatchMemory open(const std::string& model, const std::string& folder);

  bool is_empty() const { return last_.empty(); }
  /// Of the folder; what was published last is as old as itself.
  bool is_newer(const std::string& name, std::int64_t modified_ns) const;
  /// The name of the file that was published last.
  const std::string& last() const { return last_; }
  /// Whether that file of the command line was published, as it is now.
  bool has_given(const std::string& path) const;

  /// The file was published. The log says once if that cannot be kept.
  void note(const std::string& name, std::int64_t modified_ns);
  void note_given(const std::string& path);

 private:
  void read();
  void write();

  std::string path_;  ///< Empty: there is no place.
  std::int64_t newest_ns_ = 0;
  std::set<std::string> names_;  ///< Those of newest_ns_.
  std::string last_;
  std::map<std::string, std::int64_t> given_;  ///< By absolute path.
  bool told_ = false;
};

}  // namespace freshet::cli
