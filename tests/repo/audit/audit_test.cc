// SPDX-License-Identifier: Apache-2.0
/// Each kind of record damaged once, by hand, and found by name; and what is no damage.

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "core/base/format.h"
#include "repo/records/records.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

std::string with_bit_flipped(std::string value, std::size_t at) {
  value[at] = static_cast<char>(value[at] ^ 0x10);
  return value;
}

/// A store in which every kind of record is: a lineage net@1 to net@4 of which net@4 is kept as differences and net@2
/// is retired, other@1 of another architecture, an alias, a pin, versions elsewhere that name segments here.
class Audit : public testing::Test {
 protected:
  void SetUp() override {
    const auto repository = open();
    std::mt19937_64 random(7);
    const auto architecture = test_architecture({100, 9000, 30});
    for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) {
      TestVersion version = make_version("net", test_id(sequence), architecture,
                                         versions_.empty() ? nullptr : &versions_.back(), {0}, random);
      if (sequence == 4) fine_tune(version);
      version.manifest.name = put(*repository, version, {.quality = 0.5, .deltas = sequence == 4}).value();
      versions_.push_back(std::move(version));
    }
    TestVersion other = make_version("other", test_id(5), test_architecture({64}), nullptr, {}, random);
    other.manifest.name = put(*repository, other).value();
    versions_.push_back(std::move(other));
    ASSERT_TRUE(repository->set_alias("net", "best", std::nullopt, 3));
    ASSERT_TRUE(repository->pin(name(1), "me"));
    ASSERT_TRUE(
        repository->add_referrer({.version = test_id(50), .attempt = 9, .home = "b", .segments = {owner(1, 1)}}));
    ASSERT_EQ(repository->settle_put(test_id(60), 3).value(), false);
    ASSERT_TRUE(repository->retire(name(2), {}));
    ASSERT_TRUE(repository->gc({}, {}));
    const VersionRow fourth = row(4);
    ASSERT_TRUE(segment_row(owner(4, 1)).base) << "the fourth is to be kept as a difference";
    ASSERT_EQ(fourth.group, row(3).group) << "the fourth is to share its manifest with the third";
  }

  // A few elements of the large tensor change, so that a difference pays.
  static void fine_tune(TestVersion& version) {
    for (std::size_t at = 0; at < 9000; at += 500) version.bytes[1][at] ^= std::byte{1};
    version.manifest.owners = version.manifest.owners.with_written(version.manifest.id, std::vector<std::uint32_t>{1});
    version.manifest.digests[1] = digest_of(version.bytes[1]);
  }

  std::unique_ptr<ProviderRepository> open() {
    return open_or_die(std::make_unique<FaultBackend>(backend_, FaultBackend::Plan{}));
  }
  static VersionName name(VersionNumber number) { return {.model = "net", .number = number}; }
  SegmentName owner(std::size_t version, std::size_t tensor) const {
    return versions_[version - 1].manifest.owners[tensor];
  }
  VersionRow row(VersionNumber number) const { return decode_version_row(value(version_key(name(number)))).value(); }
  SegmentRow segment_row(const SegmentName& segment) const {
    return decode_segment_row(value(segment_record_key(segment))).value();
  }
  std::string entry(VersionNumber number) const { return entry_key(row(number).group, row(number).entry); }
  std::string value(const std::string& key) const { return backend_->get(key).value(); }

  void set(const std::string& key, const std::string& value) {
    ASSERT_TRUE(backend_->apply({Backend::Put{key, value}}));
  }
  void erase(const std::string& key) { ASSERT_TRUE(backend_->apply({Backend::Erase{key}})); }
  void write_blob(const std::string& key, const std::vector<std::byte>& bytes) {
    auto writer = backend_->write_blobs();
    ASSERT_TRUE((*writer)->write(key, bytes));
    ASSERT_TRUE((*writer)->commit());
  }

  /// "net@1 layer0.kernel: its bytes are missing", in the order of their names.
  static std::vector<std::string> findings(const Repository& repository) {
    const auto report = repository.verify(std::nullopt, {});
    EXPECT_TRUE(report) << report.error().message();
    std::vector<std::string> lines;
    for (const VerifyReport::Corrupt& one : report->corrupt) {
      const std::string what = one.version.number == 0 ? one.record : to_string(one.version);
      lines.push_back(what + (one.tensor.empty() || one.version.number == 0 ? "" : " " + one.tensor) + ": " +
                      one.reason);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

  static std::vector<std::string> unneeded(const Repository& repository) {
    std::vector<std::string> lines;
    const auto report = repository.verify(std::nullopt, {});
    EXPECT_TRUE(report->corrupt.empty());
    for (const auto& one : report->unneeded) lines.push_back(format("{}, {}: {}", one.what, one.bytes, one.reason));
    return lines;
  }

  /// What is found after `damage`, both by a process that was there before and by one that comes after it.
  void expect_found(const std::function<void()>& damage, const std::vector<std::string>& expected) {
    const auto before = open();
    damage();
    EXPECT_EQ(findings(*open()), expected);
    for (const std::string& line : expected) {
      const std::string what = line.substr(0, line.find(": "));
      const auto found = findings(*before);
      const bool named =
          std::any_of(found.begin(), found.end(), [&](const auto& one) { return one.starts_with(what); });
      EXPECT_TRUE(named) << what << " is not named by who had opened it before; " << found.size() << " findings";
    }
  }

  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::vector<TestVersion> versions_;
};

using Lines = std::vector<std::string>;

TEST_F(Audit, WhatIsWholeHasNoFinding) {
  const auto repository = open();
  const auto report = repository->verify(std::nullopt, {});
  EXPECT_EQ(findings(*repository), Lines{});
  EXPECT_TRUE(report->unneeded.empty());
  EXPECT_EQ(report->checked_bytes, 100u * 3 + 30 + 9000 * 2 + 64);
}

TEST_F(Audit, ASegmentWithoutItsRecord) {
  expect_found([&] { erase(segment_record_key(owner(3, 0))); },
               {"net@3 layer0.kernel: its record and its bytes are missing"});
}

TEST_F(Audit, ASegmentsRecordThatIsDamaged) {
  expect_found([&] { set(segment_record_key(owner(3, 0)), "x"); },
               {"net@3 layer0.kernel: the record of its bytes is damaged"});
}

TEST_F(Audit, ASegmentsRecordThatSaysAnotherDigest) {
  SegmentRow row = segment_row(owner(3, 0));
  ++row.digest.low;
  set(segment_record_key(owner(3, 0)), encode(row));
  const Lines found = findings(*open());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].find("net@3 layer0.kernel: inherits 100 bytes with digest"), 0u) << found[0];
  EXPECT_EQ(open()->verify(name(3), {})->corrupt.size(), 1u);
}

