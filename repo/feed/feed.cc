#include "repo/feed.h"

#include <algorithm>
#include <atomic>

#include "repo/repository.h"

namespace freshet {

std::uint64_t feed_tick() {
  static std::atomic<std::uint64_t> ticks{0};
  return ++ticks;
}

void SeenPosition::note(const HeardPosition& heard) {
  const MutexLock lock(mutex_);
  if (!seen_) {
    seen_ = heard;
  } else if (seen_->position.life == heard.position.life) {
    seen_->position.change = std::max(seen_->position.change, heard.position.change);
    seen_->asked = std::max(seen_->asked, heard.asked);
    seen_->heard = std::max(seen_->heard, heard.heard);
  } else if (heard.asked >= seen_->heard) {
    seen_ = heard;
  } else if (heard.heard > seen_->asked) {
    // Each may be the later one. Whoever is asked from now on tells.
    seen_ = HeardPosition{.position = {}, .asked = std::max(seen_->asked, heard.asked), .heard = feed_tick()};
  }
}

std::optional<FeedPosition> SeenPosition::position() const {
  const MutexLock lock(mutex_);
  if (!seen_) return std::nullopt;
  return seen_->position;
}

std::optional<HeardPosition> SeenPosition::heard() const {
  const MutexLock lock(mutex_);
  return seen_;
}

Result<FeedPage> Repository::changes(const FeedPosition&, std::uint32_t) const {
  return fail(Code::unsupported, "this repository cannot be followed");
}

Result<std::vector<PinnedVersion>> Repository::all_pins() const {
  return fail(Code::unsupported, "this repository does not tell who has pinned what");
}

Status Repository::annotate(const VersionName&, const Annotations&) {
  return fail(Code::unsupported, "what is said of this repository's versions cannot be changed");
}

Result<ReplicaAnswer> Repository::match_for_all(const ReplicaQuery&) {
  return fail(Code::unsupported, "this repository follows no other providers");
}

}  // namespace freshet
