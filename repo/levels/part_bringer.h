// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Brings what a rank stores of a version to the repository, by itself, as parts of a put (repo/part_puts.h). So the
/// bytes of a version go there from all ranks at once, and no rank holds more than a few of them.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/part_puts.h"

namespace freshet::levels {

/// The architecture of a version of these tensors. Equal at every rank.
Result<std::shared_ptr<const Architecture>> architecture_of(const TensorTable& table);

/// The bytes [first, first + bytes.size()) of a piece's own bytes, as parts of tensor `tensor`; three at most.
/// REQUIRES: they are inside of the piece.
std::vector<TensorPart> parts_of_piece(const Piece& piece, std::uint64_t first, Bytes bytes, std::uint32_t tensor);

/// One thread at a time.
class PartBringer {
 public:
  /// `folders` and `cut` outlive this; the folders have the rank's shards. `batch_bytes`: that are held at a time.
  static Result<PartBringer> open(std::shared_ptr<Repository> repository, const ShardFolders& folders,
                                  const ShareCut& cut, std::uint64_t batch_bytes);

  struct Hooks {
    std::function<void()> half;  ///< When half of the bytes have come.
    std::function<bool()> stop;
  };
  /// Brings what the rank stores of these tensors (indices of the table, ascending). corrupt: a shard here is damaged.
  /// cancelled when `stop` says so. Errors as PartPuts::put_parts().
  Status bring(const Version& version, const PutToken& token, std::span<const std::uint32_t> tensors, Pace& pace,
               const Hooks& hooks);

 private:
  PartBringer(std::shared_ptr<Repository> repository, const ShardFolders& folders, const ShareCut& cut,
              std::uint64_t batch_bytes)
      : repository_(std::move(repository)), folders_(&folders), cut_(&cut), batch_bytes_(batch_bytes) {}

  std::shared_ptr<Repository> repository_;
  const ShardFolders* folders_;
  const ShareCut* cut_;
  std::uint64_t batch_bytes_;
  std::vector<std::uint32_t> in_architecture_;  ///< By index in the cut's table.
};

}  // namespace freshet::levels
