// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The folders of this host in which shards rest: DIR/MODEL/ with a file for each shard, one for each list of tensors,
/// and one with what each rank has promised. FORMAT.md has names and bytes. The first folder is written, all are read.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "core/base/file_io.h"
#include "core/base/fork_guard.h"
#include "core/base/result.h"
#include "repo/levels/shards/shard.h"
#include "repo/levels/terms/terms.h"

namespace freshet::levels {

/// A shard that is there, as far as its head tells.
struct HeldShard {
  ShardKey key;
  std::uint64_t step = 0;
  std::vector<Version> needs;
  std::uint64_t bytes = 0;  ///< Of the file.
  bool bytes_only = false;  ///< Kept for others that need bytes of it (demote()).
  ShardKind kind = ShardKind::own;
  std::vector<std::uint32_t> members;  ///< Of parity: whose shares it stands for,
  std::uint32_t losses = 0;            ///< and how many of them may be lost.
  std::string folder;
};

/// A shard's records, and the cut that they are of.
struct DescribedShard {
  ShardHeader header;
  ShareCut cut;
};

/// What a rank has promised, durably.
struct Promises {
  VersionNumber number_max = 0;  ///< No version with a number up to this one is ever begun again.
  std::uint64_t incarnation_max = 0;
  std::vector<VersionNumber> acknowledged = std::vector<VersionNumber>(kLevels);  ///< By level, the newest.
  void add(const Promises& other);
};

/// The name of a shard's file.
std::string whole_file(const ShardKey& key, ShardKind kind);

/// Any thread, but for writing, which is for one thread at a time.
class ShardFolders {
 public:
  /// For a rank that writes: makes the first folder's MODEL/, takes the rank's lock there, removes what an earlier life
  /// left half-written. already_exists when another process has the lock; invalid_argument for a bad name.
  static Result<std::unique_ptr<ShardFolders>> open(Env& env, std::vector<std::string> folders, std::string model,
                                                    std::uint32_t rank);
  /// For who only reads. Folders that are not there are empty.
  static Result<std::unique_ptr<ShardFolders>> open_to_read(std::vector<std::string> folders, std::string model);
  /// The models that have a folder in any of these, by name.
  static Result<std::vector<std::string>> models(const std::vector<std::string>& folders);

  /// What is there. Files that are no whole shards are left out, and told in `damaged` if that is given.
  /// Of a shard that is there more than once the whole one, and the first folder's. `unsure`: whether there are files
  /// that could not be looked at, so that nobody knows what they are.
  std::vector<HeldShard> scan(std::vector<std::string>* damaged = nullptr, bool* unsure = nullptr) const;
  /// Of all ranks together. corrupt, with the file's name, for a record that no rank wrote.
  Result<Promises> promises() const;
  /// Whether another rank's process has the first folder, too.
  bool is_shared() const;

  /// Of that kind, and of no other. not_found when it is in none of the folders.
  Result<std::vector<std::byte>> read_head(const ShardKey& key, ShardKind kind) const;
  /// The same, decoded. corrupt: the file has another shard's head.
  Result<ShardHeader> read_header(const ShardKey& key, ShardKind kind) const;
  /// The same with its tensors, each checked against the other: of an own shard or a copy.
  Result<DescribedShard> describe(const ShardKey& key, ShardKind kind) const;
  /// Bytes of the payload, one range after another. Not proved.
  Result<std::vector<std::byte>> read(const ShardKey& key, std::span<const ByteRange> ranges, ShardKind kind) const;
  /// Likewise, each range into its place. After an error the places hold anything.
  Status read_into(const ShardKey& key, std::span<const PlacedRange> ranges, ShardKind kind) const;
  Result<std::vector<std::byte>> read_table(const Digest& digest) const;

  Status write_table(const TensorTable& table);
  /// The file is there, whole and durable, or not at all. `half` is called when half of the payload is written.
  Status write(const std::vector<std::byte>& head, const ShardKey& key, std::span<const Bytes> payload,
               const std::function<void()>& half);
  /// A copy of another rank's shard, or of those bytes of it that its newer ones need; or parity. `next` gives the
  /// payload's bytes, in order and all of them.
  Status write_streamed(const std::vector<std::byte>& head, const ShardKey& key, ShardKind kind, bool bytes_only,
                        const std::function<Result<std::optional<Bytes>>()>& next);
  /// Whether the first folder has a copy, or some bytes of one.
  bool has_copy(const ShardKey& key) const;
  bool has_whole_copy(const ShardKey& key) const;
  Status write_promises(const Promises& promises);
  /// From the first folder.
  Status remove(const ShardKey& key, ShardKind kind);
  /// It is no version any more, and only these bytes of its payload are kept (ascending); the rest is given back to the
  /// file system, where that can be.
  Status demote(const ShardKey& key, std::span<const ByteRange> kept, ShardKind kind);

  const std::string& model() const { return model_; }
  const std::string& first() const { return folders_.front(); }

 private:
  ShardFolders(std::vector<std::string> folders, std::string model)
      : folders_(std::move(folders)), model_(std::move(model)) {}
  std::string path_in(const std::string& folder, const std::string& file) const;
  Result<OpenedFile> open_shard(const ShardKey& key, ShardKind kind) const;
  /// Writes `temporary`, syncs it, gives it its name, and syncs the folder. Leaves no temporary when it fails.
  Status write_beside(const std::string& path, const std::string& temporary,
                      const std::function<Status(WritableFile&)>& content);

  // Constant after construction.
  const std::vector<std::string> folders_;
  const std::string model_;
  Env* env_ = nullptr;  ///< Null for who only reads.
  std::uint32_t rank_ = 0;
  ParentsDescriptor lock_;
};

}  // namespace freshet::levels
