// SPDX-License-Identifier: Apache-2.0
/// The match index against Algorithm 1 and a sort of all that there is, after random changes, for random questions.

#include <gtest/gtest.h>

#include <limits>

#include "core/base/format.h"
#include "tests/repo/match/match_world.h"

namespace freshet {
namespace {

struct Indexed {
  IndexEntry entry;
  std::shared_ptr<const LabelledNet> net;
};

class IndexedCatalog {
 public:
  struct Shape {
    std::size_t calls = 12;
    int labels = 4;
    unsigned evolved_percent = 70;  ///< How many are mutants of others.
    unsigned retire_percent = 20;
    bool chains = false;  ///< Those that are no mutants.
    bool stars = false;   ///< All: `calls` layers on one placeholder, each there or not.
  };
  IndexedCatalog(std::uint64_t seed, Shape shape) : random_(seed), shape_(shape) {}

  void step() {
    ++commit_;
    const unsigned roll = random_() % 100;
    if (!known_.empty() && roll < shape_.retire_percent) return retire();
    if (!known_.empty() && roll < shape_.retire_percent + 5) return change_quality();
    insert();
  }

  void ask() {
    MatchQuery query;
    const TestNet net = candidate();
    query.graph = slots_.graph_of(net);
    query.objective = static_cast<Objective>(random_() % 3);
    query.top = random_() % 3 == 0 ? 1 + static_cast<std::uint32_t>(random_() % 20) : 1;
    query.any = random_() % 4 == 0;
    if (random_() % 4 == 0) query.least_quality = static_cast<double>(random_() % 5);
    if (random_() % 4 == 0) query.tags = {{"space", std::to_string(random_() % 2)}};
    std::optional<VersionId> excluded;
    if (random_() % 4 == 0 && !born_.empty()) excluded = born_[random_() % born_.size()];
    const MatchAnswer answer = index_.match(query, excluded);
    const std::vector<MatchRow> expected = brute_force(query, net, excluded);
    EXPECT_EQ(answer.as_of, commit_);
    ASSERT_EQ(answer.top.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(answer.top[i], expected[i]) << "row " << i << ": " << to_string(answer.top[i].version) << " instead of "
                                            << to_string(expected[i].version);
    }
  }

  StructureIndex& index() { return index_; }

 private:
  TestNet new_net() {
    TestNet net = random_net(random_, 1 + random_() % shape_.calls, shape_.labels);
    if (!shape_.chains) return net;
    for (std::size_t i = 0; i < net.size(); ++i) {
      net[i].inputs.clear();
      if (i != 0) net[i].inputs = {static_cast<std::uint32_t>(i - 1)};
    }
    return net;
  }

  std::optional<double> some_quality() {
    switch (random_() % 6) {
      case 0: return std::nullopt;
      case 1: return std::numeric_limits<double>::quiet_NaN();
      default: return static_cast<double>(random_() % 5);
    }
  }

  TestNet star() {
    TestNet net = {{.label = 0}};
    for (std::size_t i = 0; i < shape_.calls; ++i) {
      if (random_() % 2 == 0) net.push_back({.label = 2 + static_cast<int>(i), .inputs = {0}});
    }
    return net;
  }

  TestNet candidate() {
    if (shape_.stars) return star();
    if (nets_.empty() || random_() % 100 >= shape_.evolved_percent) {
      return new_net();
    }
    TestNet net = nets_[random_() % nets_.size()];
    for (std::uint64_t i = random_() % 4; i > 0; --i) net = mutated(std::move(net), random_, shape_.labels);
    if (net.size() > 2 * shape_.calls) net.resize(shape_.calls);
    return net;
  }

