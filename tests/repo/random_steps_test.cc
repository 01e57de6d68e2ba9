// SPDX-License-Identifier: Apache-2.0
/// Random steps of everything that changes a repository, or asks it, against a model that keeps all of it in plain maps
/// and finds every answer by looking at everything.
///
/// FRESHET_REPOSITORY_STEPS and FRESHET_REPOSITORY_SEED ask for a longer run or repeat one
/// (scripts/soak_repository.sh).

#include <gtest/gtest.h>

#include <set>

#include "core/base/format.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"
#include "tests/support/from_environment.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

const std::uint64_t kSlower = test::under_sanitizer() ? 10 : 1;

constexpr std::uint64_t kEnoughForAll = 1000;  // Steps in which every kind happens, with any seed.
constexpr std::size_t kLiveMax = 120;          // More are retired.
constexpr std::size_t kRetiredKept = 20;       // Whose bytes are remembered, to be put upon.

struct KnownVersion {
  TestVersion version;
  std::optional<double> quality;
  bool has_weights = true;
  std::uint64_t commit = 0;
  std::map<std::string, int> pins;
};

struct Tombstone {
  VersionId id;
  std::optional<VersionId> ancestor;
  std::optional<double> quality;
};

struct WorldOfSteps {
  std::map<VersionName, KnownVersion> live;
  std::map<VersionName, Tombstone> retired;
  std::map<VersionId, VersionName> names;
  std::map<std::string, VersionNumber> high_water;
  std::map<SegmentName, std::uint64_t> blobs;  ///< On the medium, needed or not.
  std::uint64_t commits = 0;
};

std::set<SegmentName> named(const KnownVersion& known) {
  const auto owners = known.version.manifest.owners.owners();
  return known.has_weights ? std::set<SegmentName>(owners.begin(), owners.end()) : std::set<SegmentName>();
}

LcpSize shared(const Architecture& query, const Architecture& stored) {
  LcpSize lcp;
  for (std::size_t i = 0; i < query.slots().size(); ++i) {
    const Layer& layer = query.layers()[i];
    const auto slots = stored.slots();
    if (layer.class_name == "Input" || std::find(slots.begin(), slots.end(), query.slots()[i]) == slots.end()) continue;
    ++lcp.layers;
    if (!layer.tensors.empty()) ++lcp.parametric_layers;
    for (const LayerTensor& tensor : layer.tensors) lcp.bytes += query.tensors()[tensor.tensor].bytes();
  }
  return lcp;
}

std::uint64_t size_in(Objective objective, const LcpSize& lcp) {
  if (objective == Objective::bytes) return lcp.bytes;
  return objective == Objective::layers ? lcp.layers : lcp.parametric_layers;
}

class Walk {
 public:
  using Open = std::function<std::unique_ptr<Repository>()>;
  Walk(std::uint64_t seed, Open open, std::uint64_t restart_every)
      : random_(seed), open_(std::move(open)), restart_every_(restart_every), repository_(open_()) {}

