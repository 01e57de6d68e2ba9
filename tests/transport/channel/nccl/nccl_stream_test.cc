// SPDX-License-Identifier: Apache-2.0
/// Versions from a publisher to its subscribers over the channel nccl. The collective is the host's.

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <utility>

#include "core/base/log.h"
#include "core/gpu/host_collective.h"
#include "tests/transport/model_fixture.h"

namespace freshet::test {
namespace {

constexpr std::uint64_t kStreamedBytes = (3 << 20) + 5;

/// The host collective, counted. A rank that `dies` stands still from its first transfer on in a round with others.
class WatchedCollective final : public gpu::Collective {
 public:
  explicit WatchedCollective(bool dies = false) : dies_(dies) {}

  std::atomic<std::uint64_t> broadcasts{0};  ///< That were done, to two members or more.
  std::atomic<bool> is_dying{false};

  Result<gpu::CollectiveId> make_id() override { return host_.make_id(); }
  Result<std::unique_ptr<gpu::Communicator>> join(const gpu::CollectiveSeat& seat) override {
    FRESHET_ASSIGN(auto inner, host_.join(seat));
    return std::unique_ptr<gpu::Communicator>(std::make_unique<Watched>(*this, std::move(inner)));
  }

 private:
  class Watched final : public gpu::Communicator {
   public:
    Watched(WatchedCollective& owner, std::unique_ptr<gpu::Communicator> inner)
        : owner_(owner), inner_(std::move(inner)) {}
    Status broadcast(MutableBytes bytes) override {
      is_broadcast_ = true;
      if (owner_.dies_) owner_.is_dying = true;
      return inner_->broadcast(bytes);
    }
    Status send(Bytes bytes, int rank) override { return inner_->send(bytes, rank); }
    Status receive(MutableBytes bytes, int rank) override { return inner_->receive(bytes, rank); }
    Result<bool> poll() override {
      if (owner_.is_dying) return false;
      FRESHET_ASSIGN(const bool is_done, inner_->poll());
      if (is_done && std::exchange(is_broadcast_, false)) ++owner_.broadcasts;
      return is_done;
    }
    void abort() override { inner_->abort(); }

   private:
    WatchedCollective& owner_;
    const std::unique_ptr<gpu::Communicator> inner_;
    bool is_broadcast_ = false;
  };

  const bool dies_;
  gpu::HostCollective host_;
};

class NcclStream : public StreamTest {
 protected:
  void SetUp() override {
    PublisherOptions options = publisher_options();
    options.lock_memory = false;
    options.hub_options.channels = ChannelChoice{{ChannelKind::nccl, ChannelKind::zmq}};
    options.hub_options.security.trusted_fabric = true;
    options.hub_options.collective = std::make_shared<WatchedCollective>();
    publisher_ = open_publisher(std::move(options));
  }

  std::unique_ptr<Subscriber> subscribe(const std::shared_ptr<WatchedCollective>& collective) {
    SubscriberOptions options = subscriber_options();
    options.lock_memory = false;
    options.security.trusted_fabric = true;
    options.collective = collective;
    options.channel = ChannelKind::nccl;
    return open_subscriber(std::move(options));
  }

  /// A version of a large tensor and a small one, all new.
  VersionNumber publish_next() {
    ++step_;
    const std::vector<TensorSpec> specs = {{.name = "a.w", .dtype = DType::u8, .shape = {kStreamedBytes}},
                                           {.name = "b.w", .dtype = DType::u8, .shape = {99}}};
    values_.clear();
    std::vector<TensorView> views;
    for (const TensorSpec& spec : specs) {
      values_.push_back(seeded_bytes(spec.bytes(), 10 * step_ + values_.size()));
      views.push_back({.spec = spec, .data = values_.back()});
    }
    const auto receipt = publisher_->publish(views, {.step = step_});
    EXPECT_TRUE(receipt) << receipt.error().message();
    return receipt ? receipt->version : 0;
  }

  void expect_served(Subscriber& subscriber, VersionNumber version) {
    ASSERT_TRUE(subscriber.wait_for(version, kPatience));
    const Snapshot snapshot = subscriber.snapshot();
    ASSERT_EQ(snapshot.version(), version);
    for (std::uint32_t i = 0; i < values_.size(); ++i) {
      EXPECT_EQ(digest_of(snapshot.bytes(i)), digest_of(values_[i])) << "tensor " << i << " of version " << version;
      EXPECT_EQ(snapshot.manifest().digests[i], digest_of(values_[i]));
    }
  }

  std::unique_ptr<Publisher> publisher_;
  std::vector<std::vector<std::byte>> values_;
  std::uint64_t step_ = 0;
};

TEST_F(NcclStream, TwoSubscribersShareBroadcasts) {
  const auto here = std::make_shared<WatchedCollective>();
  const auto there = std::make_shared<WatchedCollective>();
  const auto one = subscribe(here);
  const auto other = subscribe(there);
  // Who asks too late for the other's round has one of its own; the next version finds both.
  while (!HasFailure() && (here->broadcasts == 0 || there->broadcasts == 0)) {
    const VersionNumber version = publish_next();
    expect_served(*one, version);
    expect_served(*other, version);
  }
}

/// Lines of the log that say that a round's deadline broke it.
class LateRounds {
 public:
  LateRounds() {
    // The publisher outlives this object, and one of its threads may be in the hook then.
    set_log_hook([count = count_](LogLevel, const std::string& line) {
      if (line.find("a member did not answer in time") != std::string::npos) ++*count;
    });
  }
  ~LateRounds() { set_log_hook(nullptr); }
  int count() const { return *count_; }

 private:
  const std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
};

/// Its connection stands, so nothing but the round's deadline tells of it. Without the deadline the other one would go
/// on as well, whenever its fetch has had no byte for ten seconds.
TEST_F(NcclStream, AMemberThatStandsStillInARoundLeavesTheVersionToTheOther) {
  const LateRounds late;
  const auto sound = std::make_shared<WatchedCollective>();
  const auto dies = std::make_shared<WatchedCollective>(true);
  const auto survivor = subscribe(sound);
  auto dying = subscribe(dies);
  while (!HasFailure() && !dies->is_dying) {
    const VersionNumber version = publish_next();
    ASSERT_TRUE(eventually([&] {
      return dies->is_dying || (survivor->snapshot().version() == version && dying->snapshot().version() == version);
    }));
    expect_served(*survivor, version);
  }
  // A round has two transfers in flight, so the third version waits for its end.
  for (int version = 0; version < 3 && !HasFailure(); ++version) expect_served(*survivor, publish_next());
  EXPECT_GE(late.count(), 1);
  dying = nullptr;
  expect_served(*survivor, publish_next());
  const auto later = subscribe(std::make_shared<WatchedCollective>());
  expect_served(*later, publish_next());
}

}  // namespace
}  // namespace freshet::test
