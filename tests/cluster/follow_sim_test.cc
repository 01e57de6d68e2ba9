/// Following providers' feeds, one step at a time from a seed: puts and retirements, providers that end and begin
/// another life with or without what they had, pages that are lost, late, or told twice. Against the plain list of what
/// was acknowledged.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "repo/cluster/replica.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

using cluster::FollowMachine;

/// A rule that the simulation breaks, to see that it would be noticed.
enum class FollowSabotage { none, old_lives_stay, lives_have_one_number, a_change_is_lost, reached_too_early };

class FollowRun {
 public:
  FollowRun(std::uint64_t seed, FollowSabotage sabotage) : random_(seed), sabotage_(sabotage) {
    const std::size_t count = 1 + seed % 3;
    for (std::size_t i = 0; i < count; ++i) {
      providers_.push_back(std::make_unique<Provider>(index_, static_cast<std::uint32_t>(i), sabotage));
      begin(*providers_.back());
    }
  }

  /// What went wrong first; empty when nothing did.
  std::string run(int steps) {
    for (int step = 0; step < steps && wrong_.empty(); ++step) {
      act();
      if (wrong_.empty()) check();
    }
    // In the end everybody is heard of.
    for (int round = 0; round < 100 && wrong_.empty(); ++round) {
      now_ += std::chrono::seconds(1);
      for (const auto& provider : providers_) {
        give_up_waiting(*provider);
        ask(*provider);
        if (provider->page) deliver(*provider);
      }
    }
    for (const auto& provider : providers_) {
      if (!is_reached(*provider) && wrong_.empty()) wrong_ = "a provider is never followed to its end";
    }
    if (wrong_.empty()) check();
    if (wrong_.empty() && checks_ == 0) wrong_ = "nothing was ever compared";
    return wrong_;
  }

 private:
  struct Version {
    VersionName name;
    std::optional<VersionId> ancestor;
    std::vector<std::uint64_t> sizes;
    double quality = 0;
    bool retired = false;
  };
  class Sink final : public cluster::FeedSink {
   public:
    Sink(cluster::ReplicaIndex& index, std::uint32_t number, FollowSabotage sabotage)
        : index_(index), number_(number), sabotage_(sabotage) {}
    void apply(const FeedChange& change) override { index_.apply(number_, change); }
    void drop() override {
      if (sabotage_ != FollowSabotage::old_lives_stay) index_.drop(number_);
    }

   private:
    cluster::ReplicaIndex& index_;
    const std::uint32_t number_;
    const FollowSabotage sabotage_;
  };
  struct Page {
    std::uint64_t number = 0;
    Result<FeedPage> page;
  };
  struct Provider {
    Provider(cluster::ReplicaIndex& index, std::uint32_t number, FollowSabotage sabotage)
        : sink(index, number, sabotage), machine({}, sink) {}
    std::shared_ptr<Backend> disk = make_memory_backend();
    std::unique_ptr<Repository> repository;
    std::map<VersionId, Version> versions;  ///< That were acknowledged, and are not lost with a disk.
    Sink sink;
    FollowMachine machine;
    std::optional<Page> page;  ///< On its way.
    std::deque<Page> late;     ///< Given up, and not gone.
    FeedPosition told;         ///< With the last acknowledgement.
  };

  std::size_t dice(std::size_t sides) { return std::uniform_int_distribution<std::size_t>(0, sides - 1)(random_); }

  void begin(Provider& provider) {
    provider.repository = open_or_die(std::make_unique<FaultBackend>(provider.disk, FaultBackend::Plan()));
    tell(provider);
  }
  void tell(Provider& provider) {
    provider.told = provider.repository->heard()->position;
    if (sabotage_ == FollowSabotage::lives_have_one_number) provider.told.life = 1;
    if (sabotage_ == FollowSabotage::reached_too_early && provider.told.change > 0) --provider.told.change;
  }
  bool is_reached(const Provider& provider) const { return provider.machine.followed().reached(provider.told); }

  void act() {
    now_ += std::chrono::milliseconds(dice(40));
    Provider& provider = *providers_[dice(providers_.size())];
    const std::size_t what = dice(100);
    if (what < 25) {
      put(provider);
    } else if (what < 35) {
      retire(provider);
    } else if (what < 37) {
      provider.repository.reset();
      if (dice(4) == 0) {
        provider.disk = make_memory_backend();  // It lost its disk.
        provider.versions.clear();
        lost_a_disk_ = true;
      }
      begin(provider);
    } else if (what < 60) {
      if (dice(5) == 0) provider.machine.hurry();
      ask(provider);
    } else if (what < 88 && provider.page) {
      deliver(provider);
    } else if (what < 92) {
      give_up_waiting(provider);
    } else if (!provider.late.empty()) {
      const Page& page = provider.late.front();
      if (page.page) provider.machine.on_page(page.number, *page.page, now_);
      provider.late.pop_front();
    }
  }

