// SPDX-License-Identifier: Apache-2.0
/// Clients of a repository whose owner was replaced, and lives and answers all the same.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "repo/backend/backend_wrapper.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/serve/hooked_backend.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

class ReplaceableBackend final : public BackendWrapper {
 public:
  ReplaceableBackend(std::shared_ptr<Backend> inner, const std::atomic<bool>& replaced)
      : BackendWrapper(std::move(inner)), replaced_(replaced) {}
  Status check_current() const override {
    return replaced_ ? fail(Code::unavailable, "another process owns the repository") : Status();
  }
  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_TRY(check_current());
    return BackendWrapper::write_blobs();
  }

 private:
  const std::atomic<bool>& replaced_;
};

class ReplacedOwner : public testing::Test {
 protected:
  std::unique_ptr<RepositoryServer> serve(ProviderRepository& repository, const std::string& name) {
    // Room for the client's one connection.
    auto server = RepositoryServer::open(
        repository, {.address = "ipc://" + folder_.path() + "/" + name, .clients_max = 1, .moves = true});
    EXPECT_TRUE(server) << server.error().message();
    return std::move(*server);
  }
  std::unique_ptr<ProviderRepository> connect(Duration takeover = RemoteRepositoryOptions().takeover) {
    RemoteRepositoryOptions options;
    options.takeover = takeover;
    options.find_owner = [this]() -> Result<ServedOwner> {
      ++searches_;
      if (throws_) throw std::runtime_error("no more threads");
      return ServedOwner{.address = replaced_ && is_known_ ? later_->address() : old_address_, .public_key = {}};
    };
    auto client = connect_repository(old_->address(), std::move(options));
    EXPECT_TRUE(client) << client.error().message();
    return std::move(*client);
  }

  TemporaryFolder folder_;
  std::mt19937_64 random_{7};
  const TestVersion version_ = make_version("net", test_id(1), test_architecture({64}), nullptr, {}, random_);
  std::atomic<bool> replaced_{false};
  std::atomic<bool> is_known_{true};  ///< To the source.
  std::atomic<bool> throws_{false};
  std::atomic<int> searches_{0};
  std::shared_ptr<Backend> store_ = make_memory_backend();
  std::unique_ptr<ProviderRepository> old_repository_ =
      open_or_die(std::make_unique<ReplaceableBackend>(store_, replaced_));
  std::unique_ptr<ProviderRepository> later_repository_ = open_or_die(make_memory_backend());
  std::unique_ptr<RepositoryServer> old_ = serve(*old_repository_, "old");
  const std::string old_address_ = old_->address();
  std::unique_ptr<RepositoryServer> later_ = serve(*later_repository_, "later");
};

TEST_F(ReplacedOwner, AQuestionIsAskedAgainOfWhomTheSourceTells) {
  const auto client = connect();
  ASSERT_TRUE(client->models());
  ASSERT_TRUE(put(*later_repository_, version_));
  replaced_ = true;
  const auto models = client->models();
  ASSERT_TRUE(models) << models.error().message();
  EXPECT_EQ(*models, std::vector<std::string>{"net"}) << "the later owner's";
}

TEST_F(ReplacedOwner, APutThatItRefusedGoesToTheOwnerTheNextTime) {
  const auto client = connect();
  replaced_ = true;
  const auto refused = put(*client, version_);
  ASSERT_FALSE(refused) << "nobody knows of every refusal that nothing was done";
  EXPECT_EQ(refused.error().code(), Code::unavailable) << refused.error().message();
  const auto stored = put(*client, version_);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_TRUE(later_repository_->get(*stored));
}

TEST_F(ReplacedOwner, ItsErrorIsToldWhereNobodyKnowsAnother) {
  is_known_ = false;
  const auto client = connect();
  replaced_ = true;
  for (int i = 0; i < 3; ++i) {
    const auto models = client->models();
    ASSERT_FALSE(models);
    EXPECT_EQ(models.error().code(), Code::unavailable) << models.error().message();
  }
  EXPECT_EQ(searches_, 1) << "the same server is not doubted by each call";
}

TEST_F(ReplacedOwner, ABusyOwnersErrorIsToldAndItsConnectionKept) {
  is_known_ = false;
  const auto client = connect();
  replaced_ = true;  // It says the same when it has no room for a moment.
  const auto refused = client->models();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "another process owns the repository");
  replaced_ = false;
  EXPECT_TRUE(client->models());
}

