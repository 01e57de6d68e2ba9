// SPDX-License-Identifier: Apache-2.0
/// Fetches into an arena, over a channel that does what the test wants: what is handed out is the version, byte for
/// byte, or an error; never anything else.

#include "transport/subscribe/fetch/fetch_install.h"

#include "tests/support/refused.h"
#include "tests/transport/channel/fake_channel.h"

namespace freshet::detail {
namespace {

using channel::Encoding;
using test::ChangingModel;
using test::FakeClient;
using test::ModelSource;

class FetchInstallTest : public ::testing::Test {
 protected:
  FetchInstallTest() : FetchInstallTest({40'000, 1'000, 3'000, 20'000, 0}) {}
  explicit FetchInstallTest(const std::vector<std::uint64_t>& elements) : model_(elements) {
    connect();
    manifest_ = model_.next(model_.all());
    EXPECT_TRUE(arena_.prepare(*manifest_->architecture));
  }
  ~FetchInstallTest() override {
    for (auto& version : versions_) arena_.let_go(version.segments);
  }

  void connect() {
    auto client = std::make_unique<FakeClient>(source_);
    client_ = client.get();
    channel_.client = std::move(client);
    channel_.last_request = 0;
  }

  /// The whole of it, or why not. `served` of the versions fetched before, or -1.
  Result<FetchedVersion> fetch(const std::shared_ptr<const Manifest>& manifest, int served = -1) {
    FetchInstall install(options_, {.manifest = manifest, .session = 1, .lease = 5},
                         served < 0 ? nullptr : &versions_[static_cast<std::size_t>(served)], channel_, arena_, kept_);
    if (auto started = install.start(now_); !started) return fail(started.error());
    while (!install.is_over() || !install.is_quiet()) {
      const auto more = channel_.client->progress(std::chrono::microseconds(100));
      if (!more) install.on_client_dead(more.error());
      now_ += std::chrono::milliseconds(client_->stalled ? 500 : 1);
      install.carry_on(now_);
      // A stalled client answers a cancel no more than anything else.
      if (client_->stalled && install.is_over()) {
        channel_.client.reset();
        install.on_client_dead(Error(Code::unavailable, "cut off"));
      }
    }
    tally_ = install.tally();
    return install.take();
  }
  /// Fetches, which must succeed, checks every byte, and keeps it.
  void serve(const std::shared_ptr<const Manifest>& manifest, int served = -1) {
    auto version = fetch(manifest, served);
    ASSERT_TRUE(version) << version.error().message();
    expect_whole(*version);
    versions_.push_back(std::move(*version));
  }
  void expect_whole(const FetchedVersion& version) {
    for (std::uint32_t t = 0; t < version.segments.size(); ++t) {
      const Bytes bytes = arena_.bytes(version.segments[t]);
      const auto& expected = model_.segment(version.manifest->owners[t]);
      ASSERT_EQ(bytes.size(), expected.size());
      EXPECT_TRUE(std::ranges::equal(bytes, expected)) << "tensor " << t;
    }
  }
  void drop(std::size_t version) {
    arena_.let_go(versions_[version].segments);
    versions_[version].segments.clear();
  }
  void use(std::uint64_t limit_bytes) { arena_limit_ = limit_bytes; }

