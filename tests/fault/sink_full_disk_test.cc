// SPDX-License-Identifier: Apache-2.0
/// A full disk under the sink's repository while a run goes on: the stream doesn't wait, the sink says so, and catches
/// up.

#include <algorithm>
#include <fstream>

#include "repo/sink.h"
#include "tests/support/small_disk.h"
#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using test::eventually;
using test::open_publisher;
using test::publish;
using test::StampedModel;

TEST(SinkFullDisk, TheStreamGoesOnAndTheSinkCatchesUp) {
  constexpr int kBallastMiB =
      84;  // Without it there is room for every version that the test publishes after it failed.
  const SmallDisk disk(std::uint64_t{128} << 20);
  if (!disk) GTEST_SKIP() << disk.reason();
  const TemporaryFolder host;
  auto backend = open_rocks_backend({.folder = disk / "store"});
  ASSERT_TRUE(backend) << backend.error().message();
  auto opened = Repository::open(std::move(*backend), {});
  ASSERT_TRUE(opened) << opened.error().message();
  Repository& repository = **opened;
  constexpr std::size_t kTensors = 3;
  constexpr std::size_t kElements = 1 << 18;  // 2 MiB each.
  StampedModel model(kTensors, kElements);
  const auto publisher = open_publisher({.model = "demo", .hub_options = {.directory = host.path()}});
  const auto sink =
      Sink::open(repository, {.model = "demo", .directory = host.path(), .retry_after = std::chrono::milliseconds(10)});
  ASSERT_TRUE(sink) << sink.error().message();
  ASSERT_EQ(publish(*publisher, model), 1u);
  ASSERT_TRUE(eventually([&] { return (*sink)->status().newest == 1; }));

  {
    std::ofstream ballast(disk / "ballast", std::ios::binary);
    const std::vector<char> piece(1 << 20);
    for (int i = 0; i < kBallastMiB; ++i) ballast.write(piece.data(), static_cast<std::streamsize>(piece.size()));
  }
  std::uint64_t stamp = 1;
  while (!(*sink)->status().failing && stamp < 100) {
    model.stamp_all(++stamp);
    ASSERT_EQ(publish(*publisher, model), stamp);
    ASSERT_TRUE(eventually([&] {
      const SinkStatus status = (*sink)->status();
      return status.newest == stamp || status.failing;
    }));
  }
  ASSERT_TRUE((*sink)->status().failing);
  const VersionNumber stored_before = (*sink)->status().newest;
  for (int i = 0; i < 5; ++i) {
    model.stamp_all(++stamp);
    ASSERT_EQ(publish(*publisher, model), stamp);  // The run does not notice.
  }
  ASSERT_TRUE(eventually([&] { return (*sink)->status().gaps >= 1; }));
  EXPECT_LT((*sink)->status().newest, stamp);
  EXPECT_NE((*sink)->status().last_error.find("No space left"), std::string::npos) << (*sink)->status().last_error;

  std::filesystem::remove(disk / "ballast");
  ASSERT_TRUE(eventually([&] { return (*sink)->status().newest == stamp; })) << (*sink)->status().last_error;
  EXPECT_FALSE((*sink)->status().failing);
  EXPECT_GE(stored_before, 2u);
  const auto record = repository.get({.model = "demo"});
  ASSERT_TRUE(record);
  std::vector<std::uint64_t> values(kElements);
  for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    const std::vector<Repository::TensorRead> reads = {
        {.tensor = tensor, .out = std::as_writable_bytes(std::span(values))}};
    ASSERT_TRUE(repository.read(*record, reads));
    EXPECT_EQ(std::count(values.begin(), values.end(), stamp * 1000 + tensor), static_cast<std::ptrdiff_t>(kElements));
  }
  EXPECT_TRUE(repository.verify(std::nullopt, {})->corrupt.empty());
}

}  // namespace
}  // namespace freshet
