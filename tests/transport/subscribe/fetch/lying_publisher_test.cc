// SPDX-License-Identifier: Apache-2.0
/// A publisher that lies: what it grants is checked before it is served, and what is served stays.

#include <sys/mman.h>

#include <random>
#include <set>

#include "core/arena/arena.h"
#include "core/arena/slab.h"
#include "core/base/mutex.h"
#include "tests/transport/model_fixture.h"
#include "transport/subscribe/served_version.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {
namespace {

using namespace freshet::test;

constexpr std::size_t kLiesTensors = 3;
constexpr std::uint64_t kTensorBytes = 4096;
constexpr std::uint64_t kSlabBytes = 4 * kTensorBytes;

/// Has no memory of its own; notes what it may write again.
class Nobody final : public HubModel {
 public:
  void on_free(std::span<const SegmentIndex> segments) override {
    MutexLock lock(mutex_);
    freed_.insert(segments.begin(), segments.end());
  }
  std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const override {
    return std::vector<Bytes>(segments.size());
  }
  void on_number_floor(VersionNumber) override {}
  PublisherStat stat(const std::vector<SubscriberStat>& sessions) const override {
    PublisherStat stat;
    stat.subscribers.resize(sessions.size());
    return stat;
  }
  bool freed(SegmentIndex segment) const {
    MutexLock lock(mutex_);
    return freed_.contains(segment);
  }

 private:
  mutable Mutex mutex_;
  std::set<SegmentIndex> freed_ FRESHET_GUARDED_BY(mutex_);
};

class LyingPublisher : public StreamTest {
 protected:
  void SetUp() override {
    auto hub = PublisherHub::open({.directory = folder_.path()});
    ASSERT_TRUE(hub) << hub.error().message();
    hub_ = std::move(*hub);
    ASSERT_TRUE(hub_->add({.model = "demo", .run = {1, 2}, .incarnation = 5}, nobody_));
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < kLiesTensors; ++t) {
      specs.push_back({.name = "t" + std::to_string(t), .dtype = DType::u8, .shape = {kTensorBytes}});
    }
    auto architecture = Architecture::guess_chain(specs);
    ASSERT_TRUE(architecture);
    architecture_ = *architecture;
    add_slab();
    subscriber_ = open_subscriber({.model = "demo", .at = {hub_->address()}});
    commit(honest());
    ASSERT_TRUE(subscriber_->wait_for(1, kPatience)) << subscriber_->status().last_error;
  }
  void TearDown() override {
    subscriber_.reset();
    if (hub_) hub_->remove("demo");
  }

  void add_slab() {
    auto slab = Slab::create("freshet-test", {.bytes = kSlabBytes, .lock = false});
    ASSERT_TRUE(slab) << slab.error().message();
    for (std::size_t i = 0; i < kSlabBytes; ++i) slab->memory()[i] = static_cast<std::byte>(i / kTensorBytes + 1);
    slabs_.push_back(std::move(*slab));
  }

  /// A version as it should be.
  protocol::CommittedVersion honest() {
    auto manifest = std::make_shared<Manifest>();
    manifest->name = {.model = "demo", .number = ++number_};
    manifest->id = {.run = {1, 2}, .incarnation = 5, .sequence = number_};
    manifest->architecture = architecture_;
    manifest->owners = OwnerMap::all_written_by(manifest->id, kLiesTensors);
    manifest->digests.resize(kLiesTensors);
    protocol::CommittedVersion version;
    version.encoded_manifest = encode(*manifest);
    version.manifest = manifest;
    for (std::uint32_t t = 0; t < kLiesTensors; ++t) {
      version.segments.push_back(t);
      version.places.push_back({.slab = 0, .offset = t * kTensorBytes, .bytes = kTensorBytes});
    }
    for (const Slab& slab : slabs_) version.slab_bytes.push_back(slab.bytes());
    return version;
  }

  void commit(protocol::CommittedVersion version) {
    std::vector<shm::SlabReference> references;
    for (const Slab& slab : slabs_) references.push_back({.descriptor = slab.descriptor(), .bytes = slab.bytes()});
    hub_->commit("demo", std::move(version), std::move(references), [] {});
  }

