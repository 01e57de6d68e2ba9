// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every repository must do, wherever it is: in memory, on a disk, in another process, spread over providers. The
/// cases are in repository_*_conformance.cc; a test file instantiates them with the kinds that it can make.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {

/// A repository, and what it needs to be there.
class RepositoryHouse {
 public:
  virtual ~RepositoryHouse() = default;
  virtual Repository& repository() = 0;
  /// Its other face; null for several providers.
  virtual ProviderRepository* provider() { return nullptr; }
};

struct RepositoryCase {
  std::string name;
  std::function<std::unique_ptr<RepositoryHouse>()> make;
  bool several = false;  ///< Several providers: neither `dedup` nor `deltas` counts, and commits are times.
};

class RepositoryConformance : public testing::TestWithParam<RepositoryCase> {
 protected:
  Repository& repository() { return house_->repository(); }
  ProviderRepository* provider() { return house_->provider(); }
  bool several() const { return GetParam().several; }

  TestVersion version(const std::string& model, const TestVersion* base = nullptr,
                      const std::vector<std::uint32_t>& changed = {}) {
    return make_version(model, test_id(++sequence_), architecture_, base, changed, random_);
  }
  /// Puts it, and remembers the name that it was given.
  TestVersion stored(TestVersion version, Repository::PutOptions options = {}) {
    const auto name = put(repository(), version, options);
    EXPECT_TRUE(name) << name.error().message();
    if (name) version.manifest.name = *name;
    return version;
  }
  /// A line of versions of "net" with one tensor of its own each, of quality 0.5 and on.
  std::vector<TestVersion> line(std::uint32_t count) {
    std::vector<TestVersion> versions;
    for (std::uint32_t i = 0; i < count; ++i) {
      const TestVersion* base = versions.empty() ? nullptr : &versions.back();
      versions.push_back(stored(version("net", base, {i % 4}), {.quality = 0.5 + i}));
    }
    return versions;
  }
  void expect_bytes(const TestVersion& version) {
    const auto bytes = read_all(repository(), version.manifest.name);
    ASSERT_TRUE(bytes) << bytes.error().message();
    EXPECT_EQ(*bytes, version.bytes);
  }
  /// Nothing is damaged, and nothing but what waits for gc is needless.
  void expect_sound() {
    const auto report = repository().verify(std::nullopt, {});
    ASSERT_TRUE(report) << report.error().message();
    for (const auto& one : report->corrupt) ADD_FAILURE() << to_string(one.version) << one.record << ": " << one.reason;
  }
  static VersionName net(VersionNumber number) { return {.model = "net", .number = number}; }

  std::uint64_t sequence_ = 0;
  std::mt19937_64 random_{42};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 7, 20'000, 70'000});
  const std::unique_ptr<RepositoryHouse> house_ = GetParam().make();
};

std::vector<std::string> names_of(const std::vector<LineageRow>& rows);

}  // namespace freshet
