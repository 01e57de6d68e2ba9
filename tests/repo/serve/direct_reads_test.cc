// SPDX-License-Identifier: Apache-2.0
/// Tensors that a client reads from the store itself: over a store in memory, which loses, refuses and lies.

#include "repo/serve/client/direct_reads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "repo/bucket/bucket_backend.h"
#include "repo/object_store/memory_object_store.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using rpc::DirectReads;
using rpc::DirectWay;

TEST(DirectWay, AFailureIsRememberedForLongerEachTime) {
  DirectWay way;
  Time now{};
  EXPECT_TRUE(way.may_try(now));
  EXPECT_FALSE(way.is_proven());
  EXPECT_TRUE(way.on_failure(now)) << "the first one is news";
  EXPECT_FALSE(way.may_try(now + std::chrono::seconds(59)));
  EXPECT_TRUE(way.may_try(now += std::chrono::minutes(1)));
  EXPECT_FALSE(way.on_failure(now)) << "this was told";
  EXPECT_FALSE(way.may_try(now + std::chrono::seconds(119)));
  EXPECT_TRUE(way.may_try(now += std::chrono::minutes(2)));
  for (int i = 0; i < 10; ++i) way.on_failure(now);
  EXPECT_TRUE(way.may_try(now += std::chrono::minutes(15))) << "no longer than that";
  way.on_success();
  EXPECT_TRUE(way.is_proven());
  EXPECT_TRUE(way.on_failure(now)) << "after it was good, it is news again";
  EXPECT_TRUE(way.may_try(now + std::chrono::minutes(1)));
}

/// Sends signed requests to a store in memory, as a client's line does.
class Line final : public SignedObjects {
 public:
  explicit Line(std::shared_ptr<MemoryObjectStore> store) : store_(std::move(store)) {}

  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    ++reads;
    if (fails) return fail(fails(out.size()));
    FRESHET_TRY(store_->read(request, offset, out, deadline));
    if (lies) out[out.size() / 2] ^= std::byte{1};
    return {};
  }
  Creation create(const SignedRequest& request, Bytes bytes, Time deadline) override {
    return store_->create(request, bytes, deadline);
  }

  mutable std::atomic<int> reads{0};
  std::function<Error(std::size_t bytes)> fails;  ///< Changed while nobody reads.
  bool lies = false;

 private:
  const std::shared_ptr<MemoryObjectStore> store_;
};

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class DirectReadsTest : public testing::Test {
 protected:
  ~DirectReadsTest() override { set_log_hook(nullptr); }
  void SetUp() override {
    set_log_hook([this](LogLevel, const std::string& line) {
      const MutexLock lock(mutex_);
      lines_.push_back(line);
    });
    ASSERT_TRUE(put(*local_, version_));
    client_ = connect(line_);
  }
  std::unique_ptr<ProviderRepository> connect(std::shared_ptr<SignedObjects> objects, bool direct = true) {
    RemoteRepositoryOptions options;
    options.direct = direct;
    options.signed_objects = std::move(objects);
    options.channel_bytes_min = std::uint64_t{1} << 40;
    auto client = connect_repository(server_->address(), std::move(options));
    EXPECT_TRUE(client) << client.error().message();
    return std::move(*client);
  }
  std::size_t lines() {
    const MutexLock lock(mutex_);
    return lines_.size();
  }
  /// Reads all tensors, and compares them.
  void expect_right(ProviderRepository& client) {
    const auto record = client.get({.model = "net", .number = 0});
    ASSERT_TRUE(record) << record.error().message();
    std::vector<std::vector<std::byte>> came;
    for (const auto& bytes : version_.bytes) came.emplace_back(bytes.size());
    std::vector<Repository::TensorRead> reads;
    for (std::uint32_t i = 0; i < came.size(); ++i) reads.push_back({.tensor = i, .out = came[i]});
    const Status read = client.read(*record, reads);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(came, version_.bytes);
  }

  TemporaryFolder folder_;
  std::mt19937_64 random_{11};
  const TestVersion version_ =
      make_version("net", test_id(1), test_architecture({2 * kMiB, 1000, 3 * kMiB + 5, 0, kMiB}), nullptr, {}, random_);
  const std::shared_ptr<MemoryObjectStore> store_ = std::make_shared<MemoryObjectStore>();
  const std::shared_ptr<Line> line_ = std::make_shared<Line>(store_);
  std::unique_ptr<ProviderRepository> local_ = open_or_die([this] {
    auto backend = open_bucket_backend(store_, {});
    EXPECT_TRUE(backend) << backend.error().message();
    return std::move(*backend);
  }());
  std::unique_ptr<RepositoryServer> server_ = [this] {
    auto server = RepositoryServer::open(*local_, {.address = "ipc://" + folder_.path() + "/socket"});
    EXPECT_TRUE(server) << server.error().message();
    return std::move(*server);
  }();
  std::unique_ptr<ProviderRepository> client_;
  Mutex mutex_;
  std::vector<std::string> lines_ FRESHET_GUARDED_BY(mutex_);
};

