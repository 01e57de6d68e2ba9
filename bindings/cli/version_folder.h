#pragma once

/// A folder of versions as safetensors files, DIR/MODEL@V.safetensors, each whole or not there at all, and a symbolic
/// link DIR/latest that points to the newest; it is replaced in one step, so a reader finds one whole version or
/// another.

#include <string>

#include "core/result.h"
#include "transport/subscriber.h"

namespace freshet::cli {

/// One thread at a time.
class VersionFolder {
 public:
  /// Makes the folder when there is none.
  static Result<VersionFolder> open(const std::string& folder);

  /// Writes the version and moves `latest` to it. Returns the file's path.
  Result<std::string> write(const std::string& model, const Snapshot& snapshot) const;

 private:
  explicit VersionFolder(std::string folder) : folder_(std::move(folder)) {}
  Status point_latest_to(const std::string& file_name) const;

  std::string folder_;
};

}  // namespace freshet::cli
