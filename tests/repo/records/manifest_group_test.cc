// SPDX-License-Identifier: Apache-2.0
/// Manifests of a lineage share their equal parts: what is read back is what was put, to the last tag, and what is
/// stored grows with what changed.

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "core/base/format.h"
#include "repo/records/records.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

/// Metadata is a version's records; the architecture's is stored once.
struct Records {
  std::uint64_t bytes = 0;
  std::uint64_t manifests = 0;
};

Records records_of(const Backend& backend) {
  Records records;
  EXPECT_TRUE(backend.scan("", [&](std::string_view key, std::string_view value) {
    if (key.starts_with("a/")) return true;
    records.bytes += key.size() + value.size();
    if (key.starts_with("e/")) records.manifests += key.size() + value.size();
    return true;
  }));
  return records;
}

std::unique_ptr<Repository> open_on(const std::shared_ptr<Backend>& backend) {
  return open_or_die(std::make_unique<FaultBackend>(backend, FaultBackend::Plan{}));
}

VersionRow row_of(const Backend& backend, const VersionName& name) {
  return decode_version_row(backend.get(version_key(name)).value()).value();
}

std::string text(const Manifest& manifest) {
  const std::vector<std::byte> encoded = encode(manifest);
  return std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size());
}

/// Owner maps alone count here: every tensor is empty, and so stored in no time.
TestVersion bare_version(const VersionId& id, const std::shared_ptr<const Architecture>& architecture,
                         const TestVersion* base, const std::vector<std::uint32_t>& changed) {
  std::mt19937_64 unused;
  return make_version("net", id, architecture, base, changed, unused);
}

std::vector<std::uint32_t> some_of(std::uint32_t tensors, std::size_t count, std::mt19937_64& random) {
  std::set<std::uint32_t> chosen;
  while (chosen.size() < count) chosen.insert(static_cast<std::uint32_t>(random() % tensors));
  return {chosen.begin(), chosen.end()};
}