  void steps(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(format("step {}", i));
      step();
      if (i % (restart_every_ / 2) == 0) compare_all();
    }
    compare_all();
    if (count < kEnoughForAll) return;
    EXPECT_GT(matched_, count / 100);
    EXPECT_GT(world_.retired.size(), count / 500);
  }

 private:
  bool one_in(std::uint64_t n) { return random_() % n == 0; }

  void step() {
    if (one_in(restart_every_)) return restart();
    if (one_in(300)) return collect();
    const std::uint64_t kind = random_() % 100;
    if (world_.live.size() > kLiveMax) drop_one();
    if (kind < 30) return put_some();
    if (kind < 55) return match();
    if (kind < 75) return read();
    if (kind < 82) return pin();
    if (kind < 88) return unpin();
    if (kind < 90) return retire(some_live());
    return ask_about_retired();
  }

  std::map<VersionName, KnownVersion>::iterator some_live() {
    auto at = world_.live.begin();
    if (!world_.live.empty()) std::advance(at, static_cast<std::ptrdiff_t>(random_() % world_.live.size()));
    return at;
  }

  std::vector<std::uint64_t> some_elements() {
    std::vector<std::uint64_t> elements(1 + random_() % 5);
    for (auto& count : elements) count = 1 + random_() % 3 * 8;
    return elements;
  }

  // As a search makes a candidate: a stored one, changed from some layer on.
  std::shared_ptr<const Architecture> mutated(const Architecture& base) {
    std::vector<std::uint64_t> elements = some_elements();
    const std::size_t keep = random_() % (base.tensors().size() + 1);
    for (std::size_t i = 0; i < std::min(keep, elements.size()); ++i) elements[i] = base.tensors()[i].shape[0];
    return test_architecture(elements);
  }

  TestVersion candidate(const TestVersion* base) {
    const VersionId id = test_id(++sequence_, random_() % 3);
    const std::string model = "model" + std::to_string(random_() % 4);
    if (base == nullptr) return make_version(model, id, test_architecture(some_elements()), nullptr, {}, random_);
    const auto& before = *base->manifest.architecture;
    const auto architecture = one_in(2) ? base->manifest.architecture : mutated(before);
    TestVersion version = make_version(model, id, architecture, nullptr, {}, random_);
    version.manifest.ancestor = base->manifest.id;
    version.manifest.ancestor_name = base->manifest.name;
    std::vector<SegmentName> owners(version.manifest.owners.owners().begin(), version.manifest.owners.owners().end());
    for (std::size_t i = 0; i < owners.size() && i < before.tensors().size(); ++i) {
      if (architecture->slots()[i] != before.slots()[i] || one_in(4)) continue;
      owners[i] = base->manifest.owners[i];
      version.bytes[i] = base->bytes[i];
      version.manifest.digests[i] = base->manifest.digests[i];
    }
    version.manifest.owners = OwnerMap(std::move(owners));
    return version;
  }

  void put_some() {
    if (!retired_.empty() && one_in(10)) return put_on_retired();
    const auto base = some_live();
    const bool transfer = base != world_.live.end() && base->second.has_weights && !one_in(6);
    TestVersion version = candidate(transfer ? &base->second.version : nullptr);
    store(std::move(version), {.has_weights = !one_in(12)});
  }

  void put_on_retired() {
    TestVersion version = candidate(&retired_[random_() % retired_.size()]);
    EXPECT_TRUE(is_refused(put(*repository_, version), Code::failed_precondition));
    store(std::move(version), {.ancestor_may_be_retired = true});
  }

  void store(TestVersion version, Repository::PutOptions options) {
    if (!one_in(4)) options.quality = static_cast<double>(random_() % 5);
    const auto name = put(*repository_, version, options);
    ASSERT_TRUE(name) << name.error().message();
    VersionNumber& high_water = world_.high_water[version.manifest.name.model];
    EXPECT_EQ(name->number, ++high_water);
    version.manifest.name = *name;
    KnownVersion known{.quality = options.quality, .has_weights = options.has_weights, .commit = ++world_.commits};
    known.version = std::move(version);
    const Manifest& manifest = known.version.manifest;
    world_.names.emplace(manifest.id, *name);
    for (std::size_t i = 0; known.has_weights && i < manifest.owners.size(); ++i) {
      world_.blobs.emplace(manifest.owners[i], known.version.bytes[i].size());
    }
    world_.live.emplace(*name, std::move(known));
  }

  void match() {
    MatchQuery query{.objective = static_cast<Objective>(random_() % 3),
                     .top = static_cast<std::uint32_t>(1 + random_() % 4),
                     .any = one_in(3)};
    const auto base = some_live();
    const auto architecture = base == world_.live.end() || one_in(8)
                                  ? test_architecture(some_elements())
                                  : mutated(*base->second.version.manifest.architecture);
    query.graph = MatchGraph::of(*architecture);
    if (one_in(4)) query.least_quality = static_cast<double>(random_() % 5);
    if (one_in(4)) query.pin_by = "worker" + std::to_string(random_() % 3);
    const auto answer = repository_->match(query);
    ASSERT_TRUE(answer) << answer.error().message();
    EXPECT_EQ(answer->as_of, world_.commits);
    const auto expected = best_of(*architecture, query);
    ASSERT_EQ(answer->top.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(answer->top[i].version, expected[i].first);
      EXPECT_EQ(answer->top[i].lcp, expected[i].second);
    }
    matched_ += expected.empty() ? 0 : 1;
    if (!expected.empty() && !query.pin_by.empty()) ++world_.live.at(expected[0].first).pins[query.pin_by];
  }

  std::vector<std::pair<VersionName, LcpSize>> best_of(const Architecture& query, const MatchQuery& asked) const {
    std::vector<std::pair<VersionName, LcpSize>> rows;
    for (const auto& [name, known] : world_.live) {
      if (!known.has_weights && !asked.any) continue;
      if (asked.least_quality && (!known.quality || *known.quality < *asked.least_quality)) continue;
      const LcpSize lcp = shared(query, *known.version.manifest.architecture);
      if (size_in(asked.objective, lcp) > 0) rows.emplace_back(name, lcp);
    }
    std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
      const KnownVersion& left = world_.live.at(a.first);
      const KnownVersion& right = world_.live.at(b.first);
      return std::tuple(size_in(asked.objective, a.second), left.quality, left.commit) >
             std::tuple(size_in(asked.objective, b.second), right.quality, right.commit);
    });
    if (rows.size() > asked.top) rows.resize(asked.top);
    return rows;
  }

  void read() {
    const auto at = some_live();
    if (at == world_.live.end()) return;
    const auto& [name, known] = *at;
    const auto record = repository_->get(name);
    ASSERT_TRUE(record) << record.error().message();
    EXPECT_EQ(record->manifest.id, known.version.manifest.id);
    EXPECT_EQ(record->manifest.ancestor, known.version.manifest.ancestor);
    EXPECT_EQ(record->quality, known.quality);
    EXPECT_EQ(record->has_weights, known.has_weights);
    EXPECT_EQ(repository_->find(known.version.manifest.id).value(), name);
    if (!known.has_weights) return;
    EXPECT_EQ(read_all(*repository_, name).value(), known.version.bytes);
  }

  void pin() {
    const auto at = some_live();
    if (at == world_.live.end()) return;
    const std::string by = "worker" + std::to_string(random_() % 3);
    EXPECT_TRUE(repository_->pin(at->first, by));
    ++at->second.pins[by];
  }

  // Somebody's pin, and as a search does, all that he has of the version.
  void unpin() {
    auto at = some_live();
    for (int i = 0; i < 8 && at != world_.live.end() && at->second.pins.empty(); ++i) at = some_live();
    if (at == world_.live.end()) return;
    if (at->second.pins.empty()) {
      EXPECT_EQ(repository_->unpin(at->first, "worker0").error().code(), Code::not_found);
      return;
    }
    unpin_one(at);
  }

  void unpin_one(std::map<VersionName, KnownVersion>::iterator at) {
    const auto [by, count] = *at->second.pins.begin();
    for (int i = 0; i < count; ++i) EXPECT_TRUE(repository_->unpin(at->first, by));
    at->second.pins.erase(by);
  }

  // As a search does with its population: however long it runs, no more live than that.
  void drop_one() {
    const auto at = some_live();
    while (!at->second.pins.empty()) unpin_one(at);
    retire(at);
  }

  void retire(std::map<VersionName, KnownVersion>::iterator at) {
    if (at == world_.live.end()) return;
    const VersionName name = at->first;
    const auto report = repository_->retire(name, {});
    if (!at->second.pins.empty()) {
      ASSERT_TRUE(is_refused(report, Code::failed_precondition));
      for (const auto& [by, count] : at->second.pins) {
        EXPECT_NE(report.error().message().find(by), std::string::npos) << report.error().message();
      }
      return;
    }
    ASSERT_TRUE(report) << report.error().message();
    std::set<SegmentName> released = named(at->second);
    KnownVersion known = std::move(at->second);
    world_.live.erase(at);
    for (const auto& [other, still] : world_.live) {
      for (const SegmentName& segment : named(still)) released.erase(segment);
    }
    EXPECT_EQ(report->released_tensors, released.size());
    ++world_.commits;
    const Manifest& manifest = known.version.manifest;
    world_.retired.emplace(name, Tombstone{.id = manifest.id, .ancestor = manifest.ancestor, .quality = known.quality});
    if (!known.has_weights) return;
    retired_.push_back(std::move(known.version));
    if (retired_.size() > kRetiredKept) retired_.erase(retired_.begin());
  }

  void ask_about_retired() {
    if (world_.retired.empty()) return;
    auto at = world_.retired.end();
    std::advance(at, -static_cast<std::ptrdiff_t>(1 + random_() % std::min<std::size_t>(world_.retired.size(), 50)));
    const auto& [name, tombstone] = *at;
    EXPECT_EQ(repository_->get(name).error().message(), to_string(name) + " was retired");
    EXPECT_EQ(repository_->pin(name, "me").error().code(), Code::not_found);
    EXPECT_EQ(repository_->retire(name, {}).error().code(), Code::not_found);
    EXPECT_EQ(repository_->find(tombstone.id).value(), name);
    compare_lineage(name);
  }

  void compare_lineage(const VersionName& name) const {
    const auto lineage = repository_->lineage(name);
    ASSERT_TRUE(lineage) << lineage.error().message();
    std::optional<VersionName> at = name;
    std::size_t row = 0;
    for (; at; ++row) {
      ASSERT_LT(row, lineage->size());
      const auto live = world_.live.find(*at);
      EXPECT_EQ((*lineage)[row].version, *at);
      EXPECT_EQ((*lineage)[row].retired, live == world_.live.end());
      const auto& ancestor =
          live == world_.live.end() ? world_.retired.at(*at).ancestor : live->second.version.manifest.ancestor;
      EXPECT_EQ((*lineage)[row].quality,
                live == world_.live.end() ? world_.retired.at(*at).quality : live->second.quality);
      at = ancestor ? std::optional(world_.names.at(*ancestor)) : std::nullopt;
    }
    EXPECT_EQ(row, lineage->size());
  }

  std::map<SegmentName, std::uint64_t> needed() const {
    std::map<SegmentName, std::uint64_t> segments;
    for (const auto& [name, known] : world_.live) {
      for (const SegmentName& segment : named(known)) segments.emplace(segment, world_.blobs.at(segment));
    }
    return segments;
  }

  void collect() {
    const auto keep = needed();
    std::uint64_t garbage = 0;
    std::uint64_t live = 0;
    for (const auto& [segment, bytes] : world_.blobs) (keep.count(segment) != 0 ? live : garbage) += bytes;
    const bool dry_run = one_in(2);
    const auto report = repository_->gc({.dry_run = dry_run}, {});
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report->freed_bytes, garbage);
    EXPECT_EQ(report->live_bytes, live);
    for (const GcRow& row : report->rows) EXPECT_EQ(world_.retired.count(row.version), 1u) << why(row);
    if (!dry_run) world_.blobs = keep;
  }

  void restart() {
    repository_.reset();
    repository_ = open_();
  }

  void compare_all() {
    std::uint64_t live_bytes = 0;
    const auto segments = needed();
    for (const auto& [segment, bytes] : segments) live_bytes += bytes;
    const auto stat = repository_->stat();
    EXPECT_EQ(stat->versions, world_.live.size());
    EXPECT_EQ(stat->retired_versions, world_.retired.size());
    EXPECT_EQ(stat->live_tensors, segments.size());
    EXPECT_EQ(stat->live_bytes, live_bytes);
    std::map<std::string, VersionNumber> newest;
    for (const auto& [name, known] : world_.live) {
      newest[name.model] = std::max(newest[name.model], name.number);
      std::vector<std::string> holders;
      for (const auto& [by, count] : known.pins) holders.push_back(by);
      EXPECT_EQ(repository_->pins(name).value(), holders);
    }
    std::vector<std::string> models;
    for (const auto& [model, number] : newest) {
      models.push_back(model);
      EXPECT_EQ(repository_->latest(model).value(), number);
    }
    EXPECT_EQ(repository_->models().value(), models);
    if (!world_.live.empty()) compare_lineage(some_live()->first);
    const auto report = repository_->verify(std::nullopt, {});
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report->checked_bytes, live_bytes);
    for (const auto& one : report->corrupt) ADD_FAILURE() << to_string(one.version) << one.record << ": " << one.reason;
    std::uint64_t garbage = 0;
    std::uint64_t unneeded = 0;
    for (const auto& [segment, bytes] : world_.blobs) garbage += segments.count(segment) != 0 ? 0 : bytes;
    for (const auto& one : report->unneeded) unneeded += one.bytes;
    EXPECT_EQ(unneeded, garbage);
  }

  std::mt19937_64 random_;
  const Open open_;
  const std::uint64_t restart_every_;
  std::unique_ptr<Repository> repository_;
  WorldOfSteps world_;
  std::vector<TestVersion> retired_;  ///< The last ones.
  std::uint64_t sequence_ = 0;
  std::uint64_t matched_ = 0;
};

std::uint64_t seed_of_run() { return from_environment("FRESHET_REPOSITORY_SEED", std::random_device()()); }

TEST(RepositorySteps, AgreeWithAModelInMemory) {
  const std::uint64_t seed = seed_of_run();
  SCOPED_TRACE(format("seed {}", seed));
  const std::shared_ptr<Backend> backend = make_memory_backend();
  Walk walk(
      seed, [&] { return open_or_die(std::make_unique<FaultBackend>(backend, FaultBackend::Plan{})); }, 1000);
  walk.steps(from_environment("FRESHET_REPOSITORY_STEPS", 4000 / kSlower));
}

TEST(RepositorySteps, AgreeWithAModelOnTheDisk) {
  const std::uint64_t seed = seed_of_run();
  SCOPED_TRACE(format("seed {}", seed));
  const TemporaryFolder folder;
  Walk walk(
      seed,
      [&] {
        auto backend = open_rocks_backend({.folder = folder / "store"});
        FRESHET_CHECK(backend.has_value());
        return open_or_die(std::move(*backend));
      },
      200);
  walk.steps(from_environment("FRESHET_REPOSITORY_DISK_STEPS", 400 / kSlower));
}

}  // namespace
}  // namespace freshet
