// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The versions that appear in a folder (transport/file/weight_folder.h), one after another. The folder is looked at
/// every half second, since a shared file system tells nobody of what other hosts do; where the kernel can tell
/// (inotify, on this host) it is looked at sooner.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/host/folder_news.h"
#include "transport/file/weight_folder.h"

namespace freshet::file {

/// One thread at a time.
class FolderFeed {
 public:
  struct Options {
    bool every = false;       ///< Each version in order of its number; otherwise the newest.
    VersionNumber after = 0;  ///< Only those above it.
    Duration poll = std::chrono::milliseconds(500);
    /// A version that cannot be read and whose files nobody changed for so long is told of, and no longer waited for.
    Duration writing_max = std::chrono::seconds(5);
  };
  /// The folder need not be there yet.
  FolderFeed(std::string folder, Options options);

  /// Waits for the next version that is whole and reads it; null at the deadline, or when `stop` (a descriptor, or -1)
  /// is readable. The weights are valid until the next call. An error is of one version, told once. The feed looks at
  /// that version again. The version comes when it can be read after all, unless a later one came before it.
  Result<const FolderWeights*> next(Time deadline, int stop);

 private:
  /// A version that could not be read.
  struct Failing {
    std::string look;  ///< Of its files, as they were last.
    Time since;        ///< They look so.
    Time next;         ///< When it is worth another look.
    bool told = false;
  };

  std::vector<VersionNumber> find_candidates() const;
  bool is_due(VersionNumber number, Time now);
  bool is_given_up(VersionNumber number, Time now) const;
  void take(VersionNumber number);
  /// The error, when it is time to tell it.
  std::optional<Error> on_failure(VersionNumber number, const Error& error, Time now);
  Status read(VersionNumber number);
  bool wait(Time until, int stop);

  std::string folder_;
  Options options_;
  VersionNumber last_ = 0;  ///< That was read.
  FolderWeights weights_;
  std::map<VersionNumber, Failing> failing_;  ///< Above last_.
  std::optional<FolderNews> news_;
};

}  // namespace freshet::file
