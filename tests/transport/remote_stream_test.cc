// SPDX-License-Identifier: Apache-2.0
/// Versions that are fetched, over every data channel that is here, though both ends stand on one host: what is
/// published is what is served, a channel or a publisher that dies costs nothing that is served, and lies are refused.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/mutex.h"
#include "tests/transport/model_fixture.h"
#include "transport/option_text.h"
#include "transport/subscribe/fetch/channel_openers.h"

namespace freshet {
namespace {

using namespace freshet::test;

/// A model of bf16 tensors of which few elements change.
class SlowlyChangingModel {
 public:
  explicit SlowlyChangingModel(std::vector<std::size_t> elements) {
    for (const std::size_t count : elements) values_.emplace_back(count, std::uint16_t{0x3F80});
  }
  void step(const std::vector<std::size_t>& tensors, std::size_t stride) {
    ++steps_;
    for (const std::size_t tensor : tensors) {
      for (std::size_t i = steps_ % stride; i < values_[tensor].size(); i += stride) ++values_[tensor][i];
    }
  }
  std::vector<TensorView> views() const {
    std::vector<TensorView> views;
    for (std::size_t t = 0; t < values_.size(); ++t) {
      views.push_back({.spec = {.name = "t" + std::to_string(t), .dtype = DType::bf16, .shape = {values_[t].size()}},
                       .data = bytes_of(values_[t].data(), values_[t].size())});
    }
    return views;
  }
  bool equals(const Snapshot& snapshot) const {
    for (std::uint32_t t = 0; t < values_.size(); ++t) {
      const Bytes bytes = snapshot.bytes(t);
      if (bytes.size() != values_[t].size() * 2 || std::memcmp(bytes.data(), values_[t].data(), bytes.size()) != 0) {
        return false;
      }
    }
    return true;
  }
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& tensor : values_) bytes += tensor.size() * 2;
    return bytes;
  }

 private:
  std::uint64_t steps_ = 0;
  std::vector<std::vector<std::uint16_t>> values_;
};

/// The parameter is the kind of channel.
class RemoteStream : public StreamTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const auto kind = parse_channel(GetParam());
    ASSERT_TRUE(kind);
    if (!channel_openers({}, std::nullopt).contains(**kind)) GTEST_SKIP() << "there is no channel " << GetParam();
  }
  PublisherOptions remote_publisher_options() const {
    PublisherOptions options = publisher_options();
    options.hub_options.listen = "tcp://127.0.0.1:*";
    options.hub_options.channels = parse_channel_choice(GetParam()).value();
    options.lock_memory = false;
    return options;
  }
  SubscriberOptions remote_options() {
    SubscriberOptions options = subscriber_options();
    options.channel = parse_channel(GetParam()).value();
    options.lock_memory = false;
    options.on_update = [this](const Update& update) {
      const MutexLock lock(mutex_);
      updates_.push_back(update);
    };
    return options;
  }
  std::vector<Update> updates() {
    const MutexLock lock(mutex_);
    return updates_;
  }
  VersionNumber publish_step(Publisher& publisher, SlowlyChangingModel& model) {
    const auto receipt = publisher.publish(model.views(), {});
    EXPECT_TRUE(receipt) << receipt.error().message();
    if (!receipt) return 0;
    EXPECT_TRUE(publisher.wait_committed(receipt->version, kPatience));
    return receipt->version;
  }

  Mutex mutex_;
  std::vector<Update> updates_ FRESHET_GUARDED_BY(mutex_);
  SlowlyChangingModel model_{{100'000, 300, 50'000, 7}};
};