  ChangingModel model_;
  ModelSource source_{model_};
  FetchChannel channel_;
  FakeClient* client_ = nullptr;
  std::uint64_t arena_limit_ = 0;
  FetchArena arena_{{.name = "test", .copies = 2.1, .lock_memory = false}};
  KeptDeltas kept_{1 << 20};
  FetchInstall::Options options_;
  std::shared_ptr<const Manifest> manifest_;
  std::vector<FetchedVersion> versions_;
  FetchTally tally_;
  Time now_{};
};

TEST_F(FetchInstallTest, TheFirstVersionComesDense) {
  serve(manifest_);
  EXPECT_EQ(tally_.bytes_moved, 2u * 64'000);
  EXPECT_EQ(tally_.tensors, 4u);
  EXPECT_EQ(tally_.tensors_delta, 0u);
}

TEST_F(FetchInstallTest, AModelWithoutBytesIsWholeAtOnce) {
  ChangingModel nothing({0, 0, 0});
  const auto manifest = nothing.next(nothing.all());
  FetchArena arena({.name = "test", .lock_memory = false});
  ASSERT_TRUE(arena.prepare(*manifest->architecture));
  FetchInstall install(options_, {.manifest = manifest, .session = 1, .lease = 5}, nullptr, channel_, arena, kept_);
  ASSERT_TRUE(install.start(now_));
  ASSERT_TRUE(install.is_over() && install.is_quiet());
  const auto version = install.take();
  ASSERT_TRUE(version) << version.error().message();
  EXPECT_EQ(version->segments.size(), 3U);
  EXPECT_TRUE(source_.requests.empty());
  arena.let_go(version->segments);
}

TEST_F(FetchInstallTest, OnlyWhatChangedComes) {
  serve(manifest_);
  source_.deltas = false;
  serve(model_.next({2}), 0);
  EXPECT_EQ(tally_.bytes_moved, 2u * 3'000);
  EXPECT_EQ(versions_[0].segments[0], versions_[1].segments[0]);
  EXPECT_NE(versions_[0].segments[2], versions_[1].segments[2]);
}

TEST_F(FetchInstallTest, DeltasAreAppliedToAShadow) {
  serve(manifest_);
  serve(model_.next({0, 3}), 0);
  EXPECT_EQ(tally_.tensors_delta, 2u);
  EXPECT_EQ(tally_.shadows_copied, 2u) << "a shadow that never held the tensor has to be copied";
  EXPECT_LT(tally_.bytes_moved, 12'000u);
  drop(0);
  for (int version = 1; version < 5; ++version) {
    serve(model_.next({0, 3}), version);
    EXPECT_EQ(tally_.tensors_delta, 2u);
    EXPECT_EQ(tally_.shadows_copied, 0u) << "it is one version behind: the delta before is applied again";
    drop(static_cast<std::size_t>(version));
  }
}

class FetchForDevice : public FetchInstallTest {
 protected:
  FetchForDevice() : FetchInstallTest({40'000, 40'000, 40'000, 1'000}) { options_.for_device = true; }
};

TEST_F(FetchForDevice, DeltasOfLargeTensorsAreKept) {
  serve(manifest_);
  serve(model_.next({0, 2, 3}), 0);
  EXPECT_EQ(tally_.tensors_delta, 3u);
  const auto& deltas = versions_[1].deltas;
  ASSERT_EQ(deltas.size(), 4U);
  EXPECT_TRUE(deltas[0] != nullptr && deltas[1] == nullptr && deltas[2] != nullptr);
  EXPECT_EQ(deltas[3], nullptr) << "a device copies a small tensor with others";
}

TEST_F(FetchForDevice, DeltasAreKeptUpToALimit) {
  serve(manifest_);
  serve(model_.next({0, 1, 2}), 0);
  std::uint64_t largest = 0;
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    ASSERT_NE(versions_[1].deltas[tensor], nullptr);
    largest = std::max(largest, versions_[1].deltas[tensor]->table_bytes());
  }
  options_.for_device_bytes_max = largest + largest / 2;
  serve(model_.next({0, 1, 2}), 1);
  EXPECT_EQ(tally_.tensors_delta, 3u) << "it is one of what is kept, not of what comes";
  EXPECT_EQ(std::ranges::count_if(versions_[2].deltas, [](const auto& delta) { return delta != nullptr; }), 1);
}

TEST_F(FetchInstallTest, WithoutRoomForDeltasTheShadowIsCopied) {
  kept_.~KeptDeltas();
  new (&kept_) KeptDeltas(0);
  serve(manifest_);
  serve(model_.next({0}), 0);
  drop(0);
  serve(model_.next({0}), 1);
  EXPECT_EQ(tally_.tensors_delta, 1u);
  EXPECT_EQ(tally_.shadows_copied, 1u);
}

TEST_F(FetchInstallTest, GoingBackNeedsNoBytesThatAreHereStill) {
  serve(manifest_);
  serve(model_.next({0, 1, 2, 3}), 0);
  drop(0);
  const auto back = fetch(model_.at(1), 1);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(tally_.bytes_moved, 0u);
  expect_whole(*back);
  arena_.let_go(back->segments);
}

TEST_F(FetchInstallTest, ADeltaThatLeadsBackwardsIsTurnedRound) {
  serve(manifest_);
  serve(model_.next({0}), 0);
  drop(0);
  serve(model_.next({0}), 1);
  drop(1);
  serve(model_.next({0}), 2);
  drop(2);
  // What the server has at hand leads from there to here.
  const SegmentName here = versions_[3].manifest->owners[0];
  source_.tamper = [&](const channel::Piece& piece, Encoding encoding, std::vector<std::byte>& answer) {
    if (encoding != Encoding::delta || piece.tensor != 0) return;
    const SegmentName target = model_.at(1)->owners[0];
    answer = *encode_delta({.dtype = DType::bf16, .base = target, .target = here}, model_.segment(target),
                           model_.segment(here), 1 << 20);
  };
  serve(model_.at(1), 3);
  EXPECT_EQ(tally_.tensors_delta, 1u);
  EXPECT_EQ(tally_.proofs_failed, 0u);
}

TEST_F(FetchInstallTest, WrongBytesAreFetchedOnceMoreAndThenRefused) {
  int lies = 1;
  source_.tamper = [&](const channel::Piece& piece, Encoding, std::vector<std::byte>& answer) {
    if (piece.tensor == 3 && lies-- > 0) answer[777] ^= std::byte{4};
  };
  serve(manifest_);
  EXPECT_EQ(tally_.proofs_failed, 1u);
  const auto next = model_.next({3});
  source_.deltas = false;
  lies = 2;
  EXPECT_TRUE(is_refused(fetch(next, 0), Code::corrupt, "t3.weight"));
  expect_whole(versions_[0]);
  lies = 0;
  serve(next, 0);
}

TEST_F(FetchInstallTest, ADeltaThatProvesNothingIsFetchedDense) {
  serve(manifest_);
  source_.tamper = [](const channel::Piece&, Encoding encoding, std::vector<std::byte>& answer) {
    if (encoding == Encoding::delta) answer[answer.size() / 2] ^= std::byte{1};
  };
  serve(model_.next({0}), 0);
  EXPECT_EQ(tally_.proofs_failed, 1u);
  EXPECT_EQ(tally_.tensors_delta, 0u);
  EXPECT_EQ(source_.requests.back().pieces.size(), 1u);
  EXPECT_FALSE(source_.requests.back().pieces[0].base);
}

TEST_F(FetchInstallTest, ADeltaOfAnotherBaseIsNotApplied) {
  serve(manifest_);
  const auto second = model_.next({0});
  source_.tamper = [&](const channel::Piece& piece, Encoding encoding, std::vector<std::byte>& answer) {
    if (encoding != Encoding::delta) return;
    // Honest in itself, from a base that is not here: the one that was asked for has other bytes.
    std::vector<std::byte> other = model_.segment(*piece.base);
    other[100] ^= std::byte{1};
    answer = *encode_delta({.dtype = DType::bf16, .base = *piece.base, .target = second->owners[0]}, other,
                           model_.segment(second->owners[0]), 1 << 20);
  };
  serve(second, 0);
  EXPECT_EQ(tally_.proofs_failed, 1u);
  EXPECT_EQ(tally_.tensors_delta, 0u);
}

/// A delta is proved by a sum that its maker computed; only the full digest convicts a maker who lies.
TEST_F(FetchInstallTest, TheFullProofFindsADeltaThatLeadsElsewhere) {
  serve(manifest_);
  const auto second = model_.next({0});
  source_.tamper = [&](const channel::Piece& piece, Encoding encoding, std::vector<std::byte>& answer) {
    if (encoding != Encoding::delta) return;
    std::vector<std::byte> elsewhere = model_.segment(second->owners[0]);
    elsewhere[100] ^= std::byte{1};
    answer = *encode_delta({.dtype = DType::bf16, .base = *piece.base, .target = second->owners[0]},
                           model_.segment(*piece.base), elsewhere, 1 << 20);
  };
  options_.full_proof = true;
  serve(second, 0);
  EXPECT_EQ(tally_.proofs_failed, 1u);
  EXPECT_EQ(tally_.tensors_delta, 0u);
}

TEST_F(FetchInstallTest, ABrokenConnectionKeepsWhatWasProved) {
  client_->dies_after_bytes = 90'000;
  options_.limits.batch_pieces = 1;
  EXPECT_TRUE(is_refused(fetch(manifest_), Code::unavailable));
  connect();
  serve(manifest_);
  EXPECT_EQ(tally_.bytes_moved, 2u * 24'000 - 2u * 4'000) << "the first three tensors had come";
}

TEST_F(FetchInstallTest, SilenceEndsAFetch) {
  client_->stalled = true;
  EXPECT_TRUE(is_refused(fetch(manifest_), Code::timed_out));
}

TEST_F(FetchInstallTest, ALeaseThatIsOverIsNoFaultOfTheVersion) {
  source_.refuse = Error(Code::failed_precondition, "no such lease");
  EXPECT_TRUE(is_refused(fetch(manifest_), Code::unavailable));
}

TEST_F(FetchInstallTest, ADeltaTooLargeToBeKeptOnTheWayComesDense) {
  serve(manifest_);
  options_.payload_bytes_max = 100;
  serve(model_.next({0, 1, 3}), 0);
  EXPECT_EQ(tally_.tensors, 3u);
  EXPECT_EQ(tally_.proofs_failed, 0u);
  EXPECT_LT(tally_.tensors_delta, 3u);
}

TEST_F(FetchInstallTest, AFewRequestsAreUnderWayAtATime) {
  options_.limits.batch_pieces = 1;
  options_.requests_in_flight = 2;
  serve(manifest_);
  EXPECT_EQ(client_->most_in_flight, 2u);
  EXPECT_EQ(source_.requests.size(), 4u);
}

TEST_F(FetchInstallTest, AnEmptyTensorMustHaveTheDigestOfNothing) {
  auto wrong = std::make_shared<Manifest>(*manifest_);
  wrong->digests[4].low ^= 1;
  EXPECT_TRUE(is_refused(fetch(wrong), Code::corrupt));
}

TEST_F(FetchInstallTest, ASegmentThatAScrubDistrustsIsNoBaseAndIsFetchedAgain) {
  serve(manifest_);
  arena_.distrust(versions_[0].segments[0]);
  serve(manifest_, 0);
  EXPECT_EQ(tally_.tensors, 1u);
  EXPECT_EQ(tally_.tensors_delta, 0u);
  EXPECT_NE(versions_[0].segments[0], versions_[1].segments[0]);
}

}  // namespace
}  // namespace freshet::detail
