#include <unordered_map>

#include "repo/serve/messages.h"

// What followers of a repository are told, and what one provider answers for all.

namespace freshet::rpc {
namespace {

std::optional<VersionId> read_id(const wire::Id* id) {
  return id == nullptr ? std::nullopt : std::optional<VersionId>(read(*id));
}

using GraphNumbers = std::unordered_map<const MatchGraph*, std::uint32_t>;

Offset<wire::Change> put_change(Builder& builder, const FeedChange& change, const GraphNumbers& graphs) {
  const auto name = put(builder, change.name);
  const wire::Id id = wire_id(change.id);
  const wire::Id ancestor = change.ancestor ? wire_id(*change.ancestor) : wire::Id();
  std::vector<wire::Digest> tags;
  for (const Digest& tag : change.tags) tags.emplace_back(tag.low, tag.high);
  const auto tag_vector =
      tags.empty() ? Offset<flatbuffers::Vector<const wire::Digest*>>() : builder.CreateVectorOfStructs(tags);
  flatbuffers::Optional<std::uint32_t> graph;
  if (change.graph != nullptr) graph = graphs.at(change.graph.get());
  return wire::CreateChange(builder, name, &id, change.ancestor ? &ancestor : nullptr, change.retired, graph,
                            wire_number(change.quality), change.has_weights, change.commit, tag_vector);
}

Result<FeedChange> read_change(const wire::Change& row, const std::vector<std::shared_ptr<const MatchGraph>>& graphs) {
  if (row.id() == nullptr) return fail(Code::corrupt, "a change of no version");
  FeedChange change;
  FRESHET_ASSIGN(change.name, read(row.name()));
  change.id = read(*row.id());
  change.ancestor = read_id(row.ancestor());
  change.retired = row.retired();
  change.quality = read(row.quality());
  change.has_weights = row.has_weights();
  change.commit = row.commit();
  if (row.graph().has_value()) {
    if (row.graph().value() >= graphs.size()) return fail(Code::corrupt, "a change with a graph that is not there");
    change.graph = graphs[row.graph().value()];
  }
  for (const wire::Digest& tag : copied(row.tags())) change.tags.push_back({.low = tag.low(), .high = tag.high()});
  return change;
}

}  // namespace

wire::Position wire_position(const FeedPosition& position) { return {position.life, position.change}; }

FeedPosition read(const wire::Position& position) { return {.life = position.life(), .change = position.change()}; }

Offset<wire::Changes> put(Builder& builder, const FeedPage& page) {
  GraphNumbers numbers;
  std::vector<Offset<wire::Graph>> graphs;
  for (const FeedChange& change : page.changes) {
    if (change.graph == nullptr) continue;
    const auto [known, is_new] = numbers.try_emplace(change.graph.get(), static_cast<std::uint32_t>(graphs.size()));
    if (is_new) graphs.push_back(put(builder, *change.graph));
  }
  std::vector<Offset<wire::Change>> rows;
  for (const FeedChange& change : page.changes) rows.push_back(put_change(builder, change, numbers));
  const auto graph_vector = builder.CreateVector(graphs);
  const auto row_vector = builder.CreateVector(rows);
  const wire::Position from = wire_position(page.from);
  return wire::CreateChanges(builder, &from, page.to, page.end, page.commit, graph_vector, row_vector);
}

Result<FeedPage> read(const wire::Changes& changes) {
  if (changes.from() == nullptr) return fail(Code::corrupt, "changes that follow nothing");
  FeedPage page{.from = read(*changes.from()), .to = changes.to(), .end = changes.end(), .commit = changes.commit()};
  const std::size_t rows = changes.rows() == nullptr ? 0 : changes.rows()->size();
  if (page.to < page.from.change || page.end < page.to || rows > page.to - page.from.change) {
    return fail(Code::corrupt, "a page of changes that does not fit what it says of itself");
  }
  std::vector<std::shared_ptr<const MatchGraph>> graphs;
  const std::size_t graph_count = changes.graphs() == nullptr ? 0 : changes.graphs()->size();
  if (graph_count > rows) return fail(Code::corrupt, "a page with more graphs than changes");
  for (std::size_t i = 0; i < graph_count; ++i) {
    FRESHET_ASSIGN(auto graph, read(changes.graphs()->Get(static_cast<flatbuffers::uoffset_t>(i))));
    graphs.push_back(std::move(graph));
  }
  for (std::size_t i = 0; i < rows; ++i) {
    FRESHET_ASSIGN(FeedChange change,
                   read_change(*changes.rows()->Get(static_cast<flatbuffers::uoffset_t>(i)), graphs));
    page.changes.push_back(std::move(change));
  }
  return page;
}

Offset<wire::MatchForAll> put(Builder& builder, const ReplicaQuery& query) {
  const auto match = put(builder, query.match);
  std::vector<Offset<wire::Need>> needs;
  for (const ReplicaQuery::Need& need : query.needs) {
    const wire::Position position = wire_position(need.position);
    needs.push_back(wire::CreateNeed(builder, builder.CreateString(need.provider), &position));
  }
  const wire::Id excluded = query.excluded ? wire_id(*query.excluded) : wire::Id();
  return wire::CreateMatchForAll(builder, match, query.excluded ? &excluded : nullptr, builder.CreateVector(needs),
                                 static_cast<std::uint64_t>(std::max(query.wait, Duration::zero()).count()));
}

Result<ReplicaQuery> read(const wire::MatchForAll& match) {
  if (match.match() == nullptr) return fail(Code::corrupt, "a question without its text");
  constexpr auto kLongest = static_cast<std::uint64_t>(Duration::max().count());
  ReplicaQuery query{.excluded = read_id(match.excluded()),
                     .wait = Duration(static_cast<std::int64_t>(std::min(match.wait_ns(), kLongest)))};
  FRESHET_ASSIGN(query.match, read(*match.match()));
  if (match.needs() == nullptr) return query;
  for (const wire::Need* need : *match.needs()) {
    query.needs.push_back({.provider = read(need->provider()),
                           .position = need->position() == nullptr ? FeedPosition{} : read(*need->position())});
  }
  return query;
}

Offset<wire::MatchedForAll> put(Builder& builder, const ReplicaAnswer& answer) {
  const auto matched = put(builder, answer.match);
  const auto providers = put(builder, answer.providers);
  std::vector<Offset<wire::Followed>> points;
  for (const FollowedPoint& point : answer.points) {
    const wire::Position position = wire_position(point.position);
    points.push_back(wire::CreateFollowed(builder, builder.CreateString(point.provider), &position, point.commit));
  }
  const auto point_vector = builder.CreateVector(points);
  return wire::CreateMatchedForAll(builder, matched, providers, point_vector, put(builder, answer.match.without));
}

Result<ReplicaAnswer> read(const wire::MatchedForAll& matched) {
  if (matched.matched() == nullptr) return fail(Code::corrupt, "an answer without its rows");
  ReplicaAnswer answer;
  FRESHET_ASSIGN(answer.match, read(*matched.matched()));
  answer.match.without = read(matched.without());
  answer.providers = read(matched.providers());
  if (answer.providers.size() != answer.match.top.size()) {
    return fail(Code::corrupt, "an answer whose lists do not fit each other");
  }
  if (matched.points() == nullptr) return answer;
  for (const wire::Followed* point : *matched.points()) {
    answer.points.push_back({.provider = read(point->provider()),
                             .position = point->position() == nullptr ? FeedPosition{} : read(*point->position()),
                             .commit = point->commit()});
  }
  return answer;
}

}  // namespace freshet::rpc
