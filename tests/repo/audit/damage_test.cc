// SPDX-License-Identifier: Apache-2.0
/// Stored bytes that are not what was written: said so to whoever asks for them, and hiding nothing else.

#include <gtest/gtest.h>

#include "core/base/format.h"
#include "repo/backend/backend_wrapper.h"
#include "repo/records/records.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    const auto repository = open();
    std::mt19937_64 random(9);
    const auto architecture = test_architecture({100, 5'000'000, 30});
    for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
      versions_.push_back(make_version("net", test_id(sequence), architecture,
                                       versions_.empty() ? nullptr : &versions_.back(), {0}, random));
      versions_.back().manifest.name.number = sequence;
      ASSERT_TRUE(put(*repository, versions_.back()));
    }
  }

  std::unique_ptr<Repository> open() {
    return open_or_die(std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{}));
  }

  void expect_only_second_is_corrupt(const Repository& repository) {
    EXPECT_EQ(read_all(repository, name(1)).value(), versions_[0].bytes);
    EXPECT_EQ(read_all(repository, name(3)).value(), versions_[2].bytes);
    EXPECT_TRUE(is_refused(read_all(repository, name(2)), Code::corrupt, "net@2"));
    const auto report = repository.verify(std::nullopt, {});
    ASSERT_TRUE(report);
    ASSERT_EQ(report->corrupt.size(), 1u);
    EXPECT_EQ(to_string(report->corrupt[0].version), "net@2");
    EXPECT_EQ(repository.versions("net")->size(), 3u);
  }

  /// Where a version's manifest lies. They change so much that the third's is not based on the second's.
  std::string manifest_record(VersionNumber number) const {
    const VersionRow row = decode_version_row(backend_->get(version_key(name(number))).value()).value();
    return entry_key(row.group, row.entry);
  }

  static VersionName name(VersionNumber number) { return {.model = "net", .number = number}; }

  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::vector<TestVersion> versions_;
};

TEST_F(Damage, AFlippedByteOfAPayloadIsFound) {
  const std::string key = segment_key(versions_[1].manifest.owners[0]);
  std::vector<std::byte> bytes = versions_[1].bytes[0];
  bytes[50] ^= std::byte{0x10};
  auto writer = backend_->write_blobs();
  ASSERT_TRUE((*writer)->write(key, bytes));
  ASSERT_TRUE((*writer)->commit());
  const auto repository = open();
  expect_only_second_is_corrupt(*repository);
  const auto report = repository->verify(std::nullopt, {});
  EXPECT_EQ(report->corrupt[0].tensor, "layer0.kernel");
  EXPECT_EQ(report->checked_bytes, 5'000'330u);
  EXPECT_TRUE(repository->verify(name(1), {})->corrupt.empty());
  EXPECT_EQ(repository->verify(name(2), {})->corrupt.size(), 1u);
}

TEST_F(Damage, ALostOrShortenedPayloadIsFound) {
  const std::string key = segment_key(versions_[1].manifest.owners[0]);
  ASSERT_TRUE(backend_->erase_blob(key));
  expect_only_second_is_corrupt(*open());
  auto writer = backend_->write_blobs();
  ASSERT_TRUE((*writer)->write(key, Bytes(versions_[1].bytes[0]).first(99)));
  ASSERT_TRUE((*writer)->commit());
  expect_only_second_is_corrupt(*open());
}

TEST_F(Damage, AManifestWithAnyByteFlippedIsFound) {
  const std::string good = backend_->get(manifest_record(2)).value();
  const auto repository = open();
  for (std::size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    ASSERT_TRUE(backend_->apply({Backend::Put{manifest_record(2), bad}}));
    EXPECT_EQ(repository->get(name(2)).error().code(), Code::corrupt);
  }
  expect_only_second_is_corrupt(*repository);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}, good.size() / 2, good.size() - 1}) {
    ASSERT_TRUE(backend_->apply({Backend::Put{manifest_record(2), good.substr(0, bytes)}}));
    expect_only_second_is_corrupt(*repository);
  }
  ASSERT_TRUE(backend_->apply({Backend::Erase{manifest_record(2)}}));
  expect_only_second_is_corrupt(*repository);
}

TEST_F(Damage, TheManifestOfAnotherVersionIsFound) {
  ASSERT_TRUE(backend_->apply({Backend::Put{manifest_record(2), backend_->get(manifest_record(1)).value()}}));
  expect_only_second_is_corrupt(*open());
}

