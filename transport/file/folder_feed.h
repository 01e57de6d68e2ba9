#pragma once

/// What appears in a folder of versions (transport/file/weight_folder.h), one after another. The folder is looked at
/// every half second, since a shared file system tells nobody of what other hosts do; where the kernel can tell
/// (inotify, on this host) it is looked at sooner.

#include <chrono>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/file_descriptor.h"
#include "core/result.h"
#include "transport/file/weight_folder.h"

namespace freshet::file {

/// One thread at a time.
class FolderFeed {
 public:
  struct Options {
    bool every = false;       ///< Each version in order of its number; otherwise the newest.
    VersionNumber after = 0;  ///< Only those above it.
    Duration poll = std::chrono::milliseconds(500);
    Duration writing_max = std::chrono::seconds(5);
  };
  /// The folder need not be there yet.
  FolderFeed(std::string folder, Options options);

  /// Waits for the next version and reads it; null at the deadline, or when `stop` (a descriptor, or -1) is readable.
  /// The weights are valid until the next call. An error is of one version, which is passed over from then on: it could
  /// not be read for as long as a writer may take that does not rename what it wrote into place.
  Result<const FolderWeights*> next(Time deadline, int stop);

 private:
  std::optional<VersionNumber> find_next() const;
  Status read(VersionNumber number);
  void watch();
  bool wait(Time until, int stop);

  std::string folder_;
  Options options_;
  VersionNumber last_ = 0;  ///< Read, or passed over.
  FolderWeights weights_;
  struct Failing {
    VersionNumber number = 0;
    Time since;
  };
  std::optional<Failing> failing_;
  FileDescriptor inotify_;
};

}  // namespace freshet::file