  void expect_first_version_untouched() {
    const Snapshot snapshot = subscriber_->snapshot();
    ASSERT_EQ(snapshot.version(), 1U);
    for (std::uint32_t t = 0; t < kLiesTensors; ++t) {
      for (const std::byte byte : snapshot.bytes(t)) ASSERT_EQ(byte, static_cast<std::byte>(t + 1));
    }
  }

  /// The lie is refused with an error that says `what`, and nothing else changes.
  void expect_refused(protocol::CommittedVersion lie, const std::string& what) {
    commit(std::move(lie));
    ASSERT_TRUE(eventually([&] { return subscriber_->status().last_error.find(what) != std::string::npos; }))
        << what << ": " << subscriber_->status().last_error;
    EXPECT_EQ(subscriber_->status().last_error.find('\n'), std::string::npos);
    expect_first_version_untouched();
  }
  std::string install_of_newest() const { return "install demo@" + std::to_string(number_); }

  void expect_served_again() {
    commit(honest());
    ASSERT_TRUE(subscriber_->wait_for(number_, kPatience)) << subscriber_->status().last_error;
    EXPECT_EQ(subscriber_->status().last_error, "");
  }

  Nobody nobody_;
  std::vector<Slab> slabs_;
  std::shared_ptr<const Architecture> architecture_;
  VersionNumber number_ = 0;
  std::shared_ptr<PublisherHub> hub_;
  std::unique_ptr<Subscriber> subscriber_;
};

TEST_F(LyingPublisher, PlacesMustLieInTheirSlab) {
  auto lie = honest();
  lie.places[1].offset = kSlabBytes;
  expect_refused(std::move(lie), "tensor 1 is outside the slabs");
  lie = honest();
  lie.places[2].offset = ~std::uint64_t{0} - 4095;
  expect_refused(std::move(lie), "tensor 2 is outside the slabs");
  lie = honest();
  lie.places[0].slab = 1;
  expect_refused(std::move(lie), "tensor 0 is outside the slabs");
  lie = honest();
  lie.places[0].bytes = kTensorBytes * 2;
  expect_refused(std::move(lie), install_of_newest() + ": tensor t0 has another size");
  lie = honest();
  lie.places[0].offset = 3;
  expect_refused(std::move(lie), install_of_newest() + ": tensor t0 is not aligned");
  lie = honest();
  lie.slab_bytes[0] += 4096;
  expect_refused(std::move(lie), install_of_newest() + ": slab 0 has another size");
  expect_served_again();
}

TEST_F(LyingPublisher, TheManifestMustBeTheGrants) {
  const auto older = honest();
  auto lie = honest();
  lie.encoded_manifest = older.encoded_manifest;
  expect_refused(std::move(lie), install_of_newest() + ": the grant of demo@");
  lie = honest();
  lie.encoded_manifest.resize(lie.encoded_manifest.size() / 2);
  expect_refused(std::move(lie), "manifest");
  lie = honest();
  lie.encoded_manifest.assign(128, std::byte{0xFF});
  expect_refused(std::move(lie), install_of_newest());
  expect_served_again();
}

TEST_F(LyingPublisher, FlippedBitsAreFound) {
  const std::uint32_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 30; ++i) {
    auto lie = honest();
    const std::size_t at = random() % lie.encoded_manifest.size();
    lie.encoded_manifest[at] ^= static_cast<std::byte>(1U << (random() % 8));
    expect_refused(std::move(lie), install_of_newest());
  }
  expect_served_again();
}

