// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How `freshet subscribe` keeps versions as files. A reported version survives the host's end: each file is
/// synced before it gets its name, and its folder afterwards.
///
/// A number is no proof of a version: numbers that were lost begin at 1 again. So a file that is there stays if it has
/// other bytes, and the version is refused (already_exists). A version's file is dated by the version's publish; of two
/// versions, the one that was published later is the newer one, whatever their numbers.

#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "transport/file/weight_folder.h"
#include "transport/subscriber.h"

namespace freshet::cli {

/// Where a subscriber's versions are written. One thread at a time; ended before the subscriber.
class VersionWriter {
 public:
  virtual ~VersionWriter() = default;
  /// Writes the version, whole or not at all, and points to it as the newest. On a full disk the versions beyond those
  /// to keep go first; out_of_space when that was not enough. Returns its path.
  Result<std::string> write(const std::string& model, Snapshot& snapshot);
  /// Removes the versions beyond those to keep.
  Status remove_old(const std::string& model);

 protected:
  /// `keep`: so many versions, the newest ones, stay; nothing: all of them. The version that the folder's `latest`
  /// names stays too.
  explicit VersionWriter(std::optional<std::uint64_t> keep) : keep_(keep) {}

 private:
  virtual Result<std::string> write_one(const std::string& model, Snapshot& snapshot) = 0;
  /// Removes all but the newest `count`, and what those or `latest` need. Whether it removed anything.
  virtual Result<bool> remove_all_but(const std::string& model, std::uint64_t count) = 0;

  const std::optional<std::uint64_t> keep_;
};

/// A folder of versions as safetensors files, DIR/MODEL@V.safetensors, each whole or not there at all, and a symbolic
/// link DIR/latest that points to the newest; it is replaced in one step, so a reader finds one whole version or
/// another. On a file system without symbolic links, DIR/latest is a file with the newest one's name and a line break.
class VersionFolder final : public VersionWriter {
 public:
  /// Makes the folder when there is none.
  static Result<std::unique_ptr<VersionWriter>> open(const std::string& folder, std::optional<std::uint64_t> keep);

 private:
  VersionFolder(std::string folder, std::optional<std::uint64_t> keep)
      : VersionWriter(keep), folder_(std::move(folder)) {}
  Result<std::string> write_one(const std::string& model, Snapshot& snapshot) override;
  Result<bool> remove_all_but(const std::string& model, std::uint64_t count) override;
  Status point_latest_to(const std::string& file_name) const;
  std::string name_of_latest() const;

  std::string folder_;
};

/// A folder of weight_vNNNNNN (transport/file/weight_folder.h), with deltas where a version follows the one before. The
/// base of a kept delta is kept too.
class WeightVersionFolder final : public VersionWriter {
 public:
  static Result<std::unique_ptr<VersionWriter>> open(const std::string& folder, std::size_t full_every,
                                                     std::optional<std::uint64_t> keep);

 private:
  WeightVersionFolder(std::string folder, file::WeightFolderWriter writer, std::optional<std::uint64_t> keep)
      : VersionWriter(keep), folder_(std::move(folder)), writer_(std::move(writer)) {}
  /// Takes the snapshot when it succeeds: the next version's delta needs its bytes.
  Result<std::string> write_one(const std::string& model, Snapshot& snapshot) override;
  Result<bool> remove_all_but(const std::string& model, std::uint64_t count) override;

  std::string folder_;
  file::WeightFolderWriter writer_;
  Snapshot before_;
};

}  // namespace freshet::cli
