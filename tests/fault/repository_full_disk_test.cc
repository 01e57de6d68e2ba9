// SPDX-License-Identifier: Apache-2.0
/// A disk that is really full under a RocksDB repository: puts answer out_of_space, what was acknowledged stays
/// readable, and when there is room again the same repository goes on.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/repo/world.h"
#include "tests/support/refused.h"
#include "tests/support/small_disk.h"

namespace freshet {
namespace {

struct Filling {
  const char* name;
  std::vector<std::uint64_t> elements;
};

class RepositoryFullDisk : public testing::TestWithParam<Filling> {
 protected:
  static constexpr std::uint64_t kDiskBytes = 96 << 20;
  static constexpr std::uint64_t kBallastBytes = 48 << 20;

  static void write_ballast(const std::string& path) {
    std::ofstream file(path, std::ios::binary);
    const std::vector<char> zeros(1 << 20);
    for (std::uint64_t i = 0; i < kBallastBytes >> 20; ++i) file.write(zeros.data(), 1 << 20);
  }
};

TEST_P(RepositoryFullDisk, PutsAnswerOutOfSpaceAndGoOnWhenThereIsRoom) {
  const SmallDisk disk(kDiskBytes);
  if (!disk) GTEST_SKIP() << disk.reason();
  const std::string store = disk / "store";
  auto backend = open_rocks_backend({.folder = store});
  ASSERT_TRUE(backend) << backend.error().message();
  auto repository = open_or_die(std::move(*backend));
  write_ballast(disk / "ballast");

  std::mt19937_64 random(3);
  const auto architecture = test_architecture(GetParam().elements);
  std::vector<TestVersion> acknowledged;
  std::uint64_t sequence = 0;
  const auto put_next = [&] {
    ++sequence;
    TestVersion version = make_version("net", test_id(sequence), architecture,
                                       acknowledged.empty() ? nullptr : &acknowledged.back(), {0, 1}, random);
    version.manifest.name.number = sequence;
    const auto name = put(*repository, version);
    if (name) acknowledged.push_back(std::move(version));
    return name;
  };
  const auto expect_all = [&] {
    EXPECT_EQ(repository->stat()->versions, acknowledged.size());
    for (const TestVersion& version : acknowledged) {
      EXPECT_EQ(read_all(*repository, version.manifest.name).value(), version.bytes);
    }
  };

  Result<VersionName> name = put_next();
  while (name && sequence < 1000) name = put_next();
  ASSERT_TRUE(is_refused(name, Code::out_of_space, store, "No space left"));
  ASSERT_GE(acknowledged.size(), 2u);
  for (int i = 0; i < 3; ++i) {
    const auto still = put_next();
    EXPECT_TRUE(still || still.error().code() == Code::out_of_space) << still.error().message();
  }
  expect_all();

  // Room is made by forgetting, on the full disk itself.
  const VersionName oldest = acknowledged.front().manifest.name;
  const auto retired = repository->retire(oldest, {});
  ASSERT_TRUE(retired) << retired.error().message();
  const auto collected = repository->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_GT(collected->freed_bytes, 0u);
  acknowledged.erase(acknowledged.begin());
  expect_all();

  std::filesystem::remove(disk / "ballast");
  for (int i = 0; i < 3; ++i) {
    const auto again = put_next();
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(again->number, sequence);
  }
  expect_all();
  repository.reset();
  backend = open_rocks_backend({.folder = store});
  ASSERT_TRUE(backend) << backend.error().message();
  repository = open_or_die(std::move(*backend));
  expect_all();
  EXPECT_TRUE(repository->verify(std::nullopt, {})->corrupt.empty());
}

// Somebody else took the last byte while nobody had the repository open.
TEST_P(RepositoryFullDisk, CanBeLeftAgainByWhoOpensItThen) {
  const SmallDisk disk(kDiskBytes);
  if (!disk) GTEST_SKIP() << disk.reason();
  const std::string store = disk / "store";
  std::unique_ptr<Repository> repository;
  const auto open = [&] {
    repository.reset();
    auto backend = open_rocks_backend({.folder = store});
    ASSERT_TRUE(backend) << backend.error().message();
    auto opened = Repository::open(std::move(*backend), {});
    ASSERT_TRUE(opened) << opened.error().message();
    repository = *std::move(opened);
  };
  ASSERT_NO_FATAL_FAILURE(open());
  std::mt19937_64 random(5);
  const auto architecture = test_architecture(GetParam().elements);
  std::vector<TestVersion> versions;
  const auto put_next = [&] {
    const std::uint64_t sequence = versions.size() + 1;
    versions.push_back(make_version("net", test_id(sequence), architecture,
                                    versions.empty() ? nullptr : &versions.back(), {0, 1}, random));
    versions.back().manifest.name.number = sequence;
    return put(*repository, versions.back());
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(put_next());
  const auto expect_from = [&](std::size_t first) {
    for (std::size_t i = first; i < versions.size(); ++i) {
      EXPECT_EQ(read_all(*repository, versions[i].manifest.name).value(), versions[i].bytes);
    }
  };
  repository.reset();
  const auto room = [&] { return std::filesystem::space(disk / "").available; };
  {
    std::ofstream file(disk / "ballast", std::ios::binary);
    const std::vector<char> zeros(4096);
    while (file.write(zeros.data(), 4096).flush()) {
    }
  }
  ASSERT_EQ(room(), 0u);

  ASSERT_NO_FATAL_FAILURE(open());
  expect_from(0);
  for (int i = 0; i < 3; ++i) {
    const auto retired = repository->retire(versions[static_cast<std::size_t>(i)].manifest.name, {});
    ASSERT_TRUE(retired) << retired.error().message();
  }
  const auto collected = repository->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_GT(collected->freed_bytes, 0u);
  EXPECT_GT(room(), 0u);
  expect_from(3);
  std::filesystem::remove(disk / "ballast");
  const auto again = put_next();
  ASSERT_TRUE(again) << again.error().message();
  expect_from(3);
  ASSERT_NO_FATAL_FAILURE(open());
  EXPECT_TRUE(repository->gc({}, {}));
  expect_from(3);
  EXPECT_TRUE(repository->verify(std::nullopt, {})->corrupt.empty());
  const RepositoryStat stat = repository->stat().value();
  EXPECT_LE(stat.disk_bytes - stat.metadata_bytes, stat.live_bytes + stat.live_bytes / 100);
}

// Through table files, and through the log.
INSTANTIATE_TEST_SUITE_P(Fillings, RepositoryFullDisk,
                         testing::Values(Filling{"large_puts", {5'000'000, 1000}},
                                         Filling{"small_puts", {600'000, 1000}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace freshet
