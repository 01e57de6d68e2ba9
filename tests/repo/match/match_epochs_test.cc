// SPDX-License-Identifier: Apache-2.0
/// When what an architecture had alone leaves the match index: not while a reader might still ask its graph what
/// follows what, since such a reader takes the table for as it was then.

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "repo/match/writer.h"
#include "tests/repo/match/match_world.h"

namespace freshet::detail {
namespace {

VersionId id_of(std::uint64_t number) { return {.run = {.high = 1, .low = 1}, .incarnation = 1, .sequence = number}; }

TEST(MatchEpochs, WhatAReaderMayAskForStaysInItsTable) {
  Shelf shelf;
  Epochs epochs;
  IndexWriter writer(shelf, epochs);
  TestSlots slots;
  const auto insert = [&](std::uint64_t number, const TestNet& net) {
    const std::shared_ptr<const MatchGraph> graph = slots.graph_of(net);
    EXPECT_TRUE(writer.insert(
        {.name = {.model = "net", .number = number}, .id = id_of(number), .graph = graph, .commit = number}));
    writer.publish(number);
    return graph;
  };
  // Both have the first two; the third is the first one's alone.
  const auto going = insert(1, {{.label = 0}, {.label = 2, .inputs = {0}}, {.label = 3, .inputs = {1}}});
  insert(2, {{.label = 0}, {.label = 2, .inputs = {0}}, {.label = 4, .inputs = {1}}});
  const SlotId alone = (*going)[2].slot;
  const SlotId common = (*going)[0].slot;
  const auto in_table = [&](const View& view) { return find_slot(shelf, *view.slots, alone).has_value(); };

  auto before = std::make_optional<Epochs::Reader>(epochs);
  ASSERT_TRUE(writer.retire(id_of(1)));
  writer.publish(3);
  auto reader = std::make_optional<Epochs::Reader>(epochs);
  const View& view = *writer.view().load();
  const auto found = find_slot(shelf, *view.slots, common);
  ASSERT_TRUE(found && !found->cell.flag);
  const Posting& posting = shelf.postings[found->cell.number];
  const PackedGraph* const told = graph_with_run(shelf, posting);
  ASSERT_NE(told, nullptr);
  ASSERT_TRUE(told->find(alone)) << "the reader asks the architecture that goes";

  before.reset();
  for (std::uint64_t change = 0; change < 4; ++change) {
    writer.publish(3);
    ASSERT_TRUE(in_table(view)) << "after " << change + 1 << " changes";
  }
  EXPECT_NE(graph_with_run(shelf, posting), told) << "who comes now asks another one";

  reader.reset();
  for (int change = 0; change < 4; ++change) writer.publish(3);
  EXPECT_FALSE(in_table(*writer.view().load()));
  EXPECT_EQ(writer.memory().architectures, 1u);
}

}  // namespace
}  // namespace freshet::detail
