#pragma once

/// How others follow what a repository has: a feed of changes, in the order of their commits, from which whoever begins
/// with nothing comes to the same match index, and stays there; and the answer of one provider that follows all others.
///
/// A change says how one version stands, not what was done to it: put, retired, of another quality. So a version that
/// changes again is in the feed again, hearing of it twice does no harm, and the beginning of the feed is a snapshot.
///
/// A position counts the changes of one **life** of a repository, which ends when its catalog is read anew: when it is
/// opened, or after a write that failed. Lives are numbered at random. Nothing of a feed is durable besides the
/// versions themselves; whoever followed another life begins anew.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/digest.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "core/result.h"
#include "repo/match/query.h"

namespace freshet {

struct FeedPosition {
  std::uint64_t life = 0;    ///< 0: none; where everybody begins.
  std::uint64_t change = 0;  ///< How many changes are known.
  bool operator==(const FeedPosition&) const = default;
};

/// How a version stands.
struct FeedChange {
  VersionName name;
  VersionId id;
  std::optional<VersionId> ancestor;
  bool retired = false;                     ///< Then only its line is told.
  std::shared_ptr<const MatchGraph> graph;  ///< Null where its record is damaged: then only its line is known.
  std::optional<double> quality;
  bool has_weights = true;
  std::uint64_t commit = 0;  ///< Of its put.
  std::vector<Digest> tags;  ///< tag_digest() of each.
};

/// A piece of the feed, without a gap: what follows `from`, up to change `to` of its life.
struct FeedPage {
  FeedPosition from;  ///< Where was asked; or change 0, when it is to be begun anew.
  std::uint64_t to = 0;
  std::uint64_t end = 0;            ///< How many changes there are by now.
  std::uint64_t commit = 0;         ///< The repository's, after change `end`.
  std::vector<FeedChange> changes;  ///< At most to - from.change: what changed several times may be told once.
};

inline constexpr std::uint32_t kFeedChangesMax = 4096;  ///< In a page.

/// A position of a repository, and when it was told: after `asked` and before `heard`, which are ticks of this process
/// (feed_tick()). So of two positions in different lives the later one can be told where it can be known.
struct HeardPosition {
  FeedPosition position;
  std::uint64_t asked = 0;
  std::uint64_t heard = 0;
};
/// Grows with each call. Any thread.
std::uint64_t feed_tick();

/// What a client has seen of one repository: a position that covers all that it was told. Any thread.
class SeenPosition {
 public:
  void note(const HeardPosition& heard) FRESHET_EXCLUDES(mutex_);
  /// Nothing when nothing was seen. Life 0 when two lives were seen and nobody knows which came first: who has to have
  /// all that was seen cannot be sure of anybody, until that repository itself is asked again.
  std::optional<FeedPosition> position() const FRESHET_EXCLUDES(mutex_);
  std::optional<HeardPosition> heard() const FRESHET_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::optional<HeardPosition> seen_ FRESHET_GUARDED_BY(mutex_);
};

/// A match to be answered by one provider for all.
struct ReplicaQuery {
  MatchQuery match;                   ///< Without exclude_lineage and pin_by, which are the client's business.
  std::optional<VersionId> excluded;  ///< Neither this version nor its ancestors.
  /// What the answer has to know of, by provider: all that the client wrote or saw.
  struct Need {
    std::string provider;
    FeedPosition position;
  };
  std::vector<Need> needs;
  Duration wait = Duration::zero();  ///< How long to wait for that; the provider sets a limit of its own.
};

/// Up to where a provider is followed.
struct FollowedPoint {
  std::string provider;
  FeedPosition position;
  std::uint64_t commit = 0;  ///< The answer has all of that provider's commits up to this one, or newer ones.
};

struct ReplicaAnswer {
  MatchAnswer match;                   ///< `as_of` is the greatest commit of all points; `without` names who is not
                                       ///< followed now: their versions may be missing.
  std::vector<std::string> providers;  ///< Of each row, who has told it; empty where it is not known any more.
  std::vector<FollowedPoint> points;   ///< Of every provider that is followed.
};

/// Answers for all providers. Any thread.
class AnswersForAll {
 public:
  virtual ~AnswersForAll() = default;
  /// failed_precondition when what is needed is not known here in time.
  virtual Result<ReplicaAnswer> match(const ReplicaQuery& query) = 0;
};

}  // namespace freshet
