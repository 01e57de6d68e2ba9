// SPDX-License-Identifier: Apache-2.0
/// Readers beside a writer: every answer is that of the commit that it names.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/repo/match/match_world.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

const std::uint64_t kCommits = test::under_sanitizer() ? 1500 : 8000;
constexpr std::uint64_t kLife = 40;  ///< Commits after which a version is retired.
constexpr int kReaders = 3;

/// x -> a -> b -> …, of these labels.
TestNet chain(const std::vector<int>& labels) {
  TestNet net = {{.label = 0}};
  for (const int label : labels)
    net.push_back({.label = label, .inputs = {static_cast<std::uint32_t>(net.size() - 1)}});
  return net;
}

/// Commit c puts version c, when c is odd, and retires the one of c - kLife, when c is even. The labels of version c
/// say what it shares with whom.
std::vector<int> labels_of(std::uint64_t commit) {
  const auto label = [&](std::uint64_t kinds) { return 2 + static_cast<int>(commit % kinds); };
  // Those from 20 on follow what is above them, until somebody parts there.
  return {label(5), 20, 21, label(7), label(3) == 2 ? 22 : 23, 24, label(11), 25, 26};
}

VersionId id_of(std::uint64_t commit) { return {.run = {.high = 1, .low = 2}, .incarnation = 1, .sequence = commit}; }

/// The version that is the answer after `as_of`, and how much of its chain, by trying all that live then.
std::pair<std::uint64_t, std::uint64_t> expected(const std::vector<int>& labels, std::uint64_t as_of) {
  std::pair<std::uint64_t, std::uint64_t> best = {0, 0};
  const std::uint64_t retired = as_of >= kLife ? (as_of % 2 == 0 ? as_of : as_of - 1) - kLife + 1 : 0;
  for (std::uint64_t commit = retired + 1 + (retired % 2); commit <= as_of; commit += 2) {
    const std::vector<int> theirs = labels_of(commit);
    std::uint64_t length = 0;
    while (length < labels.size() && theirs[length] == labels[length]) ++length;
    best = std::max(best, {length, commit});
  }
  return best;
}

TEST(MatchReaders, EachAnswerIsThatOfItsCommit) {
  StructureIndex index;
  TestSlots slots;
  std::vector<std::shared_ptr<const MatchGraph>> graphs;
  for (std::uint64_t i = 0; i < 3 * 5 * 7 * 11; ++i) graphs.push_back(slots.graph_of(chain(labels_of(i))));
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> answers{0};

  std::vector<std::jthread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937_64 random(static_cast<std::uint64_t>(reader));
      std::uint64_t before = 0;
      while (!done.load() && !testing::Test::HasFailure()) {
        const std::uint64_t asked = random() % graphs.size();
        const MatchAnswer answer = index.match({.graph = graphs[asked]});
        ASSERT_GE(answer.as_of, before);
        before = answer.as_of;
        const auto [length, commit] = expected(labels_of(asked), answer.as_of);
        ASSERT_EQ(answer.top.empty(), length == 0) << "as of " << answer.as_of;
        if (length != 0) {
          ASSERT_EQ(answer.top[0].lcp.layers, length) << "as of " << answer.as_of;
          ASSERT_EQ(answer.top[0].commit, commit) << "as of " << answer.as_of;
        }
        answers.fetch_add(1);
      }
    });
  }
  for (std::uint64_t commit = 1; commit <= kCommits && !testing::Test::HasFailure(); ++commit) {
    if (commit % 2 == 1) {
      ASSERT_TRUE(index.insert({.name = {.model = "net", .number = commit},
                                .id = id_of(commit),
                                .graph = graphs[commit % graphs.size()],
                                .commit = commit},
                               commit));
    } else {
      ASSERT_EQ(index.retire(id_of(commit - kLife + 1), commit), commit >= kLife);
    }
    // The readers get a share even on one processor.
    while (answers.load() < commit / 8 && !testing::Test::HasFailure()) std::this_thread::yield();
  }
  done.store(true);
}

TEST(MatchReaders, WhatIsRetiredGivesItsMemoryBack) {
  StructureIndex index;
  TestSlots slots;
  std::mt19937_64 random(5);
  std::uint64_t commit = 0;
  std::uint64_t after_first_round = 0;
  for (int round = 0; round < 6; ++round) {
    const std::uint64_t first = commit + 1;
    for (int i = 0; i < 300; ++i) {
      ++commit;
      ASSERT_TRUE(index.insert({.name = {.model = "net" + std::to_string(commit), .number = 1},
                                .id = id_of(commit),
                                .graph = slots.graph_of(random_net(random, 12, 5)),
                                .commit = commit,
                                .tags = {tag_digest("job", std::to_string(commit))}},
                               commit));
    }
    EXPECT_EQ(index.memory().models, 300u);
    for (std::uint64_t gone = first; gone < first + 300; ++gone) ASSERT_TRUE(index.retire(id_of(gone), gone + 300));
    // What was unlinked last goes with the next changes.
    for (int i = 0; i < 4; ++i) index.set_as_of(commit);
    const StructureIndex::Memory memory = index.memory();
    EXPECT_EQ(memory.models, 0u);
    EXPECT_EQ(memory.architectures, 0u);
    EXPECT_EQ(memory.graph_bytes, 0u);
    // The lines of what is gone stay; all else is used again.
    if (round == 0) after_first_round = memory.index_bytes;
    EXPECT_LT(memory.index_bytes, after_first_round + 300u * 80u * static_cast<unsigned>(round) + 65536u);
  }
}

}  // namespace
}  // namespace freshet