TEST_F(ReplacedOwner, ASourceThatThrowsHoldsNobodyUp) {
  const auto client = connect();
  replaced_ = throws_ = true;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client->models().error().code(), Code::unavailable);
  replaced_ = false;
  EXPECT_TRUE(client->models());
}

TEST_F(ReplacedOwner, ACallThatComesLateInASearchHasATimeOfItsOwn) {
  is_known_ = false;
  replaced_ = true;
  const auto client = connect(std::chrono::seconds(3));
  old_.reset();
  std::atomic<bool> is_over = false;
  std::thread first([&] {
    EXPECT_FALSE(client->models());
    is_over = true;
  });
  while (searches_ < 2 && !is_over) std::this_thread::yield();  // A second went by.
  std::thread late([&] {
    const auto models = client->models();
    EXPECT_TRUE(models) << models.error().message();
  });
  first.join();
  is_known_ = true;
  late.join();
}

TEST_F(ReplacedOwner, ThreadsShareOneSearch) {
  const auto client = connect();
  ASSERT_TRUE(client->models());
  replaced_ = true;
  constexpr int kThreads = 8;
  std::barrier begin(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      if (client->models()) ++answered;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, kThreads);
  EXPECT_EQ(searches_, 1);
}

/// An owner that ends in order: what runs is answered, what comes later is asked of the next owner.
TEST(EndingOwner, HearsNoNewCallsAndWaitsForRunningOnes) {
  const TemporaryFolder folder;
  std::mt19937_64 random(7);
  const TestVersion version = make_version("net", test_id(1), test_architecture({64}), nullptr, {}, random);
  const auto backend = std::make_shared<HookedBackend>(make_memory_backend());
  const auto repository = open_or_die(std::make_unique<BackendWrapper>(backend));
  const auto next_repository = open_or_die(make_memory_backend());
  ASSERT_TRUE(put(*repository, version));
  const auto serve = [&](ProviderRepository& served, const char* name) {
    auto server = RepositoryServer::open(served, {.address = "ipc://" + folder.path() + "/" + name, .moves = true});
    FRESHET_CHECK(server.has_value());
    return std::move(*server);
  };
  auto ending = serve(*repository, "ending");
  const auto next = serve(*next_repository, "next");
  const auto connect = [&] {
    RemoteRepositoryOptions options;
    options.find_owner = [&]() -> Result<ServedOwner> {
      return ServedOwner{.address = next->address(), .public_key = {}};
    };
    return connect_repository(ending->address(), std::move(options)).value();
  };
  const auto reader = connect();
  const auto late = connect();
  const VersionRecord record = reader->get({.model = "net", .number = 1}).value();
  std::atomic<bool> is_reading{false};
  std::atomic<bool> goes_on{false};
  backend->before_reads([&]() -> Status {
    is_reading = true;
    came_true([&] { return goes_on.load(); });
    return {};
  });
  std::vector<std::byte> out(version.bytes[0].size());
  const Repository::TensorRead read{.tensor = 0, .out = out};
  std::jthread reads([&] {
    const Status status = reader->read(record, std::span(&read, 1));
    EXPECT_TRUE(status) << status.error().message();
  });
  // Not an earlier call of the same read.
  ASSERT_TRUE(came_true([&] { return is_reading.load(); }));
  std::jthread drains([&] { ending->drain(std::chrono::hours(1), {}, RepositoryServer::Until::calls_ended); });
  // Its door is closed: from now on it hears no new calls.
  ASSERT_TRUE(came_true([&] {
    RemoteRepositoryOptions options;
    options.connect = options.takeover = std::chrono::seconds(1);
    const auto refused = connect_repository(ending->address(), std::move(options));
    return !refused && refused.error().message().find("about to end") != std::string::npos;
  }));
  Result<std::vector<std::string>> models = fail(Code::unavailable, "not yet");
  std::jthread asks([&] { models = late->models(); });
  goes_on = true;
  reads.join();
  drains.join();
  ending.reset();
  asks.join();
  ASSERT_TRUE(models) << models.error().message();
  EXPECT_TRUE(models->empty()) << "the next owner's";
}

}  // namespace
}  // namespace freshet