  void insert() {
    const TestNet net = candidate();
    nets_.push_back(net);
    IndexEntry entry{
        .name = {.model = "net" + std::to_string(random_() % 1000), .number = commit_},
        .id = {.run = {.high = 7, .low = random_() % 3}, .incarnation = 1, .sequence = commit_},
        .graph = slots_.graph_of(net),
        .quality = some_quality(),
        .has_weights = random_() % 5 != 0,
        // What came from elsewhere at once has one number, and then the name decides.
        .commit = random_() % 4 == 0 ? 1 : commit_,
    };
    if (random_() % 2 == 0) entry.tags.push_back(tag_digest("space", std::to_string(random_() % 2)));
    if (random_() % 2 == 0) entry.tags.push_back(tag_digest("other", "x"));
    if (!born_.empty() && random_() % 3 != 0) entry.ancestor = born_[random_() % born_.size()];
    born_.push_back(entry.id);
    ancestors_[entry.id] = entry.ancestor;
    ASSERT_TRUE(index_.insert(entry, commit_));
    EXPECT_EQ(index_.insert(entry, commit_).error().code(), Code::already_exists);
    if (entry.quality && std::isnan(*entry.quality)) entry.quality.reset();
    known_[entry.id] = {.entry = entry, .net = std::make_shared<LabelledNet>(net, slots_.of(net))};
  }

  std::map<VersionId, Indexed>::iterator some_known() {
    auto at = known_.begin();
    std::advance(at, random_() % known_.size());
    return at;
  }

  void retire() {
    const auto at = some_known();
    EXPECT_TRUE(index_.retire(at->first, commit_));
    EXPECT_FALSE(index_.retire(at->first, commit_));
    known_.erase(at);
  }

  void change_quality() {
    Indexed& known = some_known()->second;
    const std::optional<double> quality = some_quality();
    EXPECT_TRUE(index_.restate(known.entry.id, quality, known.entry.tags, commit_));
    known.entry.quality = quality && std::isnan(*quality) ? std::nullopt : quality;
  }

  bool admitted(const Indexed& known, const MatchQuery& query, const std::set<VersionId>& line) const {
    const IndexEntry& entry = known.entry;
    if (line.contains(entry.id) || (!query.any && !entry.has_weights)) return false;
    if (query.least_quality && (!entry.quality || *entry.quality < *query.least_quality)) return false;
    for (const auto& [key, value] : query.tags) {
      const Digest wanted = tag_digest(key, value);
      if (std::find(entry.tags.begin(), entry.tags.end(), wanted) == entry.tags.end()) return false;
    }
    return true;
  }

  std::vector<MatchRow> brute_force(const MatchQuery& query, const TestNet& net,
                                    const std::optional<VersionId>& excluded) {
    std::set<VersionId> line;
    for (std::optional<VersionId> at = excluded; at; at = ancestors_[*at]) line.insert(*at);
    const LabelledNet labelled(net, slots_.of(net));
    using Order = std::tuple<std::uint64_t, bool, double, std::uint64_t>;
    std::vector<std::pair<Order, MatchRow>> rows;
    for (const auto& [id, known] : known_) {
      if (!admitted(known, query, line)) continue;
      const LcpSize size = algorithm_1(labelled, *known.net);
      const std::uint64_t wanted[] = {size.layers, size.parametric_layers, size.bytes};
      const std::uint64_t value = wanted[static_cast<std::size_t>(query.objective)];
      if (value == 0) continue;
      const IndexEntry& entry = known.entry;
      rows.emplace_back(
          Order{value, entry.quality.has_value(), entry.quality.value_or(0), entry.commit},
          MatchRow{.version = entry.name, .id = id, .lcp = size, .quality = entry.quality, .commit = entry.commit});
    }
    std::sort(rows.begin(), rows.end(), [](const auto& left, const auto& right) {
      if (left.first != right.first) return left.first > right.first;
      return left.second.version < right.second.version;
    });
    std::vector<MatchRow> top;
    for (auto& [order, row] : rows) {
      if (top.size() < query.top) top.push_back(std::move(row));
    }
    return top;
  }

  std::mt19937_64 random_;
  const Shape shape_;
  StructureIndex index_;
  TestSlots slots_;
  std::uint64_t commit_ = 0;
  std::vector<TestNet> nets_;
  std::map<VersionId, Indexed> known_;
  std::vector<VersionId> born_;
  std::map<VersionId, std::optional<VersionId>> ancestors_;
};

void compare(std::uint64_t first_seed, int seeds, int steps, IndexedCatalog::Shape shape) {
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(seeds); ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    IndexedCatalog catalog(seed, shape);
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      catalog.step();
      catalog.ask();
    }
  }
}

TEST(MatchIndex, AnswersAsAlgorithm1OnSmallNets) { compare(1, 10, 150, {.calls = 6, .labels = 2}); }

