// SPDX-License-Identifier: Apache-2.0
/// A relay passes on what it fetches while it comes. Whoever fetches from it gets the version byte for byte, or an
/// error, and neither waits for ever nor reads memory that is written again.

#include "tests/support/refused.h"
#include "tests/transport/channel/fake_channel.h"
#include "transport/source/fetch_desk.h"
#include "transport/subscribe/fetch/fetch_install.h"

namespace freshet::detail {
namespace {

using source::ComingVersion;
using source::FetchDesk;
using test::ChangingModel;
using test::FakeClient;
using test::ModelSource;

constexpr protocol::LeaseId kLease = 9;

/// Somebody who fetches into an arena of its own, a chunk at a time.
struct Side {
  explicit Side(channel::FetchSource& source) { channel.client = std::make_unique<FakeClient>(source); }
  ~Side() {
    install.reset();
    for (auto& version : versions) arena.let_go(version.segments);
  }

  Status begin(const std::shared_ptr<const Manifest>& manifest, protocol::LeaseId lease,
               std::shared_ptr<ComingVersion> coming = nullptr) {
    FRESHET_TRY(arena.prepare(*manifest->architecture));
    install = std::make_unique<FetchInstall>(
        FetchInstall::Options{.full_proof = coming != nullptr},
        FetchInstall::Job{.manifest = manifest, .session = 1, .lease = lease, .coming = std::move(coming)},
        versions.empty() ? nullptr : &versions.back(), channel, arena, kept);
    return install->start(now);
  }
  bool is_done() const { return install->is_over() && install->is_quiet(); }
  void step() {
    const auto more = channel.client->progress(std::chrono::microseconds(100));
    if (!more) install->on_client_dead(more.error());
    install->carry_on(now);
  }
  /// Keeps what came.
  Status finish() {
    tally = install->tally();
    auto version = install->take();
    install.reset();
    if (!version) return fail(version.error());
    versions.push_back(std::move(*version));
    return {};
  }
  FakeClient& client() { return static_cast<FakeClient&>(*channel.client); }

  FetchChannel channel;
  FetchArena arena{{.name = "test", .copies = 3.1, .lock_memory = false}};
  KeptDeltas kept{1 << 20};
  std::unique_ptr<FetchInstall> install;
  std::vector<FetchedVersion> versions;
  FetchTally tally;
  Time now{};
};

class CutThroughTest : public ::testing::Test {
 protected:
  ~CutThroughTest() override {
    coming_.reset();
    desk_.close_lease(kLease);
    let_go_of_shown();
  }

