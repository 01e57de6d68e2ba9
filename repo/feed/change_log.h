#pragma once

/// The order in which versions of this repository came to stand as they do: four bytes for each change. Private to this
/// room; others read it as Repository::changes().

#include <cstdint>
#include <memory>
#include <vector>

#include "core/mutex.h"
#include "repo/feed.h"
#include "repo/version_forest.h"

namespace freshet {

/// Any thread.
class ChangeLog {
 public:
  mutable Mutex mutex;  ///< Taken before the catalog's.

  /// The catalog is read anew: what was told so far is another life. Until begin(), nothing can be read.
  void end() FRESHET_EXCLUDES(mutex);
  /// `forest` has the versions, `order` their places in it as their commits follow each other.
  void begin(std::shared_ptr<const VersionForest> forest, std::vector<VersionForest::Node> order, std::uint64_t commit)
      FRESHET_EXCLUDES(mutex);
  /// The version at `node` stands differently since that commit. Whoever makes it so holds `mutex` all the while, so
  /// that who sees it and asks for position() then is told one behind it.
  void append(VersionForest::Node node, std::uint64_t commit) FRESHET_REQUIRES(mutex) {
    order_.push_back(node);
    commit_ = commit;
  }

  FeedPosition position() const FRESHET_EXCLUDES(mutex);
  struct Piece {
    FeedPosition from;
    std::uint64_t end = 0;
    std::uint64_t commit = 0;
    std::shared_ptr<const VersionForest> forest;  ///< Locked as the catalog is.
    std::vector<VersionForest::Node> nodes;
  };
  /// At most `most` changes. unavailable while the catalog is being read.
  Result<Piece> after(const FeedPosition& position, std::size_t most) const FRESHET_EXCLUDES(mutex);

 private:
  std::uint64_t life_ FRESHET_GUARDED_BY(mutex) = 0;
  std::uint64_t commit_ FRESHET_GUARDED_BY(mutex) = 0;
  std::shared_ptr<const VersionForest> forest_ FRESHET_GUARDED_BY(mutex);
  std::vector<VersionForest::Node> order_ FRESHET_GUARDED_BY(mutex);
};

}  // namespace freshet
