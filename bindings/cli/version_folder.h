#pragma once

/// How `freshet subscribe` keeps versions as files.

#include <memory>
#include <string>

#include "core/result.h"
#include "transport/file/weight_folder.h"
#include "transport/subscriber.h"

namespace freshet::cli {

/// Where a subscriber's versions are written. One thread at a time; ended before the subscriber.
class VersionWriter {
 public:
  virtual ~VersionWriter() = default;
  /// Writes the version, whole or not at all, and points to it as the newest. Returns its path.
  virtual Result<std::string> write(const std::string& model, Snapshot& snapshot) = 0;
};

/// A folder of versions as safetensors files, DIR/MODEL@V.safetensors, each whole or not there at all, and a symbolic
/// link DIR/latest that points to the newest; it is replaced in one step, so a reader finds one whole version or
/// another.
class VersionFolder final : public VersionWriter {
 public:
  /// Makes the folder when there is none.
  static Result<std::unique_ptr<VersionWriter>> open(const std::string& folder);

  Result<std::string> write(const std::string& model, Snapshot& snapshot) override;

 private:
  explicit VersionFolder(std::string folder) : folder_(std::move(folder)) {}
  Status point_latest_to(const std::string& file_name) const;

  std::string folder_;
};

/// A folder of weight_vNNNNNN (transport/file/weight_folder.h), with deltas where a version follows the one before.
class WeightVersionFolder final : public VersionWriter {
 public:
  static Result<std::unique_ptr<VersionWriter>> open(const std::string& folder, std::size_t full_every);

  /// Takes the snapshot when it succeeds: the next version's delta needs its bytes.
  Result<std::string> write(const std::string& model, Snapshot& snapshot) override;

 private:
  explicit WeightVersionFolder(file::WeightFolderWriter writer) : writer_(std::move(writer)) {}
  file::WeightFolderWriter writer_;
  Snapshot before_;
};

}  // namespace freshet::cli
