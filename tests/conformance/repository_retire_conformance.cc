// SPDX-License-Identifier: Apache-2.0
/// Matches, pins, retirement and what is collected after it.

#include <chrono>
#include <stop_token>
#include <thread>

#include "core/base/interruption.h"
#include "tests/conformance/repository_conformance.h"

namespace freshet {

TEST_P(RepositoryConformance, AMatchIsTheBestOneAndPinnedWithTheAnswer) {
  const std::vector<TestVersion> versions = line(5);
  architecture_ = test_architecture({1000, 7, 44});
  stored(version("short"), {.quality = 99});
  TestVersion bare = version("bare");
  const auto name = put(repository(), bare, {.quality = 100, .has_weights = false});
  ASSERT_TRUE(name) << name.error().message();

  MatchQuery query{.graph = MatchGraph::of(*versions[0].manifest.architecture), .top = 3};
  const auto answer = repository().match(query);
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->top.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer->top[i].version, net(5 - i)) << "among equals the better ones first";
    EXPECT_EQ(answer->top[i].id, versions[4 - i].manifest.id);
    EXPECT_EQ(answer->top[i].lcp.bytes, 91'007u);
    EXPECT_EQ(answer->top[i].quality, 4.5 - static_cast<double>(i));
  }
  query = {.graph = query.graph, .top = 9, .least_quality = 3.5};
  EXPECT_EQ(repository().match(query)->top.size(), 3u) << "4.5, 3.5 and the short one's 99";
  query = {.graph = query.graph, .top = 9, .exclude_lineage = net(5)};
  EXPECT_EQ(repository().match(query)->top.size(), 1u);
  query = {.graph = MatchGraph::of(*architecture_), .any = true};
  EXPECT_EQ(repository().match(query)->top.at(0).version, *name);
  query.any = false;
  query.pin_by = "worker";
  EXPECT_EQ(repository().match(query)->top.at(0).version.model, "short");
  EXPECT_EQ(repository().pins({.model = "short"}).value(), std::vector<std::string>{"worker"});
  EXPECT_TRUE(is_refused(repository().match({}), Code::invalid_argument));
  query.exclude_lineage = net(77);
  EXPECT_TRUE(is_refused(repository().match(query), Code::not_found));
  query = {.graph = MatchGraph::of(*test_architecture({3, 3}))};
  EXPECT_TRUE(repository().match(query)->top.empty());
}

TEST_P(RepositoryConformance, NoMatchNamesWhatIsGone) {
  const std::vector<TestVersion> versions = line(3);
  const MatchQuery query{.graph = MatchGraph::of(*architecture_)};
  const auto before = repository().match(query);
  ASSERT_TRUE(before) << before.error().message();
  EXPECT_EQ(before->top.at(0).version, net(3));
  ASSERT_TRUE(repository().retire(net(3), {}));
  const auto after = repository().match(query);
  EXPECT_EQ(after->top.at(0).version, net(2));
  EXPECT_GE(after->as_of, before->as_of);
}

TEST_P(RepositoryConformance, PinsAreCountedPerHolder) {
  line(2);
  ASSERT_TRUE(repository().pin(net(1), "me"));
  ASSERT_TRUE(repository().pin(net(1), "me"));
  ASSERT_TRUE(repository().pin(net(1), "you"));
  EXPECT_EQ(repository().pins(net(1)).value(), (std::vector<std::string>{"me", "you"}));
  ASSERT_TRUE(repository().unpin(net(1), "me"));
  ASSERT_TRUE(repository().unpin(net(1), "you"));
  EXPECT_TRUE(is_refused(repository().retire(net(1), {}), Code::failed_precondition));
  EXPECT_TRUE(is_refused(repository().unpin(net(1), "you"), Code::not_found));
  EXPECT_TRUE(is_refused(repository().pin(net(1), ""), Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().pin(net(1), std::string(257, 'x')), Code::invalid_argument));
  ASSERT_TRUE(repository().unpin(net(1), "me"));
  EXPECT_TRUE(repository().pins(net(1))->empty());
  EXPECT_TRUE(repository().retire(net(1), {}));
  EXPECT_TRUE(is_refused(repository().pin(net(1), "me"), Code::not_found));
}

TEST_P(RepositoryConformance, WhatIsPinnedIsWaitedForOrSaid) {
  line(1);
  ASSERT_TRUE(repository().pin(net(1), "worker7"));
  EXPECT_TRUE(is_refused(repository().retire(net(1), {.wait = std::chrono::milliseconds(5)}), Code::failed_precondition,
                         "net@1 is pinned by worker7"));
  Result<RetireReport> waited = fail(Code::cancelled, "not yet");
  std::thread waiting([&] { waited = repository().retire(net(1), {.wait = std::chrono::hours(1)}); });
  EXPECT_TRUE(repository().unpin(net(1), "worker7"));
  waiting.join();
  EXPECT_TRUE(waited) << waited.error().message();
}

