// SPDX-License-Identifier: Apache-2.0
/// Clients of a repository whose owner was replaced, and lives and answers all the same.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <latch>
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
#include "tests/support/refused.h"
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
  EXPECT_TRUE(is_refused(put(*client, version_), Code::unavailable))
      << "nobody knows of every refusal that nothing was done";
  const auto stored = put(*client, version_);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_TRUE(later_repository_->get(*stored));
}

TEST_F(ReplacedOwner, ItsErrorIsToldWhereNobodyKnowsAnother) {
  is_known_ = false;
  const auto client = connect();
  replaced_ = true;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_refused(client->models(), Code::unavailable));
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

class EndingOwner : public testing::Test {
 protected:
  std::unique_ptr<RepositoryServer> serve(ProviderRepository& served, const char* name) {
    auto server = RepositoryServer::open(served, {.address = "ipc://" + folder_.path() + "/" + name, .moves = true});
    FRESHET_CHECK(server.has_value());
    return std::move(*server);
  }
  std::unique_ptr<ProviderRepository> connect(const RepositoryServer& server, RemoteRepositoryOptions options = {}) {
    options.find_owner = [this]() -> Result<ServedOwner> {
      return ServedOwner{.address = next_address_, .public_key = {}};
    };
    return connect_repository(server.address(), std::move(options)).value();
  }
  void serve_next() {
    next_ = serve(*next_repository_, "next");
    next_address_ = next_->address();
  }
  /// Returns when its door is closed: from then on it hears no new calls.
  std::jthread drain(RepositoryServer& server) {
    std::jthread drains([&] { server.drain(std::chrono::hours(1), {}, RepositoryServer::Until::calls_ended); });
    EXPECT_TRUE(came_true([&] {
      RemoteRepositoryOptions options;
      options.connect = options.takeover = std::chrono::seconds(1);
      const auto refused = connect_repository(server.address(), std::move(options));
      return !refused && refused.error().message().find("about to end") != std::string::npos;
    }));
    return drains;
  }
  /// Reads of the owner that ends wait from here on.
  void hold_reads() {
    backend_->before_reads([this]() -> Status {
      is_reading_ = true;
      came_true([&] { return goes_on_.load(); });
      return {};
    });
  }

  /// Reads tensor 0 in a thread of its own.
  static std::jthread read_beside(const Repository& reader, const VersionRecord& record, std::vector<std::byte>& out) {
    return std::jthread([&] {
      const Repository::TensorRead read{.tensor = 0, .out = out};
      const Status status = reader.read(record, std::span(&read, 1));
      EXPECT_TRUE(status) << status.error().message();
    });
  }

  TemporaryFolder folder_;
  std::mt19937_64 random_{7};
  std::atomic<bool> is_reading_{false};
  std::atomic<bool> goes_on_{false};
  std::shared_ptr<Backend> store_ = make_memory_backend();
  std::shared_ptr<HookedBackend> backend_ = std::make_shared<HookedBackend>(store_);
  std::unique_ptr<ProviderRepository> repository_ = open_or_die(std::make_unique<BackendWrapper>(backend_));
  std::unique_ptr<RepositoryServer> ending_ = serve(*repository_, "ending");
  std::unique_ptr<ProviderRepository> next_repository_;
  std::unique_ptr<RepositoryServer> next_;
  std::string next_address_;
};

/// An owner that ends in order: what runs is answered, what comes later is asked of the next owner.
TEST_F(EndingOwner, HearsNoNewCallsAndWaitsForRunningOnes) {
  const TestVersion version = make_version("net", test_id(1), test_architecture({64}), nullptr, {}, random_);
  ASSERT_TRUE(put(*repository_, version));
  next_repository_ = open_or_die(make_memory_backend());
  serve_next();
  const auto reader = connect(*ending_);
  const auto late = connect(*ending_);
  const VersionRecord record = reader->get({.model = "net", .number = 1}).value();
  hold_reads();
  std::vector<std::byte> out(version.bytes[0].size());
  std::jthread reads = read_beside(*reader, record, out);
  // Not an earlier call of the same read.
  ASSERT_TRUE(came_true([&] { return is_reading_.load(); }));
  std::jthread drains = drain(*ending_);
  Result<std::vector<std::string>> models = fail(Code::unavailable, "not yet");
  std::jthread asks([&] { models = late->models(); });
  goes_on_ = true;
  reads.join();
  drains.join();
  ending_.reset();
  asks.join();
  ASSERT_TRUE(models) << models.error().message();
  EXPECT_TRUE(models->empty()) << "the next owner's";
}

TEST_F(EndingOwner, AReadOfManyCallsGoesOnWithTheNextOwner) {
  constexpr std::uint64_t kBytes = std::uint64_t{40} << 20;  // Ten questions; eight are on their way at once.
  const TestVersion version = make_version("net", test_id(1), test_architecture({kBytes}), nullptr, {}, random_);
  ASSERT_TRUE(put(*repository_, version));
  next_repository_ = open_or_die(std::make_unique<BackendWrapper>(store_));
  serve_next();
  RemoteRepositoryOptions options;
  options.channel_bytes_min = ~std::uint64_t{0};
  const auto reader = connect(*ending_, std::move(options));
  const VersionRecord record = reader->get({.model = "net", .number = 1}).value();
  hold_reads();
  std::vector<std::byte> out(version.bytes[0].size());
  std::jthread reads = read_beside(*reader, record, out);
  ASSERT_TRUE(came_true([&] { return is_reading_.load(); }));
  std::jthread drains = drain(*ending_);
  goes_on_ = true;
  drains.join();
  ending_.reset();
  reads.join();
  EXPECT_TRUE(out == version.bytes[0]);
}

/// Each of two owners ends beside a read that it has begun.
TEST_F(EndingOwner, AReadOutlivesTwoOwners) {
  const TestVersion version = make_version("net", test_id(1), test_architecture({64}), nullptr, {}, random_);
  ASSERT_TRUE(put(*repository_, version));
  const auto backend = std::make_shared<HookedBackend>(store_);
  next_repository_ = open_or_die(std::make_unique<BackendWrapper>(backend));
  const auto last_repository = open_or_die(std::make_unique<BackendWrapper>(store_));
  serve_next();
  const auto last = serve(*last_repository, "last");
  RemoteRepositoryOptions options;
  options.others = {next_->address(), last->address()};  // Asked in this order.
  const auto reader = connect(*ending_, std::move(options));
  const VersionRecord record = reader->get({.model = "net", .number = 1}).value();
  std::array<std::latch, 2> begun{std::latch(1), std::latch(1)};
  std::array<std::latch, 2> may_end{std::latch(1), std::latch(1)};
  const auto hold = [&](std::size_t owner) {
    return [&begun, &may_end, owner]() -> Status {
      begun[owner].count_down();
      may_end[owner].wait();
      return {};
    };
  };
  backend_->before_reads(hold(0));
  backend->before_reads(hold(1));
  std::vector<std::byte> out(version.bytes[0].size());
  std::jthread reads = read_beside(*reader, record, out);
  for (std::unique_ptr<RepositoryServer>* const server : {&ending_, &next_}) {
    const std::size_t owner = server == &ending_ ? 0 : 1;
    ASSERT_TRUE(came_true([&] { return begun[owner].try_wait(); }));
    (*server)->fall_silent();
    may_end[owner].count_down();
    server->reset();
  }
  reads.join();
  EXPECT_TRUE(out == version.bytes[0]);
}

}  // namespace
}  // namespace freshet
