// SPDX-License-Identifier: Apache-2.0
/// A training loop waits for nobody who serves others: here the thread that serves them stands still.

#include <atomic>
#include <future>

#include "tests/transport/model_fixture.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {
namespace {

using namespace freshet::test;

/// A model of the hub whose owner does what no owner may: it keeps the hub's thread.
class Stopper final : public HubModel {
 public:
  void on_free(std::span<const SegmentIndex>) override {}
  std::vector<Bytes> bytes_of(std::span<const SegmentIndex>) const override { return {}; }
  void on_number_floor(VersionNumber) override {}
  PublisherStat stat(const std::vector<SubscriberStat>&) const override { return {}; }
  protocol::Current recorded() const override {
    if (stops_) {
      stopped_ = true;
      stopped_.notify_all();
      stops_.wait(true);
    }
    return {};
  }
  void stop(PublisherHub& hub) {
    stops_ = true;
    hub.shed_queues("stopper", 0);  // Wakes it.
    stopped_.wait(false);
  }
  void go_on() {
    stops_ = false;
    stops_.notify_all();
  }

 private:
  std::atomic<bool> stops_{false};
  mutable std::atomic<bool> stopped_{false};
};

class StoppedHub : public StreamTest {
 protected:
  void SetUp() override {
    auto hub = open_publisher_hub({.directory = folder_.path()});
    ASSERT_TRUE(hub) << hub.error().message();
    hub_ = *hub;
    ASSERT_TRUE(hub_->add({.model = "stopper"}, stopper_));
    PublisherOptions options = publisher_options();
    options.hub = hub_;
    options.lock_memory = false;
    options.keep_versions = 4;
    options.arena_copies = 1;
    options.arena_limit_bytes = 4 * model_.bytes();
    publisher_ = open_publisher(std::move(options));
    model_.stamp_all(1);
    first_ = publish(*publisher_, model_);
  }
  void TearDown() override {
    stopper_.go_on();
    publisher_.reset();
    hub_->remove("stopper");
  }
  /// Whether it returns while the hub's thread stands.
  template <typename Call>
  bool returns(Call call) {
    auto done = std::async(std::launch::async, call);
    const bool in_time = done.wait_for(kPatience) == std::future_status::ready;
    if (!in_time) stopper_.go_on();
    done.get();
    return in_time;
  }

  StampedModel model_{4, 65'536};
  Stopper stopper_;
  std::shared_ptr<PublisherHub> hub_;
  std::unique_ptr<Publisher> publisher_;
  VersionNumber first_ = 0;
};

TEST_F(StoppedHub, TheLoopPublishesAndLooksAndWaitsForNobody) {
  stopper_.stop(*hub_);
  EXPECT_TRUE(returns([&] { EXPECT_EQ(publisher_->stat().newest, first_); }));
  std::size_t published = 0;
  std::size_t skipped = 0;
  for (std::uint64_t stamp = 2; stamp < 12; ++stamp) {
    model_.stamp_all(stamp);
    ASSERT_TRUE(returns([&] {
      const auto receipt = publisher_->publish(model_.views(), {.step = stamp});
      EXPECT_TRUE(receipt || receipt.error().code() == Code::out_of_space) << receipt.error().message();
      ++(receipt ? published : skipped);
    })) << stamp;
  }
  EXPECT_GT(published, 0U);
  EXPECT_GT(skipped, 0U) << "a full arena is asked for room in vain, and not waited for";
  EXPECT_TRUE(returns([&] { EXPECT_EQ(publisher_->stat().versions_skipped, skipped); }));
  stopper_.go_on();
  ASSERT_TRUE(eventually([&] {
    model_.stamp_all(20);
    return publisher_->publish(model_.views(), {.sync = true}).has_value();
  })) << "there is room again";
}

TEST_F(StoppedHub, RoomForTheNextVersionIsMadeBeforehand) {
  // Four copies of the model fit, and four versions are kept, all of which changed everything.
  for (std::uint64_t stamp = 2; stamp < 20; ++stamp) {
    model_.stamp_all(stamp);
    const auto receipt = publisher_->publish(model_.views(), {.step = stamp, .sync = true});
    ASSERT_TRUE(receipt) << stamp << ": " << receipt.error().message();
  }
  EXPECT_EQ(publisher_->stat().versions_skipped, 0U);
}

}  // namespace
}  // namespace freshet
