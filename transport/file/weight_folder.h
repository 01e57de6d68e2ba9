// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Folders of versions as reinforcement-learning trainers and engines exchange them: FOLDER/weight_vNNNNNN, each a
/// Hugging Face checkpoint (safetensors files and model.safetensors.index.json), either whole or a delta against the
/// version before. The index's metadata says which:
///   version, base_version   six digits or a number
///   delta_encoding          "xor": bytes to be combined with the base's by exclusive or; "overwrite": u32 count, u32
///                           byte positions, then so many new bytes. Absent: a whole checkpoint.
///   compression_format      "zstd": each tensor of a delta is one zstd frame, held as U8
///   checksum_format         "xxh3-128": of each tensor's bytes after the delta, 32 hexadecimal digits in the delta
///   file's
///                           __metadata__ under the tensor's name
/// A delta leads from version N-1 to N, and has the tensors that changed. FOLDER/latest, where it is, names the newest
/// ("weight_v000007", perhaps after a run's name and a slash). The layout is that of slime's disk deltas and of Stitch.
///
/// What is read is hostile until checked: names must stay inside the folder, sizes must be what the tensors' are, and a
/// version whose checksums do not fit is corrupt and never handed out.
///
/// A writer need not rename what it wrote into place. A version is whole when every file that its index names is there,
/// every file that "-00001-of-00004" promises beside it, and each file has as many bytes as its header says. Who
/// reserves a file's whole length before it writes, and promises no other file, cannot be told from who is done.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/tensor.h"
#include "core/safetensors/safetensors.h"

namespace freshet::file {

inline constexpr VersionNumber kFolderNumberMax = 999'999'999;
inline constexpr std::uint64_t kIndexBytesMax = std::uint64_t{64} << 20;
inline constexpr std::size_t kChainMax = 4096;  ///< Deltas between a version and the whole one that it starts from.

/// Of a version's files: says which tensors are in which other.
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

/// "weight_v000007". Six digits, more when the number has more.
std::string folder_name_of(VersionNumber number);
/// not_found when it is no such name.
Result<VersionNumber> number_of_folder(std::string_view name);

/// A version read from a folder. One thread at a time.
class FolderWeights {
 public:
  VersionNumber number() const { return number_; }
  /// In ascending order of names; valid until the next advance() or destruction.
  std::vector<TensorView> tensors() const;
  /// Of the tensors() that the last read or advance changed, by index.
  const std::vector<std::uint32_t>& changed() const { return changed_; }

 private:
  friend class WeightFolderReader;
  struct Slot {
    TensorSpec spec;
    MutableBytes memory;  ///< Of one of files_.
  };
  std::vector<SafetensorsFile> files_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> changed_;
  VersionNumber number_ = 0;
};

/// Reads. One thread at a time.
class WeightFolderReader {
 public:
  /// not_found when there is no such folder.
  static Result<WeightFolderReader> open(const std::string& folder);

  /// The newest version that is there: what `latest` names, or else the highest number. not_found when there is none.
  Result<VersionNumber> latest() const;
  /// The numbers that are there, ascending.
  Result<std::vector<VersionNumber>> versions() const;
  /// Brings `weights` (new, or an earlier version read from this folder) to that version: by deltas where they lead
  /// there from what it has, otherwise from the newest whole version on. When it fails, `weights` has to be read anew:
  /// its number is 0 then. unavailable: a writer is not done with it, and `weights` is as it was; or a file changed
  /// meanwhile. corrupt names the version and the tensor; unsupported an encoding that is not known here.
  Status read(VersionNumber number, FolderWeights& weights) const;

  /// The state of a version's files from outside, without their content: equal as long as nobody writes to them.
  std::string look_of(VersionNumber number) const;

  const std::string& folder() const { return folder_; }

 private:
  explicit WeightFolderReader(std::string folder) : folder_(std::move(folder)) {}
  Status read_chain(VersionNumber number, FolderWeights& weights) const;
  static Status load(const std::string& path, FolderWeights& weights, std::vector<bool>& changed);
  static Status apply(const std::string& path, const std::string& encoding, const std::string& compression,
                      const std::string& checksum, FolderWeights& weights, std::vector<bool>& changed);
  std::string folder_;
};

/// Writes. A version is there whole or not at all: it is made aside and renamed. One thread at a time.
class WeightFolderWriter {
 public:
  struct Options {
    /// A whole checkpoint at least so often; 1: always. Between them deltas, where a version follows the one before.
    std::size_t full_every = 10;
    bool sync = false;  ///< Survive a crash of the host.
  };
  /// Makes the folder when there is none.
  static Result<WeightFolderWriter> open(const std::string& folder, Options options);

  struct Version {
    VersionNumber number = 0;
    std::vector<TensorView> tensors;
    SafetensorsMetadata metadata;  ///< Of whole checkpoints; a delta has its checksums there.
  };
  /// Writes `version`, as a delta if `base` is the version that was written last, precedes it by one and has the same
  /// tensors; a whole one otherwise. Then moves `latest`. Returns the version's path. What is there already with equal
  /// tensors is kept, and only `latest` moves; already_exists when other tensors are there, which stay.
  Result<std::string> write(const Version& version, const Version* base);

 private:
  WeightFolderWriter(std::string folder, Options options) : folder_(std::move(folder)), options_(options) {}
  std::string folder_;
  Options options_;
  VersionNumber last_written_ = 0;
  std::size_t since_full_ = 0;
};

}  // namespace freshet::file