/// The same checks without a wire before them, which refuses some of these lies itself.
TEST_F(LyingPublisher, GrantsAreCheckedAgainstTheSlabs) {
  detail::ArchitectureCache cache;
  detail::Slabs slabs;
  auto slab = Slab::adopt(::dup(slabs_[0].descriptor()), slabs_[0].bytes());
  ASSERT_TRUE(slab) << slab.error().message();
  slabs.push_back(std::make_shared<const Slab>(std::move(*slab)));
  const auto grant_of = [&](const protocol::CommittedVersion& version) {
    return protocol::Grant{.number = number_,
                           .manifest = version.encoded_manifest,
                           .architecture = {architecture_->encoded().begin(), architecture_->encoded().end()},
                           .places = version.places,
                           .slab_bytes = version.slab_bytes};
  };
  const protocol::Grant good = grant_of(honest());
  auto served = detail::make_served_version("demo", good, slabs, cache);
  ASSERT_TRUE(served) << served.error().message();
  const auto refused = [&](const protocol::Grant& grant) {
    const auto made = detail::make_served_version("demo", grant, slabs, cache);
    return !made && made.error().code() == Code::corrupt;
  };
  protocol::Grant bad = good;
  bad.places[0].offset = kSlabBytes - 64;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.places[0].offset = ~std::uint64_t{0} - 63;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.places[0].slab = 1;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.places.pop_back();
  EXPECT_TRUE(refused(bad));
  EXPECT_FALSE(detail::make_served_version("other", good, slabs, cache));
  // An architecture that never came.
  detail::ArchitectureCache nothing_known;
  bad = good;
  bad.architecture.clear();
  EXPECT_FALSE(detail::make_served_version("demo", bad, slabs, nothing_known));
}

TEST_F(LyingPublisher, SlabsMustBeSealedMemory) {
  // Its writer could shrink this one and so kill whoever reads.
  const FileDescriptor loose(::memfd_create("freshet-loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(loose);
  ASSERT_EQ(::ftruncate(loose.get(), kSlabBytes), 0);
  auto lie = honest();
  lie.slab_bytes.push_back(kSlabBytes);
  lie.places[0].slab = 1;
  std::vector<shm::SlabReference> references{{.descriptor = slabs_[0].descriptor(), .bytes = slabs_[0].bytes()},
                                             {.descriptor = loose.get(), .bytes = kSlabBytes}};
  hub_->commit("demo", std::move(lie), std::move(references), [] {});
  ASSERT_TRUE(eventually([&] { return !subscriber_->status().last_error.empty(); }));
  expect_first_version_untouched();
}

/// What the publisher sends through the door may be wrong, or may not fit into this process (its limit of open files):
/// what is read already must stay as it is.
TEST_F(LyingPublisher, ABrokenDoorFreesNothingThatIsRead) {
  Snapshot snapshot = subscriber_->snapshot();
  ASSERT_EQ(snapshot.version(), 1U);
  auto lie = honest();
  lie.segments = {3, 4, 5};
  lie.slab_bytes.push_back(kSlabBytes);
  lie.places[0].slab = 1;
  const FileDescriptor loose(::memfd_create("freshet-loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), kSlabBytes), 0);
  hub_->commit("demo", std::move(lie),
               {{.descriptor = slabs_[0].descriptor(), .bytes = slabs_[0].bytes()},
                {.descriptor = loose.get(), .bytes = kSlabBytes}},
               [] {});
  // The subscriber gave its session up and began another.
  ASSERT_TRUE(eventually([&] { return nobody_.freed(0) || hub_->standing("demo")->sessions.size() > 1; }));
  EXPECT_FALSE(nobody_.freed(0));
  auto version = honest();
  version.segments = {6, 7, 8};
  commit(std::move(version));
  ASSERT_TRUE(subscriber_->wait_for(number_, kPatience)) << subscriber_->status().last_error;
  EXPECT_FALSE(nobody_.freed(0));
  snapshot = Snapshot();
  EXPECT_TRUE(eventually([&] { return nobody_.freed(0); }));
}

TEST_F(LyingPublisher, SlabsThatComeLaterAreWaitedFor) {
  add_slab();
  auto version = honest();
  version.places[2] = {.slab = 1, .offset = 2 * kTensorBytes, .bytes = kTensorBytes};
  commit(std::move(version));
  ASSERT_TRUE(subscriber_->wait_for(number_, kPatience)) << subscriber_->status().last_error;
  EXPECT_EQ(subscriber_->snapshot().bytes(2)[0], std::byte{3});
}

}  // namespace
}  // namespace freshet