// 5 % of 500 tensors change from version to version. What that needs is what versions of 25 tensors need that all
// change.
TEST(ManifestGroup, MetadataGrowsWithWhatChanged) {
  constexpr std::uint64_t kVersions = 300;
  const auto backend = std::shared_ptr<Backend>(make_memory_backend());
  const auto least = std::shared_ptr<Backend>(make_memory_backend());
  {
    const auto large = test_architecture(std::vector<std::uint64_t>(500, 1));
    const auto small = test_architecture(std::vector<std::uint64_t>(25, 1));
    const auto lineage = open_on(backend);
    const auto roots = open_on(least);
    std::mt19937_64 random(11);
    TestVersion last;
    for (std::uint64_t sequence = 1; sequence <= kVersions; ++sequence) {
      TestVersion next =
          bare_version(test_id(sequence), large, sequence == 1 ? nullptr : &last, some_of(500, 25, random));
      next.manifest.name = put(*lineage, next).value();
      last = std::move(next);
      ASSERT_TRUE(put(*roots, bare_version(test_id(sequence), small, nullptr, {})));
    }
  }
  const Records ours = records_of(*backend);
  const Records needed = records_of(*least);
  RecordProperty("bytes_per_version", static_cast<int>(ours.bytes / kVersions));
  RecordProperty("needed_per_version", static_cast<int>(needed.bytes / kVersions));
  EXPECT_LE(ours.bytes, 2 * needed.bytes);
  EXPECT_LE(ours.manifests, kVersions * 2'500);
}

// However long the lineage, what must be read for one version is less than three whole manifests.
TEST(ManifestGroup, ReadingIsOneShortScanAtAnyDepth) {
  const auto backend = std::shared_ptr<Backend>(make_memory_backend());
  const auto repository = open_on(backend);
  const auto architecture = test_architecture(std::vector<std::uint64_t>(100, 1));
  std::mt19937_64 random(12);
  TestVersion last;
  std::uint64_t whole = 0;
  for (std::uint64_t sequence = 1; sequence <= 400; ++sequence) {
    TestVersion next =
        bare_version(test_id(sequence), architecture, sequence == 1 ? nullptr : &last, some_of(100, 1, random));
    next.manifest.name = put(*repository, next).value();
    last = std::move(next);
    whole = std::max<std::uint64_t>(whole, encode(last.manifest).size());
    const VersionRow row = row_of(*backend, last.manifest.name);
    std::uint64_t group = 0;
    ASSERT_TRUE(backend->scan(group_prefix(row.group), [&](std::string_view, std::string_view value) {
      group += value.size();
      return true;
    }));
    ASSERT_LE(group, 3 * whole) << sequence;
  }
}

/// Random lineages: branches, other architectures, tags and metrics, versions that were never stored.
class Lineages {
 public:
  explicit Lineages(std::uint64_t seed) : random_(seed) {}

  void grow(Repository& repository) {
    const TestVersion* base =
        versions_.empty() || random_() % 6 == 0 ? nullptr : &versions_[random_() % versions_.size()];
    TestVersion next = base == nullptr || random_() % 5 == 0 ? on_new_architecture(base) : changed(*base);
    annotate(next.manifest);
    if (random_() % 10 == 0) next = changed(next);  // What is between is never stored.
    next.manifest.name.number = 0;
    const auto name = put(repository, next);
    ASSERT_TRUE(name) << name.error().message();
    next.manifest.name = *name;
    versions_.push_back(std::move(next));
  }

  void retire_one(Repository& repository) {
    if (versions_.size() < 2) return;
    const auto chosen = versions_.begin() + static_cast<std::ptrdiff_t>(random_() % versions_.size());
    const auto retired = repository.retire(chosen->manifest.name, {});
    ASSERT_TRUE(retired) << retired.error().message();
    versions_.erase(chosen);
  }

  void compare(const Repository& repository) const {
    for (const TestVersion& version : versions_) {
      const auto record = repository.get(version.manifest.name);
      ASSERT_TRUE(record) << record.error().message();
      ASSERT_EQ(text(record->manifest), text(version.manifest)) << to_string(version.manifest.name);
    }
  }

  const std::vector<TestVersion>& versions() const { return versions_; }

 private:
  TestVersion changed(const TestVersion& base) {
    std::vector<std::uint32_t> tensors;
    const std::uint64_t one_in = 2 + random_() % 20;
    for (std::uint32_t i = 0; i < base.bytes.size(); ++i) {
      if (random_() % one_in == 0) tensors.push_back(i);
    }
    TestVersion next =
        make_version(model(), test_id(++sequence_, random_() % 3), base.manifest.architecture, &base, tensors, random_);
    next.manifest.tags = base.manifest.tags;
    return next;
  }

  // Layers come and go; the tensors that stay are inherited under another index.
  TestVersion on_new_architecture(const TestVersion* base) {
    std::vector<std::uint64_t> sizes;
    std::vector<std::optional<std::uint32_t>> from;
    const std::uint32_t known = base != nullptr ? static_cast<std::uint32_t>(base->bytes.size()) : 0;
    for (std::uint32_t i = 0; i < known; ++i) {
      if (random_() % 10 == 0) continue;
      sizes.push_back(base->bytes[i].size());
      from.emplace_back(i);
    }
    for (std::uint64_t i = random_() % 30; i > 0; --i) {
      const auto at = static_cast<std::ptrdiff_t>(random_() % (sizes.size() + 1));
      sizes.insert(sizes.begin() + at, random_() % 9);
      from.insert(from.begin() + at, std::nullopt);
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      from.emplace_back(std::nullopt);
    }
    TestVersion next =
        make_version(model(), test_id(++sequence_, random_() % 3), test_architecture(sizes), nullptr, {}, random_);
    if (base != nullptr) next.manifest.ancestor = base->manifest.id;
    std::vector<SegmentName> owners(next.manifest.owners.owners().begin(), next.manifest.owners.owners().end());
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (!from[i] || random_() % 8 == 0) continue;
      owners[i] = base->manifest.owners[*from[i]];
      next.bytes[i] = base->bytes[*from[i]];
      next.manifest.digests[i] = base->manifest.digests[*from[i]];
    }
    next.manifest.owners = OwnerMap(std::move(owners));
    return next;
  }

  void annotate(Manifest& manifest) {
    manifest.step = random_();
    manifest.created_unix_ns = static_cast<std::int64_t>(random_());
    manifest.metrics = {{"loss", -0.0}, {"lr", std::numeric_limits<double>::quiet_NaN()}};
    if (random_() % 2 == 0) manifest.metrics.pop_back();
    if (random_() % 3 == 0)
      manifest.tags.emplace_back("t" + std::to_string(random_()), std::string(random_() % 40, 'x'));
    if (random_() % 5 == 0 && !manifest.tags.empty()) manifest.tags.erase(manifest.tags.begin());
  }

  std::string model() { return "m" + std::to_string(random_() % 2); }

  std::mt19937_64 random_;
  std::uint64_t sequence_ = 0;
  std::vector<TestVersion> versions_;
};