TEST_F(Audit, ABlobThatIsTooLong) {
  std::vector<std::byte> longer = versions_[2].bytes[0];
  longer.push_back({});
  expect_found([&] { write_blob(segment_key(owner(3, 0)), longer); },
               {"net@3 layer0.kernel: 101 bytes are stored, not 100"});
}

TEST_F(Audit, ADifferenceWithoutItsBytesOrItsBase) {
  const auto repository = open();
  ASSERT_TRUE(backend_->erase_blob(delta_key(owner(4, 1))));
  EXPECT_EQ(findings(*repository), Lines{"net@4 layer1.kernel: its difference is missing"});
}

TEST_F(Audit, ABaseThatIsLostIsTheDamageOfAllThatRestOnIt) {
  expect_found([&] { erase(segment_record_key(owner(1, 1))); },
               {"net@1 layer1.kernel: its record and its bytes are missing",
                "net@4 layer1.kernel: the segment's base is missing",
                format("x/{} of {}: names segments that are not stored: 1, the first one {}", to_string(test_id(50)),
                       to_string(test_id(1)), to_string(owner(1, 1)))});
}

TEST_F(Audit, AVersionWithoutItsRecord) {
  erase(version_key(name(3)));
  const Lines found = findings(*open());
  EXPECT_NE(std::find(found.begin(), found.end(), "net@3: its record is missing, and its manifest is there"),
            found.end());
}