  void put(Provider& provider) {
    std::vector<std::uint64_t> sizes{1 + dice(2), 1 + dice(2), 1 + dice(3), 1 + dice(3)};
    TestVersion version =
        make_version("m" + std::to_string(dice(3)), test_id(++ids_), test_architecture(sizes), nullptr, {}, random_);
    const Provider& other = *providers_[dice(providers_.size())];
    if (!other.versions.empty() && dice(3) != 0) {
      auto ancestor = other.versions.begin();
      std::advance(ancestor, dice(other.versions.size()));
      version.manifest.ancestor = ancestor->first;
    }
    const double quality = static_cast<double>(ids_);
    const auto name =
        freshet::put(*provider.repository, version, {.quality = quality, .ancestor_may_be_retired = true});
    if (!name) {
      wrong_ = name.error().message();
      return;
    }
    provider.versions[version.manifest.id] = {
        .name = *name, .ancestor = version.manifest.ancestor, .sizes = sizes, .quality = quality};
    tell(provider);
  }
  void retire(Provider& provider) {
    if (provider.versions.empty()) return;
    auto version = provider.versions.begin();
    std::advance(version, dice(provider.versions.size()));
    if (version->second.retired) return;
    const auto report = provider.repository->retire(version->second.name, {});
    if (!report) wrong_ = report.error().message();
    version->second.retired = true;
    tell(provider);
  }

  void ask(Provider& provider) {
    const auto question = provider.machine.ask(now_);
    if (!question) return;
    FeedPosition after = question->after;
    if (sabotage_ == FollowSabotage::lives_have_one_number && after.life != 0) {
      after.life = provider.repository->heard()->position.life;
    }
    auto page = provider.repository->changes(after, static_cast<std::uint32_t>(1 + dice(6)));
    if (page && sabotage_ == FollowSabotage::lives_have_one_number) page->from.life = 1;
    if (page && sabotage_ == FollowSabotage::a_change_is_lost && page->changes.size() > 2) page->changes.pop_back();
    provider.page = Page{.number = question->number, .page = std::move(page)};
  }
  void deliver(Provider& provider) {
    const Page page = *std::exchange(provider.page, std::nullopt);
    if (!page.page) return provider.machine.on_failure(page.number, page.page.error(), now_);
    provider.machine.on_page(page.number, *page.page, now_);
    if (dice(8) == 0) provider.machine.on_page(page.number, *page.page, now_);  // Told twice.
  }
  void give_up_waiting(Provider& provider) {
    if (!provider.page) return;
    provider.machine.on_failure(provider.page->number, Error(Code::timed_out, "no answer"), now_);
    if (dice(2) == 0) provider.late.push_back(*std::move(provider.page));
    provider.page.reset();
  }

  // Those who are followed to what they told last are there just so; with all of them, every answer is known.
  void check() {
    std::set<VersionId> there;
    const MatchQuery query{.graph = MatchGraph::of(*test_architecture({1 + dice(2), 1 + dice(2), 1, 1})), .top = 1000};
    bool all = true;
    std::vector<std::pair<std::size_t, double>> expected;
    std::optional<VersionId> excluded;
    if (!lost_a_disk_ && ids_ > 0 && dice(2) == 0) excluded = test_id(1 + dice(ids_));
    const std::set<VersionId> line = line_of(excluded);
    for (std::size_t i = 0; i < providers_.size(); ++i) {
      const Provider& provider = *providers_[i];
      if (!is_reached(provider)) {
        all = false;
        continue;
      }
      for (const auto& [id, version] : provider.versions) {
        const bool is_there = index_.told_by(id) == static_cast<std::uint32_t>(i);
        if (is_there == version.retired) {
          wrong_ = to_string(version.name) + (version.retired ? " was retired and is there" : " is missing");
          return;
        }
        const std::size_t shared = shared_with(*query.graph, version.sizes);
        if (!version.retired && shared != 0 && !line.contains(id)) expected.emplace_back(shared, version.quality);
      }
    }
    if (!all) return;
    ++checks_;
    std::ranges::sort(expected, std::greater());
    std::vector<std::pair<std::size_t, double>> found;
    for (const MatchRow& row : index_.match(query, excluded).top) found.emplace_back(row.lcp.layers, *row.quality);
    if (found != expected) {
      wrong_ = "an answer has " + std::to_string(found.size()) + " rows, which are not the " +
               std::to_string(expected.size()) + " expected";
    }
  }
  std::set<VersionId> line_of(std::optional<VersionId> at) const {
    std::set<VersionId> line;
    while (at && line.insert(*at).second) {
      std::optional<VersionId> ancestor;
      for (const auto& provider : providers_) {
        const auto version = provider->versions.find(*at);
        if (version != provider->versions.end()) ancestor = version->second.ancestor;
      }
      at = ancestor;
    }
    return line;
  }
  // A chain's layers are told apart by the bytes of their tensors, so equal sizes at the front are what is shared.
  static std::size_t shared_with(const MatchGraph& query, const std::vector<std::uint64_t>& sizes) {
    std::vector<std::uint64_t> asked;
    for (const MatchGraph::Vertex& vertex : query.vertices()) {
      if (!vertex.is_input) asked.push_back(vertex.bytes);
    }
    std::size_t shared = 0;
    while (shared < std::min(asked.size(), sizes.size()) && asked[shared] == sizes[shared]) ++shared;
    return shared;
  }