INSTANTIATE_TEST_SUITE_P(Channels, RemoteStream, ::testing::Values("ucx", "zmq"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(RemoteStream, OptimizerStateIsFetchedByWhoStoresItAndByNoServer) {
  auto publisher = open_publisher(remote_publisher_options());
  auto server = open_subscriber(remote_options());
  SubscriberOptions mapping = subscriber_options();
  auto neighbour = open_subscriber(mapping);
  SubscriberOptions all = subscriber_options();
  all.channel = parse_channel(GetParam()).value();
  all.lock_memory = false;
  all.whole = true;
  auto store = open_subscriber(all);
  for (VersionNumber version = 1; version <= 4; ++version) {
    model_.step({0, 1, 2, 3}, 3);
    std::vector<TensorView> views = model_.views();
    views[1].spec.role = Role::buffer;
    views[2].spec.role = Role::optimizer;
    views[3].spec.role = Role::opaque;
    ASSERT_TRUE(publisher->publish(views, {}));
    for (Subscriber* one : {server.get(), neighbour.get(), store.get()}) {
      const Status came = one->wait_for(version, kPatience);
      ASSERT_TRUE(came) << came.error().message();
      const Snapshot snapshot = one->snapshot();
      for (std::uint32_t tensor = 0; tensor < views.size(); ++tensor) {
        const bool takes = one == store.get() || is_served(views[tensor].spec.role);
        const Bytes bytes = snapshot.bytes(tensor);
        ASSERT_EQ(bytes.size(), takes ? views[tensor].data.size() : 0U) << tensor;
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), views[tensor].data.begin())) << tensor;
        const auto named = snapshot.tensor(views[tensor].spec.name);
        EXPECT_EQ(named.has_value(), takes);
        if (!named) {
          EXPECT_EQ(named.error().code(), Code::not_found);
        }
      }
    }
  }
  const std::vector<Update> fetched = updates();
  ASSERT_FALSE(fetched.empty());
  EXPECT_EQ(fetched.front().tensors_fetched, 2U);
  EXPECT_EQ(fetched.front().bytes_fetched, (100'000U + 300U) * 2);
}

TEST_P(RemoteStream, AServerThatTakesNoBytesIsServed) {
  auto publisher = open_publisher(remote_publisher_options());
  auto server = open_subscriber(remote_options());
  SlowlyChangingModel model{{0, 1000, 0}};
  for (VersionNumber version = 1; version <= 3; ++version) {
    model.step({1}, 3);
    std::vector<TensorView> views = model.views();
    views[1].spec.role = Role::optimizer;
    ASSERT_TRUE(publisher->publish(views, {}));
    const Status came = server->wait_for(version, kPatience);
    ASSERT_TRUE(came) << came.error().message();
    const Snapshot snapshot = server->snapshot();
    for (std::uint32_t tensor = 0; tensor < views.size(); ++tensor) EXPECT_TRUE(snapshot.bytes(tensor).empty());
  }
  // And then it takes bytes.
  std::vector<TensorSpec> specs;
  for (const TensorView& view : model.views()) specs.push_back(view.spec);
  ASSERT_TRUE(publisher->publish(model.views(), {.new_architecture = *Architecture::guess_chain(specs)}));
  ASSERT_TRUE(server->wait_for(4, kPatience));
  EXPECT_TRUE(model.equals(server->snapshot()));
}

TEST_P(RemoteStream, AVersionThatTheScrubRefutesIsWithdrawnAndFetchedWhole) {
  auto publisher = open_publisher(remote_publisher_options());
  std::atomic<Subscriber*> reader{nullptr};
  std::atomic<bool> spoiled{false};
  SubscriberOptions options = remote_options();
  options.scrub_interval = std::chrono::milliseconds(1);
  options.on_update = [&, note = options.on_update](const Update& update) {
    note(update);
    Subscriber* const subscriber = reader;
    if (update.version < 2 || subscriber == nullptr || spoiled.exchange(true)) return;
    // As a wrong delta leaves it, or memory that lost a bit: on the loop's thread, which is also the scrub's.
    const Snapshot snapshot = subscriber->snapshot();
    const_cast<std::byte&>(snapshot.bytes(0)[1000]) ^= std::byte{4};
  };
  auto subscriber = open_subscriber(std::move(options));
  reader = subscriber.get();
  ASSERT_TRUE(subscriber->wait_for(publish_step(*publisher, model_), kPatience));
  // Whoever waits for a version while it is withdrawn gets it when it is there again.
  std::atomic<bool> over{false};
  Status asked;
  std::thread asks([&] {
    while (!over && asked) {
      const auto snapshot = subscriber->snapshot_at_least({.min_version = 1, .at_most = kPatience});
      if (!snapshot) asked = fail(snapshot.error());
    }
  });
  model_.step({0, 2}, 100);
  const VersionNumber version = publish_step(*publisher, model_);
  EXPECT_TRUE(eventually([&] { return spoiled.load(); }));
  const auto times_served = [&] {
    const auto all = updates();
    return std::count_if(all.begin(), all.end(), [&](const Update& update) { return update.version == version; });
  };
  EXPECT_TRUE(eventually([&] { return times_served() == 2; }));
  over = true;
  asks.join();
  EXPECT_TRUE(asked) << asked.error().message();
  EXPECT_TRUE(model_.equals(subscriber->snapshot()));
  const Update again = updates().back();
  EXPECT_EQ(again.tensors_delta, 0U);
  EXPECT_GE(again.bytes_fetched, model_.bytes());
  // And goes on from there.
  model_.step({0}, 100);
  ASSERT_TRUE(subscriber->wait_for(publish_step(*publisher, model_), kPatience));
  EXPECT_TRUE(model_.equals(subscriber->snapshot()));
  reader = nullptr;
}

TEST_P(RemoteStream, ServesWhatWasPublishedAsDeltas) {
  auto publisher = open_publisher(remote_publisher_options());
  auto subscriber = open_subscriber(remote_options());
  for (int step = 0; step < 10; ++step) {
    model_.step({0, 1, 2}, 64);
    const VersionNumber version = publish_step(*publisher, model_);
    const Status came = subscriber->wait_for(version, kPatience);
    ASSERT_TRUE(came) << came.error().message();
    const Snapshot snapshot = subscriber->snapshot();
    EXPECT_EQ(snapshot.version(), version);
    EXPECT_TRUE(model_.equals(snapshot)) << "step " << step;
  }
  ASSERT_TRUE(eventually([&] { return updates().size() == 10; }));
  const std::vector<Update> seen = updates();
  EXPECT_EQ(seen[0].channel, GetParam());
  EXPECT_EQ(seen[0].tensors_dense, 4u);
  EXPECT_EQ(seen[0].bytes_fetched, model_.bytes());
  for (std::size_t i = 1; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].tensors_fetched, 3u);
    EXPECT_EQ(seen[i].tensors_delta, 2u) << "the smallest is not worth a delta";
    EXPECT_LT(seen[i].bytes_fetched, model_.bytes() / 8);
  }
}