TEST_F(Audit, AVersionsRecordThatIsDamaged) {
  expect_found([&] { set(version_key(name(3)), "x"); }, {"net@3: its record is damaged"});
}

TEST_F(Audit, AVersionsRecordThatDoesNotAgreeWithItsManifest) {
  VersionRow changed = row(3);
  changed.own_bytes += 1;
  expect_found([&] { set(version_key(name(3)), encode(changed)); },
               {"net@3: its record does not agree with its manifest"});
}

TEST_F(Audit, AQualityThatIsNotANumberIsNone) {
  VersionRow earlier = row(3);
  earlier.quality = std::numeric_limits<double>::quiet_NaN();
  set(version_key(name(3)), encode(earlier));
  const auto repository = open();
  EXPECT_EQ(findings(*repository), Lines{});
  EXPECT_FALSE(repository->get(name(3))->quality);
}

TEST_F(Audit, TwoVersionsOfOneIdentity) {
  VersionRow second = row(3);
  second.retired = true;
  set(version_key(name(2)), encode(second));
  const Lines found = findings(*open());
  EXPECT_NE(std::find(found.begin(), found.end(), "net@3: its record has the identity of net@2"), found.end());
}

TEST_F(Audit, ADamagedManifestIsTheDamageOfThoseThatRestOnItAlone) {
  const std::string third = entry(3);
  set(third, with_bit_flipped(value(third), value(third).size() / 2));
  const auto repository = open();
  std::vector<std::string> damaged;
  for (const std::string& line : findings(*repository)) damaged.push_back(line.substr(0, line.find(':')));
  EXPECT_EQ(damaged, (std::vector<std::string>{"net@3", "net@4"}));
  const Lines found = findings(*repository);
  EXPECT_NE(found[1].find("rests on entry"), std::string::npos) << found[1];
  EXPECT_TRUE(read_all(*repository, name(1)));
  EXPECT_TRUE(read_all(*repository, {.model = "other", .number = 1}));
}

TEST_F(Audit, AnArchitectureThatIsDamagedOrMissing) {
  const std::string key = architecture_key(versions_[4].manifest.architecture->digest());
  expect_found(
      [&] { set(key, with_bit_flipped(value(key), value(key).size() / 2)); },
      {format("other@1: an encoded architecture of {} bytes does not match its own digest", value(key).size())});
  expect_found([&] { erase(key); }, {"other@1: its architecture is missing"});
}

TEST_F(Audit, AnAliasThatMeansNothing) {
  expect_found([&] { set(alias_key("net", "best"), "2"); }, {"n/net@best: means nothing: net@2 was retired"});
  expect_found([&] { set(alias_key("net", "best"), "9"); }, {"n/net@best: means nothing: net@9 is not there"});
  expect_found([&] { set(alias_key("net", "best"), "x"); }, {"n/net@best: does not name a version"});
}

TEST_F(Audit, APinOfAVersionThatIsGone) {
  expect_found([&] { set(pin_key(name(2), "me"), "1"); }, {"p/net@2 by me: pins nothing: net@2 was retired"});
  expect_found([&] { set(pin_key(name(2), "me"), "none"); }, {"p/net@2 by me: is not a count"});
}

TEST_F(Audit, AReferrerThatIsDamaged) {
  const std::string key = referrer_key(test_id(50), 9, test_id(1));
  expect_found([&] { set(key, "x"); },
               {format("x/{} of {}: is damaged: the segments that other providers need are not known",
                       to_string(test_id(50)), to_string(test_id(1)))});
}

