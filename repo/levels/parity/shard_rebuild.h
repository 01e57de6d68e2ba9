// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The share of a rank whose host was lost, computed from what the others of its group have.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/parity/erasure.h"
#include "repo/levels/parity/group_image.h"
#include "repo/levels/parity/image.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/terms/stripes.h"

namespace freshet::levels {

/// All parity of the plan's version, for whom a rebuild failed and cannot say who is damaged.
std::vector<BadShard> parity_is_useless(const RestartPlan& plan, std::uint32_t rank, const Error& why);

/// A rank's shard of a version, computed from the others of its group. One thread at a time.
class ShardRebuild {
 public:
  /// `plan` names the rank that holds each shard, and each parity, of the group. If a shard or a parity is
  /// damaged, the error is corrupt, and `bad` names the ranks that hold it. If a peer does not answer, the error is the
  /// peer's, and is_no_damage() is true for it.
  static Result<std::unique_ptr<ShardRebuild>> open(ShardSource& source, const RestartPlan& plan, std::uint32_t rank,
                                                    std::vector<BadShard>& bad);

  const ShardHeader& header() const { return header_; }  ///< Everything is stored in this shard.
  const TensorTable& table() const { return *table_; }
  /// The payload's next bytes, proved; nothing at its end. Errors as open().
  Result<std::optional<Bytes>> next(std::vector<BadShard>& bad);

 private:
  /// Bytes of one stripe, and whence they come.
  struct Segment {
    std::uint32_t block = 0;  ///< Which of the stripe's.
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> have;  ///< Blocks of the stripe, data first (Erasure::rebuild()).
    std::vector<ShardImage*> images;  ///< Of each, begun.
  };
  ShardRebuild() : erasure_(1, 1) {}
  Status find_parity(ShardSource& source, const RestartPlan& plan, std::vector<BadShard>& bad);
  Status find_shares(ShardSource& source, const RestartPlan& plan, std::vector<BadShard>& bad);
  Result<std::optional<Segment>> next_segment();
  Status finish_first(MutableBytes out, std::vector<BadShard>& bad);

  std::uint32_t rank_ = 0;
  ShardHeader header_;
  std::shared_ptr<const TensorTable> table_;
  ParityOf group_;
  Stripes stripes_;
  Erasure erasure_;
  GroupImage image_;
  std::uint32_t position_ = 0;
  std::vector<StoredPiece> pieces_;
  std::vector<std::optional<ShardImage>> shares_;  ///< By position; none: not to be had.
  std::vector<std::optional<ShardImage>> rows_;    ///< Likewise.
  std::vector<Holder> parity_holders_;             ///< Of this version.

  // Where it is, and how far it asked.
  std::deque<Segment> begun_;
  std::uint64_t begun_bytes_ = 0;
  std::size_t asked_piece_ = 0;
  std::uint64_t asked_at_ = 0;  ///< Of that piece.
  std::size_t piece_ = 0;
  std::uint64_t at_ = 0;
  std::size_t digest_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace freshet::levels