TEST(MatchIndex, AnswersAsAlgorithm1OnEvolvedNets) {
  compare(100, 6, 200, {.calls = 14, .labels = 5, .evolved_percent = 95, .retire_percent = 10});
}

TEST(MatchIndex, AnswersAsAlgorithm1OnRandomNets) {
  compare(200, 6, 150, {.calls = 20, .labels = 3, .evolved_percent = 20, .retire_percent = 25});
}

TEST(MatchIndex, AnswersAsAlgorithm1WhileMoreIsRetiredThanPut) {
  compare(300, 10, 150, {.calls = 8, .labels = 3, .evolved_percent = 80, .retire_percent = 52});
}

// So many that all groups' marks are scanned, and so alike that the best one stands out or does not.
TEST(MatchIndex, AnswersAsAlgorithm1OnStars) {
  for (const std::size_t layers : {8, 16, 30}) {
    SCOPED_TRACE(format("{} layers", layers));
    IndexedCatalog catalog(600 + layers, {.calls = layers, .retire_percent = 10, .stars = true});
    for (int step = 0; step < 400; ++step) catalog.step();
    for (int step = 0; step < 40 && !testing::Test::HasFailure(); ++step) {
      catalog.step();
      catalog.ask();
    }
  }
}

TEST(MatchIndex, AnswersAsAlgorithm1OnChains) {
  compare(400, 5, 90, {.calls = 24, .labels = 2, .evolved_percent = 90, .retire_percent = 30, .chains = true});
}

TEST(MatchIndex, AnswersAsAlgorithm1OnChainsOfWhichFewStay) {
  compare(500, 6, 120, {.calls = 16, .labels = 1, .evolved_percent = 85, .retire_percent = 50, .chains = true});
}

/// `layers` calls of a label behind the placeholder, each reading the one before.
void add_chain(TestNet& net, std::size_t layers, int label) {
  for (std::uint32_t input = 0; layers-- > 0; input = static_cast<std::uint32_t>(net.size() - 1)) {
    net.push_back({.label = label, .inputs = {input}});
  }
}

// Eight chains that differ at their ends, and another one that is as long without these. When one of the eight is
// retired, the others do not have its end at any step of its going, and so are no better than the other one.
TEST(MatchIndex, WhatAVersionHadAloneGoesWithIt) {
  constexpr std::uint64_t kChains = 8;
  constexpr std::uint64_t kLayers = 90;
  StructureIndex index;
  TestSlots slots;
  const auto insert = [&](std::uint64_t number, const TestNet& net, std::optional<double> quality) {
    ASSERT_TRUE(index.insert({.name = {.model = "chain", .number = number},
                              .id = {.run = {.high = 1, .low = 1}, .incarnation = 1, .sequence = number},
                              .graph = slots.graph_of(net),
                              .quality = quality,
                              .commit = number},
                             number));
  };
  TestNet asked;
  for (std::uint64_t number = 1; number <= kChains; ++number) {
    TestNet net = {{.label = 0}};
    add_chain(net, kLayers, 2);
    net.push_back({.label = 10 + static_cast<int>(number), .inputs = {static_cast<std::uint32_t>(net.size() - 1)}});
    insert(number, net, std::nullopt);
    if (number == 1) asked = net;
  }
  TestNet other = {{.label = 0}};
  add_chain(other, kLayers, 4);
  insert(kChains + 1, other, 1.0);
  add_chain(asked, kLayers, 4);
  const MatchQuery query{.graph = slots.graph_of(asked)};
  EXPECT_EQ(index.match(query).top.at(0).version.number, 1u);
  ASSERT_TRUE(index.retire({.run = {.high = 1, .low = 1}, .incarnation = 1, .sequence = 1}, kChains + 2));
  for (int change = 0; change < 6; ++change) {
    EXPECT_EQ(index.match(query).top.at(0).version.number, kChains + 1) << "after " << change << " more changes";
    index.set_as_of(kChains + 2);
  }
}

TEST(MatchIndex, AnEmptyOneHasNoAnswer) {
  StructureIndex index;
  TestSlots slots;
  const MatchAnswer answer = index.match({.graph = slots.graph_of({{.label = 0}, {.label = 5, .inputs = {0}}})});
  EXPECT_TRUE(answer.top.empty());
  EXPECT_EQ(answer.as_of, 0u);
}

}  // namespace
}  // namespace freshet
