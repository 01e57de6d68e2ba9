#pragma once

/// What one provider knows of all: a match index that is fed by following each provider, this one as well, and the
/// answers that are given from it. Lines of ancestors are known over all providers, so that an excluded lineage is left
/// out wherever its versions rest.
///
/// It lags: what another provider acknowledged is here as soon as that one was asked again, 50 to 400 ms later. A client
/// that has to have what it wrote or saw says so (ReplicaQuery::needs); that provider is then asked at once, and the
/// answer waits for it. An answer is in any case at least as new as its points say.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "core/mutex.h"
#include "repo/cluster/follow_machine.h"
#include "repo/feed.h"
#include "repo/match/structure_index.h"

namespace freshet::cluster {

/// The index, and who told what is in it. Any thread.
class ReplicaIndex {
 public:
  void apply(std::uint32_t provider, const FeedChange& change) FRESHET_EXCLUDES(mutex_);
  /// Forgets the provider's versions; lines stay known.
  void drop(std::uint32_t provider) FRESHET_EXCLUDES(mutex_);
  MatchAnswer match(const MatchQuery& query, const std::optional<VersionId>& excluded) const {
    return index_.match(query, excluded);
  }
  /// Who told the version; nothing when it is not there.
  std::optional<std::uint32_t> told_by(const VersionId& id) const FRESHET_EXCLUDES(mutex_);
  std::size_t size() const FRESHET_EXCLUDES(mutex_);

 private:
  struct Told {
    std::uint32_t provider = 0;
    std::optional<double> quality;
    Digest tags;  ///< Of the tags' digests.
  };
  StructureIndex index_;
  mutable Mutex mutex_;
  std::unordered_map<VersionId, Told> told_ FRESHET_GUARDED_BY(mutex_);
};

/// Any thread; each provider's feed is driven by one thread.
class Replica final : public AnswersForAll {
 public:
  Replica(FollowTimes times, const Clock& clock) : times_(times), clock_(clock) {}

  /// Where a provider's changes go; the same for the same provider. Lives as long as the replica.
  FeedSink& sink(const std::string& provider) FRESHET_EXCLUDES(mutex_);
  /// From now on the provider is one of those that an answer has to be of.
  void add(const std::string& provider) FRESHET_EXCLUDES(mutex_);
  /// What its machine has come to.
  void set_followed(const std::string& provider, const FollowMachine::Followed& followed) FRESHET_EXCLUDES(mutex_);
  /// Waits until `at`, or until somebody needs the provider's newest; true for the latter, once. False at once after
  /// stop().
  bool wait_for_need(const std::string& provider, Time at) FRESHET_EXCLUDES(mutex_);
  void stop() FRESHET_EXCLUDES(mutex_);
  bool is_stopped() const FRESHET_EXCLUDES(mutex_);

  /// Waits at most kWaitMax for what the query needs.
  Result<ReplicaAnswer> match(const ReplicaQuery& query) override FRESHET_EXCLUDES(mutex_);
  std::size_t versions() const { return index_.size(); }
  /// True when all providers are followed now.
  bool is_complete() const FRESHET_EXCLUDES(mutex_);

  static constexpr Duration kWaitMax = std::chrono::milliseconds(100);

 private:
  class Sink final : public FeedSink {
   public:
    Sink(ReplicaIndex& index, std::uint32_t number) : index_(index), number_(number) {}
    void apply(const FeedChange& change) override { index_.apply(number_, change); }
    void drop() override { index_.drop(number_); }

   private:
    ReplicaIndex& index_;
    const std::uint32_t number_;
  };
  struct Provider {
    std::unique_ptr<Sink> sink;
    FollowMachine::Followed followed;
    bool is_member = false;
    bool needed = false;
    CondVar wanted;
  };
  Provider& provider(const std::string& id) FRESHET_REQUIRES(mutex_);
  Status await(const std::vector<ReplicaQuery::Need>& needs, Time deadline) FRESHET_REQUIRES(mutex_);
  /// The first provider of whom more is needed than is known; null for none.
  const std::string* missing(const std::vector<ReplicaQuery::Need>& needs) const FRESHET_REQUIRES(mutex_);

  const FollowTimes times_;
  const Clock& clock_;
  ReplicaIndex index_;
  mutable Mutex mutex_;
  CondVar progressed_;
  bool stopped_ FRESHET_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::unique_ptr<Provider>> providers_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::string> names_ FRESHET_GUARDED_BY(mutex_);  ///< By number.
};

}  // namespace freshet::cluster