TEST_F(DirectReadsTest, LargeTensorsComeFromTheStoreItself) {
  expect_right(*client_);
  EXPECT_EQ(line_->reads, 1 + 3) << "one that proves the way, and one for each tensor of 1 MiB or more";
  expect_right(*client_);
  EXPECT_EQ(line_->reads, 1 + 3 + 3) << "it was proven";
  EXPECT_EQ(lines(), 0U);
}

TEST_F(DirectReadsTest, WhoWantsItOtherwiseReadsThroughTheOwner) {
  expect_right(*connect(line_, /*direct=*/false));
  EXPECT_EQ(line_->reads, 0);
}

TEST_F(DirectReadsTest, AStoreThatIsNotReachedIsTriedOnceAndSaidOnce) {
  line_->fails = [](std::size_t) { return Error(Code::unavailable, "no connection"); };
  for (int i = 0; i < 3; ++i) expect_right(*client_);
  EXPECT_EQ(line_->reads, 1) << "the failure is remembered";
  EXPECT_EQ(lines(), 1U);
}

TEST_F(DirectReadsTest, AWayThatBreaksAmidAReadIsLeft) {
  expect_right(*client_);
  line_->fails = [](std::size_t) { return Error(Code::failed_precondition, "403"); };
  for (int i = 0; i < 3; ++i) expect_right(*client_);
  EXPECT_EQ(lines(), 1U);
  EXPECT_LE(line_->reads, 4 + 3) << "no more after those under way";
}

TEST_F(DirectReadsTest, BytesThatAreNotTheTensorsComeAgainThroughTheOwner) {
  line_->lies = true;
  expect_right(*client_);
  EXPECT_EQ(line_->reads, 4);
}

TEST_F(DirectReadsTest, WhatIsGoneFromItsPlaceIsAskedOfTheOwner) {
  line_->fails = [](std::size_t bytes) {
    return bytes == 2 * kMiB ? Error(Code::not_found, "404") : Error(Code::timed_out, "slow");
  };
  expect_right(*client_);
}

TEST_F(DirectReadsTest, NothingIsSignedForATensorThatWasRetired) {
  const auto record = local_->get({.model = "net", .number = 0});
  ASSERT_TRUE(record);
  const std::vector<std::uint32_t> tensors = {0, 2};
  const auto before = local_->sign_reads(*record, tensors, std::chrono::minutes(1));
  ASSERT_TRUE(before) << before.error().message();
  EXPECT_EQ((*before)[0].size(), 1U);
  ASSERT_TRUE(local_->retire(record->manifest.name, {}));
  ASSERT_TRUE(local_->gc({}, {}));
  const auto after = local_->sign_reads(*record, tensors, std::chrono::minutes(1));
  ASSERT_TRUE(after) << after.error().message();
  for (const auto& parts : *after) EXPECT_TRUE(parts.empty());
  EXPECT_EQ(local_->sign_reads(*record, std::vector<std::uint32_t>{9}, std::chrono::minutes(1)).error().code(),
            Code::invalid_argument);
}