TEST_F(Audit, NumbersThatAreNone) {
  expect_found([&] { set("h/net", "many"); }, {"h/net: is not a number"});
  expect_found([&] { set("h/net", "3"); }, {"h/net: is 3, and net has 4"});
  expect_found([&] { erase("h/net"); }, {"h/net: is missing"});
}

TEST_F(Audit, ACommitThatLagsBehind) {
  expect_found([&] { set("commit", "2"); }, {"commit: is 2, and the last commit was 5"});
}

TEST_F(Audit, APutThatWasGivenUpAndIsThere) {
  set(given_up_key(test_id(60), 3), "x");
  EXPECT_EQ(findings(*open()).size(), 1u);
  erase(given_up_key(test_id(60), 3));
  EXPECT_EQ(findings(*open()), Lines{});
}

TEST_F(Audit, ASharedRecordThatIsDamaged) {
  set("c/placement", "x");
  const Lines found = findings(*open());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].find("c/placement: "), 0u);
}

TEST_F(Audit, KeysThatNobodyWrites) {
  expect_found([&] { set("v/net", "x"); }, {"v/net: this is not a version's name"});
  erase("v/net");
  expect_found([&] { set(std::string("q\x01"), "x"); }, {"q\\x01: this is not a record's key"});
  erase("q\x01");
  expect_found([&] { set("s/short", "x"); }, {"s/short: this is not a segment's name"});
}

TEST_F(Audit, WhatNobodyNeedsIsNoDamage) {
  ASSERT_TRUE(open()->retire({.model = "other", .number = 1}, {}));
  const auto repository = open();
  EXPECT_EQ(unneeded(*repository),
            Lines{"1 blobs of other@1, 64: written by a version that was retired; gc erases them"});
  // As a put leaves them that is killed; opening would erase them.
  write_blob(segment_key({.writer = test_id(70), .tensor = 0}), std::vector<std::byte>(10));
  write_blob("strange", std::vector<std::byte>(3));
  EXPECT_EQ(unneeded(*repository).size(), 3u);
  ASSERT_TRUE(repository->gc({}, {}));
  EXPECT_EQ(unneeded(*repository), Lines{});
}

TEST_F(Audit, ASegmentThatNoVersionNamesIsForGc) {
  const SegmentName segment{.writer = test_id(70), .tensor = 2};
  const std::vector<std::byte> bytes(10);
  write_blob(segment_key(segment), bytes);
  set(segment_record_key(segment), encode(SegmentRow{.bytes = 10, .digest = digest_of(bytes)}));
  const auto repository = open();
  EXPECT_EQ(unneeded(*repository), Lines{format("1 segments of version {}, 10: no version names them; gc erases them",
                                                to_string(test_id(70)))});
  ASSERT_TRUE(repository->gc({}, {}));
  EXPECT_EQ(unneeded(*repository), Lines{});
}

TEST_F(Audit, AnArchitectureThatNobodyHasIsNoDamage) {
  const auto architecture = test_architecture({1, 2, 3});
  const Bytes encoded = architecture->encoded();
  set(architecture_key(architecture->digest()),
      std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size()));
  EXPECT_EQ(unneeded(*open()).size(), 1u);
  set(architecture_key(architecture->digest()), "x");
  EXPECT_EQ(findings(*open()), Lines{architecture_key(architecture->digest()) + ": the architecture is damaged"});
}

TEST_F(Audit, OneVersionIsCheckedByItself) {
  erase(segment_record_key(owner(3, 0)));
  const auto repository = open();
  EXPECT_TRUE(repository->verify(name(1), {})->corrupt.empty());
  const auto third = repository->verify(name(3), {});
  ASSERT_EQ(third->corrupt.size(), 1u);
  EXPECT_EQ(third->corrupt[0].tensor, "layer0.kernel");
}

}  // namespace
}  // namespace freshet
