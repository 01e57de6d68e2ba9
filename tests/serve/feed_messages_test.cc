/// Pages of changes as they travel: what comes back is what was said, and nothing else is taken.

#include <gtest/gtest.h>

#include "repo/serve/messages.h"
#include "tests/repo/world.h"

namespace freshet::rpc {
namespace {

FeedPage page() {
  const auto shared = MatchGraph::of(*test_architecture({1, 2, 3}));
  FeedPage page{.from = {.life = 9, .change = 4}, .to = 8, .end = 10, .commit = 77};
  page.changes.push_back({.name = {.model = "net", .number = 3},
                          .id = test_id(1),
                          .ancestor = test_id(2),
                          .graph = shared,
                          .quality = 0.25,
                          .commit = 5,
                          .tags = {{.low = 1, .high = 2}, {.low = 3, .high = 4}}});
  page.changes.push_back(
      {.name = {.model = "net", .number = 4}, .id = test_id(2), .graph = shared, .has_weights = false});
  page.changes.push_back({.name = {.model = "other", .number = 1}, .id = test_id(3), .retired = true});
  return page;
}

const wire::Changes& finished(Builder& builder, Offset<wire::Changes> changes) {
  builder.Finish(changes);
  return *flatbuffers::GetRoot<wire::Changes>(builder.GetBufferPointer());
}

TEST(FeedMessages, APageComesBackAsItWas) {
  Builder builder;
  const FeedPage said = page();
  const auto heard = read(finished(builder, put(builder, said)));
  ASSERT_TRUE(heard) << heard.error().message();
  EXPECT_EQ(heard->from, said.from);
  EXPECT_EQ(heard->to, said.to);
  EXPECT_EQ(heard->end, said.end);
  EXPECT_EQ(heard->commit, said.commit);
  ASSERT_EQ(heard->changes.size(), said.changes.size());
  for (std::size_t i = 0; i < said.changes.size(); ++i) {
    const FeedChange& a = said.changes[i];
    const FeedChange& b = heard->changes[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.id, b.id);
    EXPECT_EQ(a.ancestor, b.ancestor);
    EXPECT_EQ(a.retired, b.retired);
    EXPECT_EQ(a.quality, b.quality);
    EXPECT_EQ(a.has_weights, b.has_weights);
    EXPECT_EQ(a.commit, b.commit);
    EXPECT_EQ(a.tags, b.tags);
    ASSERT_EQ(a.graph == nullptr, b.graph == nullptr);
    if (a.graph == nullptr) continue;
    EXPECT_EQ(a.graph->whole(), b.graph->whole());
  }
  EXPECT_EQ(heard->changes[0].graph, heard->changes[1].graph) << "one graph travelled once";
}

TEST(FeedMessages, RefusesPagesThatSayMoreThanTheyHave) {
  const auto refused = [](const std::function<void(FeedPage&)>& spoil) {
    Builder builder;
    FeedPage bad = page();
    spoil(bad);
    const auto heard = read(finished(builder, put(builder, bad)));
    return !heard && heard.error().code() == Code::corrupt;
  };
  EXPECT_TRUE(refused([](FeedPage& bad) { bad.to = bad.from.change - 1; }));
  EXPECT_TRUE(refused([](FeedPage& bad) { bad.end = bad.to - 1; }));
  EXPECT_TRUE(refused([](FeedPage& bad) { bad.to = bad.from.change + 2; })) << "three changes in the place of two";
  EXPECT_FALSE(refused([](FeedPage&) {}));
}

TEST(FeedMessages, RefusesGraphsThatAreNotThere) {
  const wire::Position from(1, 0);
  const wire::Id id = wire_id(test_id(1));
  const auto with_row = [&](bool has_id, std::uint32_t graph) {
    Builder builder;
    const auto name = put(builder, VersionName{.model = "net", .number = 1});
    const auto row = wire::CreateChange(builder, name, has_id ? &id : nullptr, nullptr, false, graph);
    const auto rows = builder.CreateVector(std::vector<Offset<wire::Change>>{row});
    return read(finished(builder, wire::CreateChanges(builder, &from, 1, 1, 1, 0, rows)));
  };
  EXPECT_EQ(with_row(true, 0).error().code(), Code::corrupt);
  EXPECT_EQ(with_row(true, 0xFFFFFFFF).error().code(), Code::corrupt);
  EXPECT_EQ(with_row(false, 0).error().code(), Code::corrupt);
  Builder builder;
  EXPECT_EQ(read(finished(builder, wire::CreateChanges(builder))).error().code(), Code::corrupt);
}

TEST(FeedMessages, AnAnswerForAllNamesWhoToldEachRow) {
  ReplicaAnswer said{.match = {.top = {{.version = {.model = "net", .number = 1}, .id = test_id(1)}},
                               .as_of = 4,
                               .without = {"provider p: away"}},
                     .providers = {"q"},
                     .points = {{.provider = "q", .position = {.life = 3, .change = 2}, .commit = 4}}};
  const auto carried = [](const ReplicaAnswer& answer) {
    Builder builder;
    builder.Finish(put(builder, answer));
    return read(*flatbuffers::GetRoot<wire::MatchedForAll>(builder.GetBufferPointer()));
  };
  const auto heard = carried(said);
  ASSERT_TRUE(heard) << heard.error().message();
  EXPECT_EQ(heard->match.top, said.match.top);
  EXPECT_EQ(heard->match.without, said.match.without);
  EXPECT_EQ(heard->providers, said.providers);
  EXPECT_EQ(heard->points.at(0).position, said.points[0].position);
  said.providers.clear();
  EXPECT_EQ(carried(said).error().code(), Code::corrupt);
}

}  // namespace
}  // namespace freshet::rpc