TEST_F(DirectReadsTest, AnOwnerWithoutAStoreIsAskedOnce) {
  const auto record = local_->get({.model = "net", .number = 0});
  ASSERT_TRUE(record);
  std::vector<std::byte> out(2 * kMiB);
  const std::vector<Repository::TensorRead> reads = {{.tensor = 0, .out = out}};
  int asked = 0;
  rpc::DirectLine way(true, line_);
  DirectReads direct(way);
  for (int i = 0; i < 3; ++i) {
    const auto left = direct.read(*record, reads, [&](const rpc::SignReads&) -> Result<rpc::SignedReads> {
      ++asked;
      return fail(Code::unsupported, "no store");
    });
    EXPECT_EQ(left.size(), 1U);
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(line_->reads, 0);
}

TEST_F(DirectReadsTest, ManyTensorsAreOneQuestion) {
  std::vector<std::uint64_t> elements(100, kMiB);
  TestVersion many = make_version("many", test_id(2), test_architecture(elements), nullptr, {}, random_);
  const auto name = put(*local_, many);
  ASSERT_TRUE(name);
  const auto record = local_->get(*name);
  ASSERT_TRUE(record);
  std::vector<std::vector<std::byte>> came(elements.size(), std::vector<std::byte>(kMiB));
  std::vector<Repository::TensorRead> reads;
  for (std::uint32_t i = 0; i < came.size(); ++i) reads.push_back({.tensor = i, .out = came[i]});
  int asked = 0;
  rpc::DirectLine way(true, line_);
  DirectReads direct(way);
  const auto left = direct.read(*record, reads, [&](const rpc::SignReads& question) -> Result<rpc::SignedReads> {
    ++asked;
    FRESHET_ASSIGN(auto all, local_->sign_reads(*record, question.tensors, std::chrono::minutes(10)));
    rpc::SignedReads answer{.tensors = {}, .life = std::chrono::minutes(10)};
    for (auto& parts : all) answer.tensors.push_back({std::move(parts)});
    return answer;
  });
  EXPECT_TRUE(left.empty());
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(came, many.bytes);
}

/// What an owner answers is that of another process.
TEST_F(DirectReadsTest, AnOwnersNonsenseIsNoRead) {
  const auto record = local_->get({.model = "net", .number = 0});
  ASSERT_TRUE(record);
  std::vector<std::byte> out(2 * kMiB);
  const std::vector<Repository::TensorRead> reads = {{.tensor = 0, .out = out}};
  const auto signed_parts = local_->sign_reads(*record, std::vector<std::uint32_t>{0}, std::chrono::minutes(1));
  ASSERT_TRUE(signed_parts);
  const SignedPart good = signed_parts->front().front();
  SignedPart longer = good;
  ++longer.bytes;
  SignedPart huge = good;
  huge.bytes = ~std::uint64_t{0};
  for (const auto& parts : std::vector<std::vector<SignedPart>>{{}, {longer}, {huge}, {good, good}, {good, longer}}) {
    rpc::DirectLine way(true, line_);
    DirectReads direct(way);
    const auto left = direct.read(*record, reads, [&](const rpc::SignReads&) -> Result<rpc::SignedReads> {
      return rpc::SignedReads{.tensors = {{parts}, {{good}}}, .life = std::chrono::minutes(1)};
    });
    EXPECT_EQ(left.size(), 1U);
  }
  EXPECT_EQ(line_->reads, 0);
  rpc::DirectLine way(true, line_);
  DirectReads direct(way);
  int asked = 0;
  const auto left = direct.read(*record, reads, [&](const rpc::SignReads&) -> Result<rpc::SignedReads> {
    ++asked;
    return rpc::SignedReads{.tensors = {{{good}}}, .life = Duration::zero()};
  });
  EXPECT_EQ(left.size(), 1U) << "its requests have ended when they come";
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace freshet