  /// The relay begins to fetch, and its desk has a lease of what comes.
  void begin(const std::shared_ptr<const Manifest>& manifest) {
    desk_.close_lease(kLease);
    coming_ = std::make_shared<ComingVersion>(
        manifest, ComingVersion::Events{
                      .on_more = [this] { ++told_; },
                      .on_over = [this](std::vector<SegmentIndex> segments) { over_.push_back(std::move(segments)); }});
    ASSERT_TRUE(relay_.begin(manifest, 1, coming_));
    desk_.open_lease(kLease,
                     {.session = 1, .manifest = manifest, .tensors = {}, .segments = segments_, .coming = coming_});
    ASSERT_TRUE(leaf_.begin(manifest, kLease));
  }
  void let_go_of_shown() {
    for (const auto& segments : std::exchange(over_, {})) relay_.arena.let_go(segments);
  }
  /// A chunk here, then whatever can be had there.
  void run() {
    while (!relay_.is_done()) {
      relay_.step();
      for (int i = 0; i < 4 && !leaf_.is_done(); ++i) leaf_.step();
      if (!relay_.is_done()) most_behind_ = std::max(most_behind_, bytes_behind());
    }
    for (int i = 0; i < 10'000 && !leaf_.is_done(); ++i) leaf_.step();
    ASSERT_TRUE(leaf_.is_done()) << "it waits for what will not come";
  }
  std::uint64_t bytes_behind() {
    return relay_.install->tally().bytes_moved -
           std::min(relay_.install->tally().bytes_moved, leaf_.install->tally().bytes_moved);
  }
  void expect_whole(Side& side) {
    const FetchedVersion& version = side.versions.back();
    for (std::uint32_t t = 0; t < version.segments.size(); ++t) {
      const Bytes bytes = side.arena.bytes(version.segments[t]);
      EXPECT_TRUE(std::ranges::equal(bytes, model_.segment(version.manifest->owners[t]))) << "tensor " << t;
    }
  }
  void pass_on(const std::shared_ptr<const Manifest>& manifest) {
    begin(manifest);
    run();
    const Status here = relay_.finish();
    ASSERT_TRUE(here) << here.error().message();
    const Status there = leaf_.finish();
    ASSERT_TRUE(there) << there.error().message();
    expect_whole(relay_);
    expect_whole(leaf_);
    coming_.reset();
  }

  ChangingModel model_{{40'000, 1'000, 3'000, 20'000, 0}};
  ModelSource source_{model_};
  std::vector<std::vector<SegmentIndex>> over_;
  int told_ = 0;
  std::uint64_t most_behind_ = 0;
  std::shared_ptr<source::ServedSegments> segments_ = source::ServedSegments::make([](auto) {});
  FetchDesk desk_{[](protocol::LeaseId) {}, 1 << 20};
  std::shared_ptr<ComingVersion> coming_;
  Side relay_{source_};
  Side leaf_{desk_};
};

TEST_F(CutThroughTest, BytesArePassedOnWhileTheRestIsOnItsWay) {
  pass_on(model_.next(model_.all()));
  EXPECT_EQ(leaf_.tally.bytes_moved, relay_.tally.bytes_moved);
  EXPECT_LE(most_behind_, 2'000u) << "chunks are of 1000 bytes; the largest tensor has 80000";
  EXPECT_GT(told_, 0);
}

TEST_F(CutThroughTest, ADeltaIsPassedOnAsItCame) {
  pass_on(model_.next(model_.all()));
  pass_on(model_.next({0, 3}));
  EXPECT_EQ(relay_.tally.tensors_delta, 2u);
  EXPECT_EQ(leaf_.tally.tensors_delta, 2u);
  EXPECT_EQ(leaf_.tally.bytes_moved, relay_.tally.bytes_moved);
  EXPECT_EQ(desk_.deltas().made, 0u) << "it was made once, where it came from";
  EXPECT_LE(most_behind_, 2'000u);
}

TEST_F(CutThroughTest, WhoStartsFromAnotherBaseWaitsForTheTensor) {
  pass_on(model_.next(model_.all()));
  const auto skipped = model_.next({0});
  begin(skipped);
  while (!relay_.is_done()) relay_.step();
  ASSERT_TRUE(relay_.finish());
  coming_.reset();
  // The leaf has missed that one, and its base is not the relay's.
  leaf_.install->give_up(Error(Code::cancelled, "missed"));
  leaf_.install->carry_on(leaf_.now);
  while (!leaf_.is_done()) leaf_.step();
  ASSERT_FALSE(leaf_.finish());
  source_.delta_answers = 0;
  pass_on(model_.next({0, 3}));
  EXPECT_EQ(source_.delta_answers, 2u);
  EXPECT_EQ(leaf_.tally.tensors_delta, 1u) << "tensor 3; of tensor 0 the relay does not have the leaf's base here";
}

TEST_F(CutThroughTest, WhatWasNoProofIsPassedOnOnceAndThenOnlyProved) {
  int left = 1;
  source_.tamper = [&](const channel::Piece& piece, channel::Encoding, std::vector<std::byte>& answer) {
    if (piece.tensor == 0 && left-- > 0) answer[39'000] ^= std::byte{1};
  };
  const auto manifest = model_.next(model_.all());
  begin(manifest);
  run();
  ASSERT_TRUE(relay_.finish());
  EXPECT_EQ(relay_.tally.proofs_failed, 1u);
  expect_whole(relay_);
  EXPECT_TRUE(is_refused(leaf_.finish(), Code::unavailable)) << "the rest of what it was sent will not come";
  ASSERT_TRUE(leaf_.begin(manifest, kLease));
  while (!leaf_.is_done()) leaf_.step();
  ASSERT_TRUE(leaf_.finish());
  EXPECT_EQ(leaf_.tally.proofs_failed, 0u);
  expect_whole(leaf_);
}

TEST_F(CutThroughTest, ALyingOriginCostsBothAnErrorAndNobodyAWait) {
  source_.tamper = [](const channel::Piece& piece, channel::Encoding, std::vector<std::byte>& answer) {
    if (piece.tensor == 3) answer[7] ^= std::byte{1};
  };
  begin(model_.next(model_.all()));
  while (!relay_.is_done()) {
    relay_.step();
    if (!leaf_.is_done()) leaf_.step();
  }
  EXPECT_TRUE(is_refused(relay_.finish(), Code::corrupt));
  coming_->give_up(Error(Code::unavailable, "it does not come any more"));
  for (int i = 0; i < 10'000 && !leaf_.is_done(); ++i) leaf_.step();
  ASSERT_TRUE(leaf_.is_done());
  const Status there = leaf_.finish();
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().code(), Code::unavailable) << "the relay's fault is not the version's";
}

TEST_F(CutThroughTest, WhatIsGivenUpEndsWhatWasBegunAndAdmitsNothingMore) {
  const auto manifest = model_.next(model_.all());
  begin(manifest);
  for (int i = 0; i < 20; ++i) {
    relay_.step();
    leaf_.step();
  }
  relay_.install->give_up(Error(Code::unavailable, "upstream died"));
  while (!relay_.is_done()) relay_.step();
  EXPECT_FALSE(relay_.finish());
  coming_->give_up(Error(Code::unavailable, "upstream died"));
  for (int i = 0; i < 10'000 && !leaf_.is_done(); ++i) leaf_.step();
  ASSERT_TRUE(leaf_.is_done());
  EXPECT_EQ(leaf_.finish().error().code(), Code::unavailable);
  EXPECT_TRUE(is_refused(desk_.open({.request = 1,
                                     .session = 1,
                                     .lease = kLease,
                                     .version = manifest->name.number,
                                     .pieces = {{.tensor = 1, .bytes = 2'000}}}),
                         Code::unavailable));
}

TEST_F(CutThroughTest, MemoryThatWasShownIsKeptUntilItsLastReaderIsGone) {
  const auto manifest = model_.next(model_.all());
  begin(manifest);
  while (!relay_.is_done()) relay_.step();
  auto reader = desk_.open({.request = 1,
                            .session = 1,
                            .lease = kLease,
                            .version = manifest->name.number,
                            .pieces = {{.tensor = 0, .bytes = 80'000}}});
  ASSERT_TRUE(reader);
  const auto answer = (*reader)->answer(0);
  ASSERT_TRUE(answer);
  while (!leaf_.is_done()) leaf_.step();
  ASSERT_TRUE(leaf_.finish());
  // The relay lets go of the version, and fetches others into what is free.
  ASSERT_TRUE(relay_.finish());
  relay_.arena.let_go(relay_.versions.back().segments);
  relay_.versions.clear();
  coming_.reset();
  desk_.close_lease(kLease);
  let_go_of_shown();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(relay_.begin(model_.next(model_.all()), 1));
    while (!relay_.is_done()) relay_.step();
    ASSERT_TRUE(relay_.finish());
    relay_.arena.let_go(relay_.versions.back().segments);
    relay_.versions.clear();
  }
  EXPECT_TRUE(std::ranges::equal(answer->bytes, model_.segment(manifest->owners[0])));
  EXPECT_TRUE(over_.empty());
  (*reader).reset();
  EXPECT_EQ(over_.size(), 1u);
}

TEST_F(CutThroughTest, APartOfATensorIsPassedOnToo) {
  const auto manifest = model_.next(model_.all());
  begin(manifest);
  auto reader = desk_.open({.request = 1,
                            .session = 1,
                            .lease = kLease,
                            .version = manifest->name.number,
                            .pieces = {{.tensor = 0, .offset = 1'500, .bytes = 1'000}}});
  ASSERT_TRUE(reader);
  const auto before = (*reader)->can_answer(0);
  ASSERT_TRUE(before);
  EXPECT_FALSE(*before) << "nothing is known of it yet";
  relay_.step();
  const auto answer = (*reader)->answer(0);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->coming->bytes_there().value(), 0u);
  relay_.step();
  EXPECT_EQ(answer->coming->bytes_there().value(), 500u);
  relay_.step();
  EXPECT_GE(answer->coming->bytes_there().value(), 1'000u);
  const auto& whole = model_.segment(manifest->owners[0]);
  EXPECT_TRUE(std::ranges::equal(answer->bytes, Bytes(whole).subspan(1'500, 1'000)));
  run();
  ASSERT_TRUE(relay_.finish());
  ASSERT_TRUE(leaf_.finish());
}

}  // namespace
}  // namespace freshet::detail
