// SPDX-License-Identifier: Apache-2.0
/// What is stored once, or nearly once: equal tensors that came without lineage, and siblings that were fine-tuned
/// everywhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/base/format.h"
#include "repo/records/records.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class Sharing : public testing::Test {
 protected:
  std::unique_ptr<ProviderRepository> open() {
    return open_or_die(std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{}));
  }

  TestVersion version(const std::string& model, const std::shared_ptr<const Architecture>& architecture) {
    return make_version(model, test_id(++sequence_), architecture, nullptr, {}, random_);
  }

  SegmentRow row_of(const SegmentName& segment) const {
    return decode_segment_row(backend_->get(segment_record_key(segment)).value()).value();
  }

  std::set<std::string> blobs() const {
    std::set<std::string> keys;
    EXPECT_TRUE(backend_->list_blobs([&](std::string_view key, std::uint64_t) { return keys.emplace(key).second; }));
    return keys;
  }

  const std::uint64_t seed_ = std::random_device()();
  const testing::ScopedTrace said_{__FILE__, __LINE__, format("seed {}", seed_)};
  std::mt19937_64 random_{seed_};
  std::uint64_t sequence_ = 0;
  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::unique_ptr<ProviderRepository> repository_ = open();
};

TEST_F(Sharing, EqualTensorsWithoutLineageAreInherited) {
  const auto architecture = test_architecture({100, 0, 300, 50});
  TestVersion first = version("first", architecture);
  first.manifest.name = put(*repository_, first).value();
  TestVersion second = version("second", architecture);
  second.bytes[0] = first.bytes[0];
  second.bytes[2] = first.bytes[2];
  for (std::size_t i = 0; i < 4; ++i) second.manifest.digests[i] = digest_of(second.bytes[i]);
  std::vector<std::uint32_t> asked;
  const auto name = repository_->put(second.manifest,
                                     [&](std::uint32_t tensor) -> Result<Bytes> {
                                       asked.push_back(tensor);
                                       return Bytes(second.bytes[tensor]);
                                     },
                                     {.dedup = true});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(asked, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(read_all(*repository_, *name).value(), second.bytes);
  const auto record = repository_->get(*name);
  EXPECT_EQ(record->manifest.owners[0], first.manifest.owners[0]);
  EXPECT_EQ(record->manifest.owners[2], first.manifest.owners[2]);
  EXPECT_EQ(record->inherited_bytes, 400u);
  EXPECT_EQ(record->own_bytes, 50u);
  EXPECT_EQ(repository_->stat()->live_bytes, 500u);
  EXPECT_EQ(repository_->owners(*name)->front().owner, first.manifest.name);
}

TEST_F(Sharing, WhatWasRetiredIsNotInherited) {
  const auto architecture = test_architecture({100, 200});
  TestVersion first = version("first", architecture);
  first.manifest.name = put(*repository_, first, {.dedup = true}).value();
  TestVersion second = version("second", architecture);
  second.bytes = first.bytes;
  second.manifest.digests = first.manifest.digests;
  ASSERT_TRUE(repository_->retire(first.manifest.name, {}));
  const auto name = put(*repository_, second, {.dedup = true});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(repository_->get(*name)->own_bytes, 300u);
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(read_all(*repository_, *name).value(), second.bytes);
}

TEST_F(Sharing, ContentIsStoredOnceWhateverItsOrder) {
  std::vector<std::vector<std::byte>> contents;
  for (int i = 0; i < 6; ++i) contents.push_back(random_bytes(1 + random_() % 40, random_));
  std::set<std::vector<std::byte>> stored;
  std::uint64_t bytes = 0;
  std::map<std::string, std::vector<std::vector<std::byte>>> known;
  for (int i = 0; i < 60; ++i) {
    // Each content at most once in a version: a version's own tensors stand for themselves.
    std::vector<std::vector<std::byte>> mine = contents;
    std::shuffle(mine.begin(), mine.end(), random_);
    mine.resize(1 + random_() % mine.size());
    std::vector<std::uint64_t> sizes;
    for (const auto& one : mine) sizes.push_back(one.size());
    TestVersion next = version("m" + std::to_string(i), test_architecture(sizes));
    next.bytes = mine;
    for (std::size_t t = 0; t < mine.size(); ++t) next.manifest.digests[t] = digest_of(mine[t]);
    const auto name = put(*repository_, next, {.dedup = true});
    ASSERT_TRUE(name) << name.error().message();
    for (const auto& one : mine) bytes += stored.insert(one).second ? one.size() : 0;
    ASSERT_EQ(repository_->stat()->live_bytes, bytes);
    known[to_string(*name)] = mine;
    if (i % 20 == 19) repository_ = open();
  }
  for (const auto& [name, expected] : known) {
    EXPECT_EQ(read_all(*repository_, parse_version_name(name).value()).value(), expected);
  }
}

/// A model of floats, as training leaves them: many small numbers.
class FineTuned : public Sharing {
 protected:
  static constexpr std::uint64_t kElements = 40'000;

  static std::shared_ptr<const Architecture> architecture() {
    return Architecture::guess_chain({{.name = "a.kernel", .dtype = DType::bf16, .shape = {kElements}},
                                      {.name = "b.kernel", .dtype = DType::f32, .shape = {200, kElements / 200}},
                                      {.name = "c.bias", .dtype = DType::f32, .shape = {10}}})
        .value();
  }

  TestVersion pretrained() {
    TestVersion version = this->version("base", architecture());
    std::normal_distribution<float> weight(0, 0.02F);
    std::vector<float> values(kElements);
    for (float& value : values) value = weight(random_);
    std::memcpy(version.bytes[1].data(), values.data(), version.bytes[1].size());
    for (std::size_t i = 0; i < kElements; ++i) {
      std::memcpy(version.bytes[0].data() + 2 * i, reinterpret_cast<const std::byte*>(&values[i]) + 2, 2);
    }
    prove(version);
    return version;
  }

  // Every f32 moves by a ten-thousandth, one bf16 in a hundred by its last place.
  TestVersion tuned(const TestVersion& base, const std::string& model) {
    TestVersion next = make_version(model, test_id(++sequence_), base.manifest.architecture, &base, {0, 1, 2}, random_);
    next.bytes = base.bytes;
    std::normal_distribution<float> step(1, 1e-4F);
    for (std::size_t i = 0; i < kElements; ++i) {
      float value = 0;
      std::memcpy(&value, next.bytes[1].data() + 4 * i, 4);
      value *= step(random_);
      std::memcpy(next.bytes[1].data() + 4 * i, &value, 4);
      if (random_() % 100 == 0) next.bytes[0][2 * i] ^= std::byte{1};
    }
    next.bytes[2] = random_bytes(40, random_);
    prove(next);
    return next;
  }

  static void prove(TestVersion& version) {
    for (std::size_t i = 0; i < version.bytes.size(); ++i) version.manifest.digests[i] = digest_of(version.bytes[i]);
  }

  void store(TestVersion& version) {
    const auto name = put(*repository_, version, {.deltas = true});
    ASSERT_TRUE(name) << name.error().message();
    version.manifest.name = *name;
  }
};

TEST_F(FineTuned, SiblingsAreDifferencesFromWhatTheyCameFrom) {
  TestVersion base = pretrained();
  store(base);
  TestVersion first = tuned(base, "first");
  store(first);
  TestVersion second = tuned(base, "second");
  store(second);
  TestVersion child = tuned(first, "child");
  store(child);
  EXPECT_FALSE(row_of(base.manifest.owners[0]).base);
  for (const TestVersion* version : {&first, &second, &child}) {
    for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
      const SegmentRow row = row_of(version->manifest.owners[tensor]);
      // One hop, also for the child's child.
      EXPECT_EQ(row.base, base.manifest.owners[tensor]);
      EXPECT_LE(row.delta_bytes, row.bytes / 4 * 3);
      RecordProperty(format("share_of_tensor_{}_in_percent", tensor),
                     static_cast<int>(100 * row.delta_bytes / row.bytes));
    }
    EXPECT_FALSE(row_of(version->manifest.owners[2]).base) << "too small";
    EXPECT_EQ(read_all(*repository_, version->manifest.name).value(), version->bytes);
  }
  EXPECT_EQ(blobs().size(), 12u);
  const auto report = repository_->verify(std::nullopt, {});
  EXPECT_TRUE(report->corrupt.empty());
  EXPECT_EQ(report->checked_bytes, repository_->stat()->live_bytes);
  repository_ = open();
  EXPECT_EQ(blobs().size(), 12u) << "a delta is no leftover";
  for (const TestVersion* version : {&base, &first, &second, &child}) {
    EXPECT_EQ(read_all(*repository_, version->manifest.name).value(), version->bytes);
  }
}