TEST(ManifestGroup, RandomLineagesReadBackToTheBit) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(format("seed {}", seed));
  const auto backend = std::shared_ptr<Backend>(make_memory_backend());
  Lineages lineages(seed);
  auto repository = open_on(backend);
  for (int i = 0; i < 200; ++i) {
    ASSERT_NO_FATAL_FAILURE(lineages.grow(*repository));
    if (i % 50 != 49) continue;
    lineages.compare(*repository);
    repository = open_on(backend);
    lineages.compare(*repository);
  }
  // The test is about sharing: it must have happened.
  std::uint64_t shared = 0;
  for (const TestVersion& version : lineages.versions()) shared += row_of(*backend, version.manifest.name).entry != 0;
  EXPECT_GT(shared, 20u);
}

// What goes takes its own entry with it and leaves all others as they were.
TEST(ManifestGroup, RetiringLeavesTheOthersWhole) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(format("seed {}", seed));
  const auto backend = std::shared_ptr<Backend>(make_memory_backend());
  Lineages lineages(seed);
  auto repository = open_on(backend);
  std::mt19937_64 random(seed + 1);
  for (int i = 0; i < 300; ++i) {
    if (lineages.versions().size() < 60 && random() % 3 != 0) {
      ASSERT_NO_FATAL_FAILURE(lineages.grow(*repository));
    } else {
      ASSERT_NO_FATAL_FAILURE(lineages.retire_one(*repository));
    }
    if (i % 25 != 24) continue;
    ASSERT_NO_FATAL_FAILURE(lineages.compare(*repository));
    std::size_t entries = 0;
    ASSERT_TRUE(backend->scan("e/", [&](std::string_view, std::string_view) { return ++entries > 0; }));
    ASSERT_EQ(entries, lineages.versions().size());
    if (i % 50 == 49) repository = open_on(backend);
  }
}

// Whatever byte of whatever entry is damaged: a version is as it was put, or said to be corrupt.
TEST(ManifestGroup, DamageIsFoundInEveryVersionThatSharesIt) {
  const auto backend = std::shared_ptr<Backend>(make_memory_backend());
  Lineages lineages(5);
  const auto repository = open_on(backend);
  for (int i = 0; i < 30; ++i) ASSERT_NO_FATAL_FAILURE(lineages.grow(*repository));
  std::vector<Backend::Put> entries;
  ASSERT_TRUE(backend->scan("e/", [&](std::string_view key, std::string_view value) {
    entries.push_back({std::string(key), std::string(value)});
    return true;
  }));
  std::mt19937_64 random(6);
  for (int flip = 0; flip < 300; ++flip) {
    const Backend::Put& good = entries[random() % entries.size()];
    Backend::Put bad = good;
    char& byte = bad.value[random() % bad.value.size()];
    byte = static_cast<char>(byte ^ (1 << random() % 8));
    if (flip % 10 == 0) bad.value.resize(random() % bad.value.size());
    ASSERT_TRUE(backend->apply({bad}));
    std::size_t corrupt = 0;
    for (const TestVersion& version : lineages.versions()) {
      const auto record = repository->get(version.manifest.name);
      if (record) {
        EXPECT_EQ(text(record->manifest), text(version.manifest));
      } else {
        EXPECT_EQ(record.error().code(), Code::corrupt);
        ++corrupt;
      }
    }
    EXPECT_GE(corrupt, 1u) << "a byte nobody proves";
    ASSERT_TRUE(backend->apply({good}));
  }
  lineages.compare(*repository);
}

}  // namespace
}  // namespace freshet