TEST_P(RemoteStream, ATensorMayHaveMoreThanOnePartOfADigest) {
  SlowlyChangingModel large{{kDigestPartBytes / 2 + 1, 7}};
  auto publisher = open_publisher(remote_publisher_options());
  auto subscriber = open_subscriber(remote_options());
  auto neighbour = open_subscriber(subscriber_options());
  for (int step = 0; step < 2; ++step) {
    large.step({0}, 4096);
    const VersionNumber version = publish_step(*publisher, large);
    for (Subscriber* one : {subscriber.get(), neighbour.get()}) {
      const Status came = one->wait_for(version, kPatience);
      ASSERT_TRUE(came) << came.error().message();
      EXPECT_TRUE(large.equals(one->snapshot()));
    }
    const Bytes bytes = large.views()[0].data;
    EXPECT_EQ(subscriber->snapshot().manifest().digests[0], digest_of(bytes));
    EXPECT_NE(subscriber->snapshot().manifest().digests[0], plain_xxh3_of(bytes));
  }
  EXPECT_LT(subscriber->status().bytes_fetched, 3 * large.bytes() / 2) << "the second step is a delta";
}

TEST_P(RemoteStream, ALateJoinerFetchesOneWholeVersion) {
  auto publisher = open_publisher(remote_publisher_options());
  VersionNumber newest = 0;
  for (int step = 0; step < 5; ++step) {
    model_.step({0}, 100);
    newest = publish_step(*publisher, model_);
  }
  auto subscriber = open_subscriber(remote_options());
  ASSERT_TRUE(subscriber->wait_for(newest, kPatience));
  EXPECT_TRUE(model_.equals(subscriber->snapshot()));
  EXPECT_EQ(subscriber->status().bytes_fetched, model_.bytes());
}

