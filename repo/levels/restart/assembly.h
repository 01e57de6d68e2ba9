// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whole tensors, and any parts of them, from the shards of one version: for a rank that restarts, for what brings a
/// version to the repository, and for the command line. Every chunk is proved against its digest before it counts.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/levels/restart/restart_plan.h"
#include "repo/levels/shards/shard.h"
#include "repo/levels/shards/shard_folders.h"
#include "transport/group/group.h"

namespace freshet::levels {

/// Where shards are read from. One thread at a time.
class ShardSource {
 public:
  virtual ~ShardSource() = default;
  using Bytes = Result<group::Answer>;

  virtual Bytes head(const Holder& holder, std::uint32_t ranks) = 0;
  virtual Bytes table(std::uint32_t holder, const Digest& digest) = 0;
  /// A read that was begun.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual Bytes wait() = 0;
  };
  virtual std::unique_ptr<Pending> read(const Holder& holder, std::uint32_t ranks, std::vector<ByteRange> ranges) = 0;
  static Bytes answer(Result<std::vector<std::byte>> bytes);
  /// A read that ended.
  static std::unique_ptr<Pending> done(Bytes bytes);
  /// Reads into place what this process's own files have. False: they do not, or it cannot be read; then the places
  /// hold anything.
  virtual bool read_into(const Holder&, std::uint32_t /*ranks*/, std::span<const PlacedRange>) { return false; }
};

/// The head of that shard. corrupt: it is another shard's.
Result<ShardHeader> read_head(ShardSource& source, const Holder& holder, std::uint32_t ranks);
/// A shard that is of no use where it is, and why.
BadShard bad_at(const Holder& holder, std::string_view why);

/// This process's folders alone: every shard is held by rank 0, which is it.
class FolderSource final : public ShardSource {
 public:
  explicit FolderSource(const ShardFolders& folders) : folders_(folders) {}
  Bytes head(const Holder& holder, std::uint32_t ranks) override;
  Bytes table(std::uint32_t holder, const Digest& digest) override;
  std::unique_ptr<Pending> read(const Holder& holder, std::uint32_t ranks, std::vector<ByteRange> ranges) override;
  bool read_into(const Holder& holder, std::uint32_t ranks, std::span<const PlacedRange> ranges) override;

 private:
  const ShardFolders& folders_;
};

/// A limit on bytes per second; 0 for none. One thread at a time.
class Pace {
 public:
  explicit Pace(std::uint64_t bytes_per_second, const Clock& clock = system_clock())
      : bytes_per_second_(bytes_per_second), clock_(clock) {}
  bool is_limited() const { return bytes_per_second_ != 0; }
  /// Waits before so many more bytes. cancelled when `stop` says so.
  Status wait_for(std::uint64_t bytes, const std::function<bool()>& stop);

 private:
  const std::uint64_t bytes_per_second_;
  const Clock& clock_;
  Time free_at_{};
};

/// The list of tensors of that digest, from the first of the plan's holders that has it whole; `first` is asked first.
Result<std::shared_ptr<const TensorTable>> find_table(ShardSource& source, const RestartPlan& plan, std::uint32_t first,
                                                      const Digest& digest);

/// True: a peer did not answer. Its shards may be whole, so no other version may take this one's place for that.
inline bool is_no_damage(const Error& error) {
  return error.code() == Code::timed_out || error.code() == Code::unavailable || error.code() == Code::cancelled;
}

/// Some of a tensor, and where it is wanted.
struct WantedPiece {
  Piece piece;  ///< Its tensor is an index of the version's.
  MutableBytes out;
};

/// A version as its shards' heads tell it.
class ShardedVersion {
 public:
  /// Reads the heads. On damage the shards are named in `bad`, and the error is corrupt. Where a peer did not answer,
  /// the error is that one (is_no_damage()). `self`: which holder is this
  /// process; it is preferred. REQUIRES: the plan names the holders of shards, and it outlives this.
  static Result<ShardedVersion> open(ShardSource& source, const RestartPlan& plan, std::uint32_t self,
                                     std::vector<BadShard>& bad);

  const TensorTable& tensors() const { return *table_; }
  const ShardHeader& head(std::uint32_t rank) const { return heads_[rank]; }
  const RestartPlan& plan() const { return *plan_; }
  /// Who last changed each tensor: the latest of those who changed a piece of it.
  const std::vector<Version>& writers() const { return writers_; }

  /// Fills what is wanted, proved. Each wanted byte comes from exactly one shard. Errors as open(); cancelled when
  /// `stop` says so. After an error the memory in `wanted` may hold any bytes. `askers`: the number of ranks
  /// that fetch at the same time.
  struct Fetched {
    std::uint64_t bytes = 0;
    std::uint64_t copied_bytes = 0;  ///< Of them, what came from other ranks' copies.
    std::set<Level> from;
  };
  Result<Fetched> fetch(ShardSource& source, std::span<const WantedPiece> wanted, std::vector<BadShard>& bad,
                        Pace* pace = nullptr, const std::function<bool()>& stop = {}, std::size_t askers = 1) const;

 private:
  struct Task;
  struct Batch;
  ShardedVersion() = default;
  std::vector<Batch> plan_batches(std::span<const WantedPiece> wanted) const;
  const std::vector<Holder>& holders_of(const Version& version, std::uint32_t rank) const;
  std::vector<ByteRange> ranges_of(const Batch& batch, const Holder& holder) const;
  bool take(const Batch& batch, ::freshet::Bytes bytes, std::span<const WantedPiece> wanted) const;
  bool take_in_place(ShardSource& source, const Batch& batch, const Holder& holder,
                     std::span<const WantedPiece> wanted) const;

  const RestartPlan* plan_ = nullptr;
  std::shared_ptr<const TensorTable> table_;
  std::vector<ShardHeader> heads_;
  std::vector<ShareCut> cuts_;  ///< By shard's rank.
  std::vector<Version> writers_;
  std::map<std::pair<Version, std::uint32_t>, std::vector<Holder>> holders_;
};

}  // namespace freshet::levels