/// Each call is stopped from another thread, while it waits or before it begins.
TEST_P(RepositoryConformance, AStopEndsTheWaitForPins) {
  line(1);
  ASSERT_TRUE(repository().pin(net(1), "worker7"));
  std::stop_source early;
  early.request_stop();
  const auto retire = [&](const std::stop_source& stop) {
    return repository().retire(net(1), {.wait = std::chrono::minutes(10), .stop = stop.get_token()});
  };
  EXPECT_TRUE(is_refused(retire(early), Code::cancelled));
  std::stop_source late;
  std::thread stops([&late] { late.request_stop(); });
  EXPECT_TRUE(is_refused(retire(late), Code::cancelled));
  stops.join();
  {
    const StopInterrupts of_this_thread(early.get_token());
    EXPECT_TRUE(is_refused(repository().retire(net(1), {.wait = std::chrono::minutes(10)}), Code::cancelled));
  }
  ASSERT_TRUE(repository().unpin(net(1), "worker7"));
  // A provider looks at the pins for some seconds more: a call that was stopped may be the one that retires.
  const auto retired = repository().retire(net(1), {});
  const bool has_provider = GetParam().name == "remote" || GetParam().name == "three_providers";
  EXPECT_TRUE(retired || (has_provider && retired.error().code() == Code::not_found)) << retired.error().message();
  EXPECT_TRUE(is_refused(repository().get(net(1)), Code::not_found));
}

TEST_P(RepositoryConformance, AStopEndsPutsAndCollections) {
  line(1);
  std::stop_source early;
  early.request_stop();
  TestVersion other = version("net");
  EXPECT_TRUE(is_refused(put(repository(), other, {.stop = early.get_token()}), Code::cancelled));
  ASSERT_TRUE(repository().retire(net(1), {}));
  EXPECT_TRUE(is_refused(repository().gc({.stop = early.get_token()}, {}), Code::cancelled));
  const auto collected = repository().gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  expect_sound();
}

TEST_P(RepositoryConformance, ARetiredVersionIsGoneAndItsNameStays) {
  const std::vector<TestVersion> versions = line(3);
  const auto report = repository().retire(net(2), {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->version, net(2));
  EXPECT_EQ(report->released_tensors, 0u) << "the third inherits all of it";
  EXPECT_TRUE(is_refused(repository().get(net(2)), Code::not_found, "net@2 was retired"));
  EXPECT_TRUE(is_refused(repository().retire(net(2), {}), Code::not_found));
  EXPECT_TRUE(is_refused(repository().pin(net(2), "me"), Code::not_found));
  EXPECT_EQ(repository().find(versions[1].manifest.id).value(), net(2));
  EXPECT_EQ(repository().stat()->versions, 2u);
  EXPECT_EQ(repository().stat()->retired_versions, 1u);
  TestVersion child = version("net", &versions[1], {0});
  EXPECT_TRUE(is_refused(put(repository(), child), Code::failed_precondition));
  child = stored(std::move(child), {.ancestor_may_be_retired = true});
  expect_bytes(child);
  expect_bytes(versions[2]);
  expect_sound();
}

TEST_P(RepositoryConformance, BytesGoWithTheLastWhoNamesThem) {
  const std::vector<TestVersion> versions = line(6);
  for (std::size_t i = 0; i + 1 < versions.size(); ++i) {
    const auto retired = repository().retire(versions[i].manifest.name, {});
    ASSERT_TRUE(retired) << retired.error().message();
  }
  std::uint64_t all = 0;
  const std::vector<LineageRow> rows = repository().versions("net").value();
  for (const LineageRow& row : rows) all += row.own_bytes;
  const auto dry = repository().gc({.dry_run = true}, {});
  ASSERT_TRUE(dry) << dry.error().message();
  const auto collected = repository().gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_LE(dry->freed_bytes, collected->freed_bytes);
  EXPECT_EQ(collected->live_bytes, 91'007u);
  EXPECT_EQ(collected->freed_bytes, all - 91'007u);
  EXPECT_EQ(repository().gc({}, {})->freed_bytes, 0u);
  EXPECT_EQ(repository().stat()->live_bytes, 91'007u);
  expect_bytes(versions.back());
  const auto verified = repository().verify(std::nullopt, {});
  EXPECT_TRUE(verified->unneeded.empty());
  EXPECT_EQ(verified->checked_bytes, 91'007u);
  ASSERT_TRUE(repository().retire(versions.back().manifest.name, {}));
  ASSERT_TRUE(repository().gc({}, {}));
  EXPECT_EQ(repository().stat()->live_bytes, 0u);
  EXPECT_TRUE(is_refused(repository().latest("net"), Code::not_found));
  EXPECT_TRUE(repository().models()->empty());
  expect_sound();
}

TEST_P(RepositoryConformance, OneVersionCanBeVerified) {
  const std::vector<TestVersion> versions = line(2);
  const auto one = repository().verify(net(2), {});
  ASSERT_TRUE(one) << one.error().message();
  EXPECT_TRUE(one->corrupt.empty());
  EXPECT_EQ(one->checked_bytes, 91'007u);
  std::uint64_t seen = 0;
  const auto all = repository().verify(std::nullopt, [&](std::uint64_t done, std::uint64_t) { seen = done; });
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_EQ(all->checked_bytes, repository().stat()->live_bytes);
}

}  // namespace freshet