TEST_F(FineTuned, PartsOfADifferenceCanBeRead) {
  TestVersion base = pretrained();
  store(base);
  TestVersion child = tuned(base, "child");
  store(child);
  ASSERT_TRUE(row_of(child.manifest.owners[1]).base);
  const auto record = repository_->get(child.manifest.name);
  for (int i = 0; i < 50; ++i) {
    const auto tensor = static_cast<std::uint32_t>(random_() % 3);
    const Bytes whole(child.bytes[tensor]);
    const std::size_t offset = random_() % (whole.size() + 1);
    std::vector<std::byte> part(random_() % (whole.size() - offset + 1));
    ASSERT_TRUE(repository_->read_range(*record, tensor, offset, part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(offset)));
  }
}

TEST_F(FineTuned, WhatDoesNotPayIsKeptAsItIs) {
  TestVersion base = pretrained();
  store(base);
  TestVersion other = make_version("other", test_id(++sequence_), base.manifest.architecture, &base, {0, 1}, random_);
  store(other);
  EXPECT_FALSE(row_of(other.manifest.owners[0]).base);
  EXPECT_FALSE(row_of(other.manifest.owners[1]).base);
  // Who comes from that one is a difference from it, not from the first.
  TestVersion child = tuned(other, "child");
  store(child);
  EXPECT_EQ(row_of(child.manifest.owners[0]).base, other.manifest.owners[0]);
  EXPECT_EQ(read_all(*repository_, child.manifest.name).value(), child.bytes);
}

