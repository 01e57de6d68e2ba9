// SPDX-License-Identifier: Apache-2.0
/// Pins of clients of a server: renewed while the client lives, ended when it is gone.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "repo/backend/backend_wrapper.h"
#include "repo/pins/pin_renewal.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

/// A repository under a clock that is turned by hand, and clients of it whose own clock is the machine's.
class PinsOfClients : public testing::Test {
 protected:
  PinsOfClients() {
    version_ = make_version("net", test_id(1), test_architecture({10}), nullptr, {}, random_);
    start();
    EXPECT_TRUE(put(*local_, version_));
  }
  void start() {
    server_.reset();
    local_.reset();
    local_ = ProviderRepository::open(std::make_unique<BackendWrapper>(backend_), {.clock = &clock_}).value();
    server_ = RepositoryServer::open(*local_, {.address = address_}).value();
  }
  std::unique_ptr<ProviderRepository> connect(Duration every) {
    return connect_repository(address_, {.renew_pins = every}).value();
  }
  std::string why_held() const {
    const auto retired = local_->retire(name_, {});
    return retired ? "" : retired.error().message();
  }
  bool eventually_held(const std::string& why) const {
    return came_true([&] { return why_held() == why; });
  }
  static MatchQuery query(const TestVersion& version) {
    return {.graph = MatchGraph::of(*version.manifest.architecture), .pin_by = "worker"};
  }

  TemporaryFolder folder_;
  const std::string address_ = "ipc://" + folder_.path() + "/socket";
  std::mt19937_64 random_{42};
  ManualClock clock_;
  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::unique_ptr<ProviderRepository> local_;
  std::unique_ptr<RepositoryServer> server_;
  TestVersion version_;
  const VersionName name_{.model = "net", .number = 1};
};

constexpr Duration kNever = std::chrono::hours(24);
constexpr Duration kOften = std::chrono::milliseconds(5);
const std::string kWholeLease = "net@1 is pinned by worker (for 120 s, unless it renews)";

TEST_F(PinsOfClients, EndWhenNobodyRenewsThem) {
  auto client = connect(kNever);
  ASSERT_TRUE(client->match(query(version_)));
  EXPECT_EQ(why_held(), kWholeLease);
  client.reset();
  clock_.advance(kPinLease - std::chrono::seconds(1));
  EXPECT_EQ(why_held(), "net@1 is pinned by worker (for 1 s, unless it renews)");
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(why_held(), "");
}

TEST_F(PinsOfClients, HoldWhileTheClientLives) {
  auto client = connect(kOften);
  ASSERT_TRUE(client->pin(name_, "worker"));
  for (int i = 0; i < 5; ++i) {
    clock_.advance(kPinLease - std::chrono::seconds(1));
    ASSERT_TRUE(eventually_held(kWholeLease)) << why_held();
  }
  client.reset();
  clock_.advance(kPinLease);
  EXPECT_EQ(why_held(), "");
}

TEST_F(PinsOfClients, AreRenewedOnAnotherConnectionWhenTheServerWasRestarted) {
  auto client = connect(kOften);
  ASSERT_TRUE(client->match(query(version_)));
  start();
  clock_.advance(kPinLease - std::chrono::seconds(1));
  EXPECT_TRUE(eventually_held(kWholeLease)) << why_held();
  ASSERT_TRUE(client->unpin(name_, "worker"));
  EXPECT_EQ(why_held(), "");
}

TEST_F(PinsOfClients, StayWhenThatIsAskedFor) {
  auto client = connect(kNever);
  MatchQuery asked = query(version_);
  asked.pin_terms.stays = true;
  ASSERT_TRUE(client->match(asked));
  ASSERT_TRUE(client->pin(name_, "me", {.stays = true, .lease = {}}));
  client.reset();
  clock_.advance(kPinLease * 1000);
  EXPECT_EQ(why_held(), "net@1 is pinned by me, worker");
}

TEST_F(PinsOfClients, OneClientTakesAwayItsOwn) {
  auto one = connect(kNever);
  auto two = connect(kOften);
  ASSERT_TRUE(one->pin(name_, "worker"));
  ASSERT_TRUE(two->pin(name_, "worker"));
  ASSERT_TRUE(one->unpin(name_, "worker"));
  clock_.advance(kPinLease - std::chrono::seconds(1));
  EXPECT_TRUE(eventually_held(kWholeLease)) << "what is left is the pin of the one that renews";
}

/// Writes nothing until it is opened.
class GatedBackend final : public BackendWrapper {
 public:
  using BackendWrapper::BackendWrapper;
  Status apply(const Batch& batch) override {
    {
      const MutexLock lock(mutex_);
      while (!open_) opened_.wait(mutex_);
    }
    return BackendWrapper::apply(batch);
  }
  void set(bool open) {
    const MutexLock lock(mutex_);
    open_ = open;
    opened_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ FRESHET_GUARDED_BY(mutex_) = true;
};

TEST_F(PinsOfClients, AreRenewedWhileEveryWriterWaits) {
  auto backend = std::make_unique<GatedBackend>(backend_);
  GatedBackend& gate = *backend;
  server_.reset();
  local_.reset();
  local_ = ProviderRepository::open(std::move(backend), {.clock = &clock_}).value();
  server_ = RepositoryServer::open(*local_, {.address = address_}).value();
  auto client = connect(kNever);
  gate.set(false);
  constexpr std::size_t kMoreThanWriters = 8;
  std::vector<std::unique_ptr<ProviderRepository>> writers;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kMoreThanWriters; ++i) {
    writers.push_back(connect(kNever));
    threads.emplace_back([&writer = *writers.back(), this] { EXPECT_TRUE(writer.pin(name_, "writer")); });
  }
  EXPECT_TRUE(came_true([&] { return server_->stat().calls >= kMoreThanWriters; }));
  const Status renewed = client->renew_pins({.high = 1, .low = 2});
  EXPECT_TRUE(renewed) << renewed.error().message();
  gate.set(true);
}

TEST(PinRenewal, BeginsWithTheFirstPinAndGoesOnAfterFailures) {
  std::atomic<int> renewed{0};
  PinRenewal renewal(
      [&](const PinLease&) -> Status {
        if (++renewed % 2 == 0) return fail(Code::unavailable, "away");
        return {};
      },
      std::chrono::milliseconds(1));
  EXPECT_EQ(renewed, 0);
  EXPECT_EQ(renewal.begin().value(), renewal.lease());
  EXPECT_EQ(renewal.begin().value(), renewal.lease());
  EXPECT_TRUE(came_true([&] { return renewed >= 5; }));
}

}  // namespace
}  // namespace freshet
