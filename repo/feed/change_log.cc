#include "repo/feed/change_log.h"

#include <algorithm>

#include "core/env.h"

namespace freshet {

void ChangeLog::end() {
  const MutexLock lock(mutex);
  const std::uint64_t before = life_;
  while (life_ == before || life_ == 0) life_ = random_u64(system_env());
  forest_ = nullptr;
  order_.clear();
}

void ChangeLog::begin(std::shared_ptr<const VersionForest> forest, std::vector<VersionForest::Node> order,
                      std::uint64_t commit) {
  const MutexLock lock(mutex);
  forest_ = std::move(forest);
  order_ = std::move(order);
  commit_ = commit;
}

FeedPosition ChangeLog::position() const {
  const MutexLock lock(mutex);
  return {.life = life_, .change = order_.size()};
}

Result<ChangeLog::Piece> ChangeLog::after(const FeedPosition& position, std::size_t most) const {
  const MutexLock lock(mutex);
  if (forest_ == nullptr) return fail(Code::unavailable, "the repository's catalog is being read");
  const bool goes_on = position.life == life_ && position.change <= order_.size();
  Piece piece{.from = {.life = life_, .change = goes_on ? position.change : 0},
              .end = order_.size(),
              .commit = commit_,
              .forest = forest_};
  const auto first = order_.begin() + static_cast<std::ptrdiff_t>(piece.from.change);
  const auto count = std::min<std::size_t>(most, piece.end - piece.from.change);
  piece.nodes.assign(first, first + static_cast<std::ptrdiff_t>(count));
  return piece;
}

}  // namespace freshet