TEST_F(FineTuned, DamageOfADifferenceOrOfItsBaseIsFound) {
  TestVersion base = pretrained();
  store(base);
  TestVersion child = tuned(base, "child");
  store(child);
  const auto damage = [&](const std::string& key, std::size_t bytes) {
    std::vector<std::byte> good(bytes);
    ASSERT_TRUE(backend_->read_blob(key, 0, good));
    std::vector<std::byte> bad = good;
    bad[random_() % bytes] ^= std::byte{0x40};
    const auto write = [&](const std::vector<std::byte>& what) {
      auto writer = backend_->write_blobs();
      ASSERT_TRUE((*writer)->write(key, what));
      ASSERT_TRUE((*writer)->commit());
    };
    write(bad);
    EXPECT_TRUE(is_refused(read_all(*repository_, child.manifest.name), Code::corrupt));
    EXPECT_GE(repository_->verify(std::nullopt, {})->corrupt.size(), 1u);
    write(good);
    EXPECT_EQ(read_all(*repository_, child.manifest.name).value(), child.bytes);
  };
  const SegmentName segment = child.manifest.owners[1];
  damage(delta_key(segment), row_of(segment).delta_bytes);
  damage(segment_key(base.manifest.owners[1]), base.bytes[1].size());
  ASSERT_TRUE(backend_->erase_blob(delta_key(segment)));
  EXPECT_EQ(read_all(*repository_, child.manifest.name).error().code(), Code::corrupt);
}

TEST_F(FineTuned, ALengthThatOnlyARecordClaimsTakesNoMemory) {
  TestVersion base = pretrained();
  store(base);
  TestVersion child = tuned(base, "child");
  store(child);
  const SegmentName segment = child.manifest.owners[1];
  SegmentRow row = row_of(segment);
  row.bytes = std::uint64_t{1} << 60;
  ASSERT_TRUE(backend_->apply({Backend::Put{segment_record_key(segment), encode(row)}}));
  std::vector<std::byte> part(8);
  EXPECT_TRUE(
      is_refused(repository_->read_segment_range(segment, 0, part), Code::corrupt, "its base has another size"));
  EXPECT_GE(repository_->verify(std::nullopt, {})->corrupt.size(), 1u);
}

TEST_F(FineTuned, WhatADifferenceNeedsOutlivesItsWriter) {
  TestVersion base = pretrained();
  store(base);
  TestVersion child = tuned(base, "child");
  store(child);
  ASSERT_TRUE(repository_->retire(base.manifest.name, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(read_all(*repository_, child.manifest.name).value(), child.bytes);
  repository_ = open();
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(read_all(*repository_, child.manifest.name).value(), child.bytes);
  EXPECT_EQ(blobs().size(), 5u) << "the base's two that are needed, and the child's three";
  ASSERT_TRUE(repository_->retire(child.manifest.name, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_TRUE(blobs().empty());
  EXPECT_EQ(repository_->stat()->live_bytes, 0u);
}

TEST_F(FineTuned, ACrashAtAnyCallLeavesWholeVersions) {
  const TestVersion base = pretrained();
  const TestVersion child = tuned(base, "child");
  for (std::uint64_t at = 1;; ++at) {
    SCOPED_TRACE("crash at call " + std::to_string(at));
    ASSERT_LT(at, 50u);
    backend_ = make_memory_backend();
    repository_ = open();
    ASSERT_TRUE(put(*repository_, base));
    auto crashing = std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{});
    FaultBackend& faults = *crashing;
    repository_ = open_or_die(std::move(crashing));
    faults.set_plan({.fault = FaultBackend::Fault::crash_midway, .at = at});
    const bool done = put(*repository_, child, {.deltas = true}).has_value();
    repository_ = open();
    EXPECT_EQ(blobs().size(), repository_->find(child.manifest.id).value() ? 6u : 3u);
    EXPECT_TRUE(repository_->verify(std::nullopt, {})->corrupt.empty());
    if (done) break;
  }
}

}  // namespace
}  // namespace freshet