TEST_P(RemoteStream, AVersionOutlivesItsPublisherAndTheNextOneIsFollowed) {
  auto subscriber = open_subscriber(remote_options());
  VersionNumber first = 0;
  {
    auto publisher = open_publisher(remote_publisher_options());
    model_.step({0}, 10);
    first = publish_step(*publisher, model_);
    ASSERT_TRUE(subscriber->wait_for(first, kPatience));
  }
  ASSERT_TRUE(eventually([&] { return !subscriber->status().connected; }));
  EXPECT_TRUE(model_.equals(subscriber->snapshot()));
  auto publisher = open_publisher(remote_publisher_options());
  model_.step({2}, 10);
  const VersionNumber second = publish_step(*publisher, model_);
  EXPECT_GT(second, first);
  const Status came = subscriber->wait_for(second, kPatience);
  ASSERT_TRUE(came) << came.error().message();
  EXPECT_TRUE(model_.equals(subscriber->snapshot()));
}

TEST_P(RemoteStream, PinnedVersionsStayWhileOthersAreFetched) {
  auto publisher = open_publisher(remote_publisher_options());
  auto subscriber = open_subscriber(remote_options());
  std::vector<std::pair<SlowlyChangingModel, Snapshot>> pinned;
  for (int step = 0; step < 4; ++step) {
    model_.step({0, 2}, 50);
    ASSERT_TRUE(subscriber->wait_for(publish_step(*publisher, model_), kPatience));
    if (step % 2 == 0) pinned.emplace_back(model_, subscriber->snapshot());
  }
  for (const auto& [model, snapshot] : pinned) EXPECT_TRUE(model.equals(snapshot));
}

TEST_P(RemoteStream, AFullArenaKeepsTheServedVersionUntilThereIsRoom) {
  auto publisher = open_publisher(remote_publisher_options());
  SubscriberOptions options = remote_options();
  options.arena_copies = 1;
  options.arena_limit_bytes = 400'000;  // The model has 300,614, a step of its first tensor 200,000.
  auto subscriber = open_subscriber(std::move(options));
  model_.step({0}, 10);
  const VersionNumber first = publish_step(*publisher, model_);
  ASSERT_TRUE(subscriber->wait_for(first, kPatience));
  const SlowlyChangingModel before = model_;
  model_.step({0}, 10);
  publish_step(*publisher, model_);
  ASSERT_TRUE(eventually([&] { return subscriber->status().last_error.find("400000") != std::string::npos; }))
      << subscriber->status().last_error;
  EXPECT_TRUE(before.equals(subscriber->snapshot()));
}

TEST_P(RemoteStream, EveryVersionComesInOrder) {
  auto publisher = open_publisher(remote_publisher_options());
  SubscriberOptions options = remote_options();
  options.every = true;
  auto subscriber = open_subscriber(std::move(options));
  ASSERT_TRUE(eventually([&] { return subscriber->status().connected; }));
  std::vector<SlowlyChangingModel> published;
  for (int step = 0; step < 6; ++step) {
    model_.step({0, 1}, 33);
    publish_step(*publisher, model_);
    published.push_back(model_);
  }
  for (VersionNumber version = 1; version <= 6; ++version) {
    const auto delivery = subscriber->next(kPatience);
    ASSERT_TRUE(delivery) << delivery.error().message();
    EXPECT_EQ(delivery->snapshot.version(), version);
    EXPECT_TRUE(published[version - 1].equals(delivery->snapshot));
  }
}

TEST_P(RemoteStream, AnAddressThatIsSilentLeadsToTheNext) {
  auto publisher = open_publisher(remote_publisher_options());
  SubscriberOptions options = remote_options();
  options.at = {"tcp://127.0.0.1:9", publisher->address()};
  auto subscriber = open_subscriber(std::move(options));
  model_.step({0}, 10);
  const Status came = subscriber->wait_for(publish_step(*publisher, model_), kPatience);
  ASSERT_TRUE(came) << came.error().message();
  EXPECT_TRUE(model_.equals(subscriber->snapshot()));
}

TEST_F(StreamTest, AnOptionThatCannotBeIsRefused) {
  const auto refused = [](auto opened) { return !opened && opened.error().code() == Code::invalid_argument; };
  SubscriberOptions options = subscriber_options();
  options.at = {"tcp://127.0.0.1:7070", "", "tcp://127.0.0.1:7071"};
  EXPECT_TRUE(refused(Subscriber::open(options)));
  options.at = {"file:///somewhere", "tcp://127.0.0.1:7071"};
  EXPECT_TRUE(refused(Subscriber::open(options)));
  options.at.clear();
  options.arena_copies = 0.5;
  EXPECT_TRUE(refused(Subscriber::open(options)));
}

}  // namespace
}  // namespace freshet
