/// What a repository tells those who follow it.

#include <unordered_map>
#include <unordered_set>

#include "repo/local_repository.h"

namespace freshet {
namespace {

/// Of the graphs in a page, after which no other one is begun.
constexpr std::size_t kGraphBytesMax = std::size_t{4} << 20;

std::size_t bytes_in(const MatchGraph& graph) {
  return graph.size() * (sizeof(SlotId) + sizeof(std::uint64_t) + sizeof(std::uint32_t) + 1) +
         graph.parts().inputs.size() * sizeof(std::uint32_t);
}

}  // namespace

Result<FeedPage> LocalRepository::changes(const FeedPosition& after, std::uint32_t most) const {
  most = std::clamp<std::uint32_t>(most, 1, kFeedChangesMax);
  FRESHET_ASSIGN(const ChangeLog::Piece piece, impl_->changes.after(after, most));
  FeedPage page{.from = piece.from, .to = piece.from.change, .end = piece.end, .commit = piece.commit};

  struct Stands {
    VersionName name;
    std::shared_ptr<const VersionRow> row;
  };
  std::vector<Stands> versions;
  {
    const MutexLock lock(impl_->mutex);
    for (const VersionForest::Node node : piece.nodes) {
      versions.push_back({.name = piece.forest->name(node), .row = piece.forest->row(node)});
    }
  }
  std::unordered_map<Digest, std::shared_ptr<const MatchGraph>> graphs;
  std::unordered_set<VersionId> told;
  std::size_t bytes = 0;
  for (const Stands& version : versions) {
    const VersionRow& row = *version.row;
    if (bytes >= kGraphBytesMax) break;
    ++page.to;
    if (!told.insert(row.id).second) continue;
    FeedChange change{.name = version.name, .id = row.id, .ancestor = row.ancestor, .retired = row.retired};
    if (!row.retired) {
      change.quality = row.quality;
      change.has_weights = row.has_weights;
      change.commit = row.commit;
      change.tags = row.tags;
      const auto [known, is_new] = graphs.try_emplace(row.architecture);
      if (is_new) {
        known->second = impl_->graph_of(row.architecture);
        if (known->second != nullptr) bytes += bytes_in(*known->second);
      }
      change.graph = known->second;
    }
    page.changes.push_back(std::move(change));
  }
  return page;
}

// Null where its architecture is damaged, or went with its last version since the row was read: what the row has become
// is told further on.
std::shared_ptr<const MatchGraph> LocalRepository::Impl::graph_of(const Digest& digest) const {
  if (auto known = graphs.find(digest)) return known;
  const auto architecture = architecture_of(digest);
  if (!architecture) return nullptr;
  std::shared_ptr<const MatchGraph> graph = MatchGraph::of(**architecture);
  graphs.add(digest, graph);
  return graph;
}

std::optional<HeardPosition> LocalRepository::heard() const {
  const std::uint64_t asked = feed_tick();
  const FeedPosition position = impl_->changes.position();
  return HeardPosition{.position = position, .asked = asked, .heard = feed_tick()};
}

void LocalRepository::answer_for_all_with(std::shared_ptr<AnswersForAll> replica) {
  const MutexLock lock(impl_->mutex);
  impl_->for_all.swap(replica);
}

Result<ReplicaAnswer> LocalRepository::match_for_all(const ReplicaQuery& query) {
  std::shared_ptr<AnswersForAll> replica;
  {
    const MutexLock lock(impl_->mutex);
    replica = impl_->for_all;
  }
  if (replica == nullptr) return fail(Code::unsupported, "this repository follows no other providers");
  return replica->match(query);
}

}  // namespace freshet
