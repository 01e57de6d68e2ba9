// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Parity of a group's shares (level `group` with XOR or Reed-Solomon): each rank makes its rows, version by version.
///
/// A parity shard's payload: the blocks that its rank made for this version, then the digests of all its blocks, then a
/// digest of these. Blocks over which no share changed are inherited from an older parity shard of the same rank.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/parity/erasure.h"
#include "repo/levels/parity/group_image.h"
#include "repo/levels/parity/image.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/levels/terms/stripes.h"

namespace freshet::levels {

inline constexpr std::size_t kDigestBytes = 16;

/// The digests at the end of a parity shard's payload. corrupt when they are not what was written.
Result<std::vector<Digest>> parity_digests(const ShardHeader& header, Bytes trailer);
/// Where they are.
ByteRange parity_trailer(const ShardHeader& header);

/// One rank's rows, one version after another. One thread at a time.
class ParityMaker {
 public:
  struct Group {
    std::string model;
    std::string host;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;             ///< Of the job.
    std::vector<std::uint32_t> members;  ///< Of the group, ascending; `rank` is one.
    std::uint32_t losses = 1;
    std::shared_ptr<const TensorTable> table;
  };
  explicit ParityMaker(Group group);

  struct Hooks {
    std::function<void()> half;  ///< When half of the blocks are written.
    std::function<bool()> stop;
  };
  /// Reads the shares of the version from their ranks, each chunk proved, and writes this rank's parity. All have to
  /// have the version at `local`. REQUIRES: the parity that was made before is still in the folder, whole, with what it
  /// inherits.
  Status make(ShardSource& source, ShardFolders& folders, const Version& version, std::uint64_t step, Pace& pace,
              const Hooks& hooks);

 private:
  struct Made {
    ShardHeader header;
    std::vector<Digest> digests;
    std::vector<ShardHeader> shares;  ///< By position in the group.
  };
  Result<std::vector<ShardHeader>> heads_of(ShardSource& source, const Version& version) const;
  /// A block to compute, and where it is in the row's part of a region.
  struct Block {
    std::size_t index = 0;  ///< Of all.
    std::uint32_t row = 0;
    const Region* region = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  void mark(std::uint32_t position, std::uint64_t image_offset, std::uint64_t bytes, std::vector<bool>& blocks) const;
  std::vector<bool> changed_blocks(const Made& now) const;
  std::vector<Block> fill_records(Made& now) const;

  const Group group_;
  const Stripes stripes_;
  const Erasure erasure_;
  std::vector<std::vector<StoredPiece>> pieces_;  ///< By position.
  GroupImage image_;
  std::uint32_t position_ = 0;
  std::optional<Made> last_;
};

}  // namespace freshet::levels
