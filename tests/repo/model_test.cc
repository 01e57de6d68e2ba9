// SPDX-License-Identifier: Apache-2.0
/// Random steps against a model: a map of everything that was ever put.

#include <gtest/gtest.h>

#include "core/base/format.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

/// What the repository must say, kept in plain maps.
struct KnownModels {
  std::map<std::string, std::map<VersionNumber, TestVersion>> models;
  std::map<std::pair<VersionName, std::string>, int> pins;
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  void step(Repository& repository) {
    switch (random_() % 8) {
      case 0: return pin(repository);
      case 1: return unpin(repository);
      case 2: return put_again(repository);
      default: return put_new(repository);
    }
  }

  void compare(const Repository& repository) const {
    std::vector<std::string> models;
    std::map<SegmentName, std::uint64_t> segments;
    std::uint64_t versions = 0;
    for (const auto& [model, known] : known_.models) {
      models.push_back(model);
      versions += known.size();
      EXPECT_EQ(repository.latest(model).value(), known.rbegin()->first);
      for (const auto& [number, version] : known)
        compare_version(repository, {.model = model, .number = number}, version, segments);
    }
    EXPECT_EQ(repository.models().value(), models);
    const auto stat = repository.stat();
    std::uint64_t bytes = 0;
    for (const auto& [name, size] : segments) bytes += size;
    EXPECT_EQ(stat->versions, versions);
    EXPECT_EQ(stat->live_tensors, segments.size());
    EXPECT_EQ(stat->live_bytes, bytes);
    const auto report = repository.verify(std::nullopt, {});
    EXPECT_EQ(report->checked_bytes, bytes);
    EXPECT_TRUE(report->corrupt.empty());
  }

 private:
  const TestVersion* some_version() {
    if (known_.models.empty()) return nullptr;
    auto model = known_.models.begin();
    std::advance(model, random_() % known_.models.size());
    auto version = model->second.begin();
    std::advance(version, random_() % model->second.size());
    return &version->second;
  }

  void put_new(Repository& repository) {
    const std::string model = "model" + std::to_string(random_() % 3);
    const TestVersion* base = random_() % 4 == 0 ? nullptr : some_version();
    const auto architecture = base != nullptr
                                  ? base->manifest.architecture
                                  : test_architecture({random_() % 50, random_() % 5000, 1 + random_() % 9});
    std::vector<std::uint32_t> changed;
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      if (random_() % 2 == 0) changed.push_back(tensor);
    }
    TestVersion version =
        make_version(model, test_id(++sequence_, random_() % 3), architecture, base, changed, random_);
    if (random_() % 8 == 0) return skip_a_version(repository, version);
    store(repository, std::move(version));
  }

  // The next one's base was never stored: what it lacks must be adopted.
  void skip_a_version(Repository& repository, const TestVersion& unseen) {
    store(repository, make_version(unseen.manifest.name.model, test_id(++sequence_), unseen.manifest.architecture,
                                   &unseen, {1}, random_));
  }

  void store(Repository& repository, TestVersion version) {
    auto& known = known_.models[version.manifest.name.model];
    const VersionNumber newest = known.empty() ? 0 : known.rbegin()->first;
    version.manifest.name.number = random_() % 3 == 0 ? random_() % (newest + 5) : 0;
    const VersionNumber expected = std::max(newest + 1, version.manifest.name.number);
    const auto name = put(repository, version);
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(name->number, expected);
    version.manifest.name = *name;
    known.emplace(name->number, std::move(version));
  }

  void put_again(Repository& repository) {
    if (const TestVersion* version = some_version()) {
      EXPECT_EQ(put(repository, *version).error().code(), Code::already_exists);
    }
  }

  void pin(Repository& repository) {
    if (const TestVersion* version = some_version()) {
      const std::string by = "holder" + std::to_string(random_() % 2);
      EXPECT_TRUE(repository.pin(version->manifest.name, by));
      ++known_.pins[{version->manifest.name, by}];
    }
  }

  void unpin(Repository& repository) {
    if (const TestVersion* version = some_version()) {
      const std::string by = "holder" + std::to_string(random_() % 2);
      int& count = known_.pins[{version->manifest.name, by}];
      EXPECT_EQ(repository.unpin(version->manifest.name, by).has_value(), count > 0);
      count = std::max(count - 1, 0);
    }
  }

  void compare_version(const Repository& repository, const VersionName& name, const TestVersion& version,
                       std::map<SegmentName, std::uint64_t>& segments) const {
    SCOPED_TRACE(to_string(name));
    EXPECT_EQ(repository.find(version.manifest.id).value(), name);
    EXPECT_EQ(read_all(repository, name).value(), version.bytes);
    for (std::uint32_t tensor = 0; tensor < version.bytes.size(); ++tensor) {
      segments[version.manifest.owners[tensor]] = version.bytes[tensor].size();
    }
    std::vector<std::string> holders;
    for (const auto& [key, count] : known_.pins) {
      if (key.first == name && count > 0) holders.push_back(key.second);
    }
    EXPECT_EQ(repository.pins(name).value(), holders);
    EXPECT_EQ(repository.lineage(name)->size(), chain_length(version));
  }

  std::size_t chain_length(const TestVersion& version) const {
    std::size_t length = 1;
    std::optional<VersionId> ancestor = version.manifest.ancestor;
    while (ancestor) {
      const TestVersion* found = nullptr;
      for (const auto& [model, versions] : known_.models) {
        for (const auto& [number, candidate] : versions) {
          if (candidate.manifest.id == *ancestor) found = &candidate;
        }
      }
      if (found == nullptr) break;
      ++length;
      ancestor = found->manifest.ancestor;
    }
    return length;
  }

  std::mt19937_64 random_;
  KnownModels known_;
  std::uint64_t sequence_ = 0;
};

TEST(RepositoryModel, RandomStepsInMemory) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(format("seed {}", seed));
  const auto repository = open_or_die(make_memory_backend());
  World world(seed);
  for (int i = 0; i < 300; ++i) {
    world.step(*repository);
    if (i % 50 == 49) world.compare(*repository);
  }
}

TEST(RepositoryModel, RandomStepsOnTheDiskWithReopening) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(format("seed {}", seed));
  const TemporaryFolder folder;
  World world(seed);
  for (int round = 0; round < 5; ++round) {
    auto backend = open_rocks_backend({.folder = folder / "store"});
    ASSERT_TRUE(backend) << backend.error().message();
    const auto repository = open_or_die(std::move(*backend));
    if (round > 0) world.compare(*repository);
    for (int i = 0; i < 15; ++i) world.step(*repository);
    world.compare(*repository);
  }
}

}  // namespace
}  // namespace freshet