TEST_F(Damage, ARowCutAnywhereIsFound) {
  const std::string good = backend_->get(version_key(name(2))).value();
  for (std::size_t bytes = 0; bytes < good.size(); bytes += 5) {
    SCOPED_TRACE(bytes);
    ASSERT_TRUE(backend_->apply({Backend::Put{version_key(name(2)), good.substr(0, bytes)}}));
    expect_only_second_is_corrupt(*open());
  }
  // Its number stays taken, and the model goes on.
  std::mt19937_64 random(1);
  const auto repository = open();
  TestVersion fourth = make_version("net", test_id(4), versions_[0].manifest.architecture, &versions_[2], {0}, random);
  EXPECT_EQ(put(*repository, fourth)->number, 4u);
}

TEST_F(Damage, ALostArchitectureIsSaid) {
  const auto digest = versions_[0].manifest.architecture->digest();
  ASSERT_TRUE(backend_->apply({Backend::Put{architecture_key(digest), "no architecture"}}));
  EXPECT_EQ(open()->get(name(1)).error().code(), Code::corrupt);
  ASSERT_TRUE(backend_->apply({Backend::Erase{architecture_key(digest)}}));
  const auto missing = open()->get(name(1));
  EXPECT_EQ(missing.error().code(), Code::corrupt);
  EXPECT_EQ(missing.error().message(), "net@1: its architecture is missing");
}

TEST_F(Damage, AReferenceIsDroppedBesideADamagedOne) {
  const SegmentName segment = versions_[0].manifest.owners[0];
  const auto open_provider = [this] { return open_or_die(std::make_unique<BackendWrapper>(backend_)); };
  {
    const auto provider = open_provider();
    for (const std::uint64_t sequence : {50, 60}) {
      ASSERT_TRUE(
          provider->add_referrer({.version = test_id(sequence), .attempt = 9, .home = "b", .segments = {segment}}));
    }
    ASSERT_TRUE(provider->retire(name(1), {}));
  }
  const std::string damaged = referrer_key(test_id(50), 9, segment.writer);
  ASSERT_TRUE(backend_->apply({Backend::Put{damaged, "x"}}));
  const auto provider = open_provider();
  EXPECT_TRUE(provider->drop_referrer(test_id(60), 9)) << "what it names was not counted";
  EXPECT_EQ(provider->drop_referrer(test_id(50), 9).error().code(), Code::corrupt);
  EXPECT_TRUE(backend_->get(segment_record_key(segment))) << "the damaged one may name it";
  ASSERT_TRUE(provider->add_referrer({.version = test_id(50), .attempt = 9, .home = "b", .segments = {segment}}));
  ASSERT_TRUE(provider->drop_referrer(test_id(50), 9));
  EXPECT_FALSE(backend_->get(segment_record_key(segment))) << "nobody names it now";
}

TEST_F(Damage, StrangeKeysAreNoVersions) {
  ASSERT_TRUE(backend_->apply({Backend::Put{"v/", ""}, Backend::Put{"v/net", "x"},
                               Backend::Put{"v/../x" + std::string(9, '\0'), "x"}, Backend::Put{"h/net", "many"},
                               Backend::Put{"s/short", "x"}}));
  const auto repository = open();
  EXPECT_EQ(repository->models().value(), std::vector<std::string>{"net"});
  EXPECT_EQ(repository->versions("net")->size(), 3u);
}

TEST_F(Damage, AnotherFormatIsRefused) {
  const auto refusal_of = [&](const std::string& number) {
    EXPECT_TRUE(backend_->apply({Backend::Put{"format", number}}));
    const auto refused = Repository::open(std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{}), {});
    EXPECT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::unsupported);
    EXPECT_EQ(backend_->get("format").value(), number) << "it stays what it was";
    return refused.error().message();
  };
  EXPECT_EQ(
      refusal_of("4"),
      "the repository was written by a newer Freshet (format 4); this Freshet reads format 3. Use the newer Freshet");
  for (const std::string older : {"1", "2"}) {
    EXPECT_EQ(refusal_of(older),
              "the repository was written by an older Freshet (format " + older +
                  "); this Freshet reads format 3. Write its versions to files with that Freshet (freshet repo export "
                  "--all), and import the files into a new repository (freshet repo import --plain)");
  }
  ASSERT_TRUE(backend_->apply({Backend::Put{"format", "two"}}));
  EXPECT_TRUE(
      is_refused(Repository::open(std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{}), {}), Code::corrupt));
}

}  // namespace
}  // namespace freshet