  std::mt19937_64 random_;
  const FollowSabotage sabotage_;
  cluster::ReplicaIndex index_;
  std::vector<std::unique_ptr<Provider>> providers_;
  Time now_{};
  std::uint64_t ids_ = 0;
  std::uint64_t checks_ = 0;
  bool lost_a_disk_ = false;
  std::string wrong_;
};

constexpr std::uint64_t kSeeds = 40;
constexpr int kSteps = 400;

TEST(FollowSimulation, WhatIsReachedIsThereAndNothingElse) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::string wrong = FollowRun(seed, FollowSabotage::none).run(kSteps);
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
}

TEST(FollowSimulation, NoticesBrokenRules) {
  for (const FollowSabotage sabotage : {FollowSabotage::old_lives_stay, FollowSabotage::lives_have_one_number,
                                        FollowSabotage::a_change_is_lost, FollowSabotage::reached_too_early}) {
    bool noticed = false;
    for (std::uint64_t seed = 0; seed < kSeeds && !noticed; ++seed) {
      noticed = !FollowRun(seed, sabotage).run(kSteps).empty();
    }
    EXPECT_TRUE(noticed) << "sabotage " << static_cast<int>(sabotage);
  }
}

TEST(FollowMachine, AsksSeldomWhereThereIsNothingNew) {
  class Sink final : public cluster::FeedSink {
    void apply(const FeedChange&) override {}
    void drop() override {}
  } sink;
  cluster::FollowMachine machine(
      {.idle = std::chrono::milliseconds(10), .idle_max = std::chrono::milliseconds(60)}, sink);
  Time now{};
  std::uint64_t change = 0;
  const auto pause_after = [&](bool news) {
    now = machine.due();
    const auto ask = machine.ask(now);
    FeedPage page{.from = ask->after, .to = change + (news ? 1 : 0), .end = change + (news ? 1 : 0)};
    page.from.life = 1;
    if (news) page.changes.emplace_back();
    change = page.to;
    machine.on_page(ask->number, page, now);
    return std::chrono::duration_cast<std::chrono::milliseconds>(machine.due() - now).count();
  };
  std::vector<std::int64_t> pauses;
  for (const bool news : {true, false, false, false, false, false, true, false}) pauses.push_back(pause_after(news));
  EXPECT_EQ(pauses, (std::vector<std::int64_t>{10, 20, 40, 60, 60, 60, 10, 20}));
  EXPECT_FALSE(machine.ask(now));
  machine.hurry();
  EXPECT_TRUE(machine.ask(now));
}

TEST(ReplicaIndex, FollowsQualities) {
  cluster::ReplicaIndex index;
  const auto graph = MatchGraph::of(*test_architecture({1, 2}));
  FeedChange change{.name = {.model = "net", .number = 1}, .id = test_id(1), .graph = graph, .quality = 0.5};
  index.apply(0, change);
  change.quality = 0.75;
  index.apply(0, change);
  EXPECT_EQ(index.match({.graph = graph}, {}).top.at(0).quality, 0.75);
  index.apply(1, {.name = change.name, .id = test_id(1), .retired = true});
  EXPECT_EQ(index.size(), 1u) << "another provider has no say in it";
  change.retired = true;
  index.apply(0, change);
  EXPECT_EQ(index.size(), 0u);
}

}  // namespace
}  // namespace freshet
