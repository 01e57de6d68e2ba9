// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/capture.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/transport/publish/byte_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "core/arena/slab.h"

namespace freshet {
namespace {

using namespace std::chrono_literals;

/// Receives sealed captures and reads their bytes like a neighbour on the host: through descriptors.
class Receiver {
 public:
  Capture::Hooks hooks() {
    return {.make_room =
                [this](std::uint64_t bytes) {
                  room_asked.push_back(bytes);
                  if (on_room) on_room();
                },
            .on_sealed =
                [this](SealedCapture sealed) {
                  if (refuse.exchange(false)) return false;
                  versions.push_back(std::move(sealed));
                  return true;
                }};
  }
  static std::vector<std::byte> read(const Capture& capture, const SegmentPlace& place) {
    const auto slabs = capture.slabs();
    auto slab = Slab::adopt(::dup(slabs.at(place.slab).descriptor), slabs.at(place.slab).bytes);
    EXPECT_TRUE(slab) << slab.error().message();
    const Bytes bytes = std::as_const(*slab).memory().subspan(place.offset, place.bytes);
    return {bytes.begin(), bytes.end()};
  }

  std::vector<SealedCapture> versions;  ///< Read after wait_idle() only.
  std::vector<std::uint64_t> room_asked;
  std::function<void()> on_room;
  std::atomic<bool> refuse = false;
};

struct Fixture {
  explicit Fixture(std::vector<std::uint64_t> sizes, Capture::Options options = {}) : model(std::move(sizes)) {
    options.name = "test";
    options.lock_memory = false;
    capture = *Capture::open(options, receiver.hooks());
    EXPECT_TRUE(capture->prepare(model.architecture()));
  }
  Result<Capture::Receipt> take(Capture::Kind kind, std::vector<std::uint32_t> indices = {}) {
    const auto views = model.views();
    auto receipt = capture->capture({.ticket = ++ticket, .tensors = views, .kind = kind, .indices = indices});
    EXPECT_TRUE(capture->wait_idle(60s));
    return receipt;
  }
  void expect_newest_is_the_model() {
    const SealedCapture& newest = receiver.versions.back();
    ASSERT_EQ(newest.segments.size(), model.size());
    for (std::size_t i = 0; i < model.size(); ++i) {
      EXPECT_EQ(Receiver::read(*capture, newest.places[i]), model[i]) << "tensor " << i;
      EXPECT_EQ(newest.digests[i], digest_of(model[i])) << "tensor " << i;
    }
  }

  ByteModel model;
  Receiver receiver;
  std::uint64_t ticket = 0;
  std::unique_ptr<Capture> capture;
};

using Indices = std::vector<std::uint32_t>;
constexpr auto kWholeKind = Capture::Kind::all;
constexpr auto kFind = Capture::Kind::find;
constexpr auto kOnly = Capture::Kind::only;

TEST(Capture, TakesEverythingFirstAndWhatIsToldAfterwards) {
  Fixture f({100, 5000, 0, 70000});
  ASSERT_TRUE(f.take(kOnly, {1}));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 1, 2, 3}));
  f.model.fill(1, 1);
  f.model.fill(3, 2);
  const auto receipt = f.take(kOnly, {3, 1, 3});
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->tensors, 2u);
  EXPECT_EQ(receipt->bytes, 75000u);
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{1, 3}));
  EXPECT_EQ(f.receiver.versions.back().changed_bytes, 75000u);
  EXPECT_EQ(f.receiver.versions[0].segments[0], f.receiver.versions[1].segments[0]);
  f.expect_newest_is_the_model();
}

TEST(Capture, FindsWhatChangedAndGivesTheRestBack) {
  Fixture f({100, 5000, 70000});
  ASSERT_TRUE(f.take(kFind));
  const std::uint64_t free_bytes = f.capture->stat().arena_free_bytes;
  f.model[1][4999] ^= std::byte{1};
  ASSERT_TRUE(f.take(kFind));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{1}));
  EXPECT_EQ(free_bytes - f.capture->stat().arena_free_bytes, 8192u);
  f.expect_newest_is_the_model();
  ASSERT_TRUE(f.take(kFind));
  EXPECT_EQ(f.receiver.versions.back().changed, Indices{});
  ASSERT_TRUE(f.take(kWholeKind));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 1, 2}));
}

TEST(Capture, RefusesTensorsThatAreNotTheArchitectures) {
  Fixture f({100, 200});
  auto views = f.model.views();
  EXPECT_EQ(f.capture->capture({.ticket = 1, .tensors = std::span(views).first(1)}).error().code(),
            Code::failed_precondition);
  const Indices outside = {2};
  EXPECT_EQ(f.capture->capture({.ticket = 1, .tensors = views, .kind = kOnly, .indices = outside}).error().code(),
            Code::invalid_argument);
  views[1].data = views[1].data.first(199);
  EXPECT_EQ(f.capture->capture({.ticket = 1, .tensors = views}).error().code(), Code::invalid_argument);
  EXPECT_TRUE(f.receiver.versions.empty());
}

TEST(Capture, CarriesWhatItHadNoRoomFor) {
  Fixture f({4096, 8192}, {.arena_limit_bytes = 2 * 12288, .arena_copies = 2.0});
  ASSERT_TRUE(f.take(kWholeKind));
  f.model.fill(0, 1);
  f.model.fill(1, 2);
  ASSERT_TRUE(f.take(kWholeKind));
  f.model.fill(1, 3);
  EXPECT_TRUE(is_refused(f.take(kOnly, {1}), Code::out_of_space));
  EXPECT_EQ(f.receiver.room_asked, (std::vector<std::uint64_t>{8192}));
  EXPECT_EQ(f.receiver.versions.size(), 2u);
  EXPECT_EQ(f.capture->stat().arena_free_bytes, 0u);
  // The first version's readers leave when room is asked for.
  f.receiver.on_room = [&] { f.capture->free(f.receiver.versions[0].segments); };
  f.model.fill(0, 4);
  ASSERT_TRUE(f.take(kOnly, {0}));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 1}));
  f.expect_newest_is_the_model();
}

TEST(Capture, AFailedFindIsFoundByTheNext) {
  Fixture f({4096, 8192, 64}, {.arena_limit_bytes = 2 * 12288 + 4096, .arena_copies = 1.0});
  ASSERT_TRUE(f.take(kFind));
  const SealedCapture first = f.receiver.versions[0];
  f.model.fill(0, 1);
  ASSERT_TRUE(f.take(kOnly, {0}));
  f.model.fill(0, 2);
  f.model.fill(2, 2);
  ASSERT_FALSE(f.take(kFind));
  f.capture->free(std::span(first.segments).first(1));
  f.model[2][0] ^= std::byte{1};
  ASSERT_TRUE(f.take(kOnly, {2}));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 2})) << "tensor 1 was carried too, and is as it was";
  f.expect_newest_is_the_model();
}

TEST(Capture, GrowsToItsLimit) {
  Fixture f({50000, 3000}, {.arena_limit_bytes = 1 << 20, .arena_copies = 1.0});
  std::size_t taken = 0;
  while (f.take(kWholeKind)) ++taken;
  EXPECT_GE(taken, (1u << 20) / 60000);
  EXPECT_LE(f.capture->stat().arena_bytes, 1u << 20);
  std::set<SegmentIndex> distinct;
  for (const SealedCapture& version : f.receiver.versions) {
    distinct.insert(version.segments.begin(), version.segments.end());
  }
  EXPECT_EQ(distinct.size(), 2 * taken);
}

TEST(Capture, AnEmptyTensorWithoutRoomIsRefused) {
  Fixture f({4096, 0}, {.arena_limit_bytes = 8192, .arena_copies = 1.0});
  ASSERT_TRUE(f.take(kWholeKind));
  // Each capture keeps a cache line; the page beside the first tensor has 64 of them.
  std::size_t taken = 1;
  while (taken < 100 && f.take(kOnly, {1})) ++taken;
  EXPECT_EQ(taken, 64U);
  EXPECT_TRUE(is_refused(f.take(kOnly, {1}), Code::out_of_space));
}

TEST(Capture, NeedsMemoryForOneCopy) {
  ByteModel model({1 << 20});
  Receiver receiver;
  auto capture = *Capture::open({.name = "test", .arena_limit_bytes = 1 << 19, .lock_memory = false}, receiver.hooks());
  EXPECT_EQ(capture->prepare(model.architecture()).error().code(), Code::out_of_space);
  EXPECT_FALSE(Capture::open({.arena_copies = 0.5}, receiver.hooks()));
}

TEST(Capture, ARefusedVersionComesWithTheNext) {
  Fixture f({100, 200, 300});
  ASSERT_TRUE(f.take(kWholeKind));
  const std::uint64_t free_bytes = f.capture->stat().arena_free_bytes;
  f.model.fill(0, 1);
  f.model.fill(1, 2);
  f.receiver.refuse = true;
  ASSERT_TRUE(f.take(kOnly, {0, 1}));
  EXPECT_EQ(f.receiver.versions.size(), 1u);
  f.model.fill(1, 3);
  ASSERT_TRUE(f.take(kOnly, {1}));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 1}));
  f.expect_newest_is_the_model();
  f.capture->free(std::vector<SegmentIndex>{f.receiver.versions[0].segments[0], f.receiver.versions[0].segments[1]});
  EXPECT_EQ(f.capture->stat().arena_free_bytes, free_bytes) << "the refused copy of tensor 1 is free again";
}

TEST(Capture, ComparesTheFirstWithTheResumedVersion) {
  Fixture f({100, 200, 300});
  std::vector<Digest> resumed;
  for (std::uint32_t i = 0; i < 3; ++i) {
    f.model.fill(i, i);
    resumed.push_back(digest_of(f.model[i]));
  }
  f.model.fill(2, 9);
  f.capture->resume_from(resumed);
  ASSERT_TRUE(f.take(kFind));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{2}));
  f.expect_newest_is_the_model();
}

TEST(Capture, TakesAnotherArchitectureWhileTheFirstIsRead) {
  Fixture f({5000, 70000});
  f.model.fill(1, 4);
  ASSERT_TRUE(f.take(kWholeKind));
  ByteModel larger({90000, 100, 5000});
  larger.fill(0, 1);
  ASSERT_TRUE(f.capture->prepare(larger.architecture()));
  const auto views = larger.views();
  ASSERT_TRUE(f.capture->capture({.ticket = 9, .tensors = views, .kind = kOnly}));
  ASSERT_TRUE(f.capture->wait_idle(60s));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 1, 2}));
  EXPECT_EQ(Receiver::read(*f.capture, f.receiver.versions.back().places[0]), larger[0]);
  EXPECT_EQ(Receiver::read(*f.capture, f.receiver.versions.front().places[1]), f.model[1]);
}

TEST(Capture, HelpersCopyTheSameBytes) {
  for (const std::size_t helpers : {0, 1, 3}) {
    Fixture f({5 << 20, 1 << 20, 100, 3 << 20, 77777}, {.helpers = helpers});
    for (std::uint32_t i = 0; i < f.model.size(); ++i) f.model.fill(i, 100 + i);
    for (std::uint32_t round = 0; round < 3; ++round) {
      f.model.fill(round, 7);
      ASSERT_TRUE(f.take(kFind));
      f.expect_newest_is_the_model();
      if (round > 0) {
        EXPECT_EQ(f.receiver.versions.back().changed, (Indices{round}));
      }
    }
  }
}

TEST(Capture, TakesLayersAsTheyWereWhenEachWasDone) {
  Fixture f({100, 5000, 3000, 70000});
  const auto views = f.model.views();
  EXPECT_EQ(f.capture->add(views, Indices{1}).error().code(), Code::failed_precondition) << "nothing was begun";
  ASSERT_TRUE(f.take(kFind));
  ASSERT_TRUE(f.capture->begin());
  EXPECT_EQ(f.capture->begin().error().code(), Code::failed_precondition);
  f.model.fill(3, 1);
  f.model.fill(1, 2);
  ASSERT_EQ(f.capture->add(views, Indices{3, 1, 3})->tensors, 2u);
  ASSERT_TRUE(f.capture->add(views, Indices{2}));
  const std::vector<std::byte> first = f.model[1];
  const std::vector<std::byte> third = f.model[3];
  EXPECT_EQ(f.capture->add(views, Indices{4}).error().code(), Code::invalid_argument);
  f.model.fill(1, 3);
  f.model.fill(3, 4);
  f.model.fill(0, 5);
  const auto receipt = f.take(kFind);
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->tensors, 4u);
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{0, 1, 3})) << "tensor 2 is as it was";
  f.model[1] = first;
  f.model[3] = third;
  f.expect_newest_is_the_model();
}

TEST(Capture, WhatWasGivenUpComesWithTheNext) {
  Fixture f({100, 5000, 3000});
  ASSERT_TRUE(f.take(kFind));
  ASSERT_TRUE(f.capture->begin());
  f.model.fill(1, 1);
  ASSERT_TRUE(f.capture->add(f.model.views(), Indices{1}));
  f.capture->abandon();
  f.capture->abandon();
  f.model.fill(2, 2);
  ASSERT_TRUE(f.take(kOnly, {2}));
  EXPECT_EQ(f.receiver.versions.back().changed, (Indices{1, 2}));
  f.expect_newest_is_the_model();
}

TEST(Capture, SealsInOrderWhileTheReceiverIsSlow) {
  ByteModel model({4096});
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  std::vector<std::uint64_t> tickets;
  std::atomic<int> captured = 0;
  auto capture = *Capture::open({.name = "test", .arena_copies = 8, .lock_memory = false},
                                {.on_sealed = [&](const SealedCapture& sealed) {
                                  gate.wait();
                                  tickets.push_back(sealed.ticket);
                                  return true;
                                }});
  ASSERT_TRUE(capture->prepare(model.architecture()));
  std::thread loop([&] {
    const auto views = model.views();
    for (std::uint64_t ticket = 1; ticket <= 5; ++ticket) {
      ASSERT_TRUE(capture->capture({.ticket = ticket, .tensors = views, .kind = kWholeKind}));
      ++captured;
    }
  });
  EXPECT_TRUE(came_true([&] { return captured >= 2; }));
  EXPECT_EQ(capture->wait_idle(1ms).error().code(), Code::timed_out);
  EXPECT_EQ(captured, 2) << "the third waits for the first to be sealed";
  go.set_value();
  loop.join();
  capture.reset();
  EXPECT_EQ(tickets, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
}

/// Random publishes against a model of what every version must hold; versions live as long as random readers keep them.
class RandomRun {
 public:
  explicit RandomRun(std::uint64_t seed)
      : random_(seed),
        sizes_({10, 64, 4096, 5000, 5000, 20000, 0, 300}),
        fixture_(sizes_, {.arena_limit_bytes = 200000, .arena_copies = 2.0}) {}

  void step() {
    Indices touched;
    for (std::uint32_t i = 0; i < sizes_.size(); ++i) {
      if (random_() % 3 != 0 || sizes_[i] == 0) continue;
      fixture_.model.fill(i, random_());
      touched.push_back(i);
    }
    const auto kind = static_cast<Capture::Kind>(random_() % 3);
    fixture_.receiver.refuse = random_() % 10 == 0;
    const std::size_t before = versions().size();
    const auto captured =
        random_() % 2 == 0 ? capture_some(touched) : std::map<std::uint32_t, std::vector<std::byte>>();
    // What was captured is the loop's again, which writes it before the version is complete.
    for (const auto& [tensor, bytes] : captured) fixture_.model.fill(tensor, random_());
    if (!fixture_.take(kind, touched)) ++refused_;
    for (const auto& [tensor, bytes] : captured) fixture_.model[tensor] = bytes;
    fixture_.receiver.refuse = false;
    if (versions().size() > before) note(before);
    for (const std::size_t version : alive_versions()) {
      if (version + 1 != versions().size() && random_() % 5 == 0) drop(version);
    }
  }

  void check() const {
    for (const auto& [version, bytes] : alive_) {
      const SealedCapture& sealed = fixture_.receiver.versions[version];
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        const Bytes now = std::as_const(*fixture_.capture).bytes(sealed.places[i]);
        ASSERT_EQ(std::vector<std::byte>(now.begin(), now.end()), bytes[i])
            << "version " << version << ", tensor " << i;
      }
    }
  }

  int refused() const { return refused_; }

 private:
  const std::vector<SealedCapture>& versions() const { return fixture_.receiver.versions; }
  /// Opens a capture and captures some of the tensors, some of them twice. Returns them as they were captured last;
  /// none when the capture was given up, or found no room.
  std::map<std::uint32_t, std::vector<std::byte>> capture_some(const Indices& touched) {
    if (touched.empty() || versions().empty()) return {};
    EXPECT_TRUE(fixture_.capture->begin());
    std::map<std::uint32_t, std::vector<std::byte>> captured;
    const auto views = fixture_.model.views();
    for (std::size_t i = 0; i < 2 * touched.size(); ++i) {
      const std::uint32_t tensor = touched[random_() % touched.size()];
      if (captured.contains(tensor)) fixture_.model.fill(tensor, random_());
      if (!fixture_.capture->add(views, {{tensor}})) {
        ++refused_;
        EXPECT_FALSE(fixture_.capture->is_open());
        return {};
      }
      captured[tensor] = fixture_.model[tensor];
    }
    if (random_() % 5 != 0) return captured;
    fixture_.capture->abandon();
    return {};
  }
  void note(std::size_t version) {
    for (const SegmentIndex segment : versions()[version].segments) ++named_[segment];
    for (std::size_t i = 0; i < sizes_.size(); ++i) alive_[version].push_back(fixture_.model[i]);
  }
  std::vector<std::size_t> alive_versions() const {
    std::vector<std::size_t> positions;
    for (const auto& [version, bytes] : alive_) positions.push_back(version);
    return positions;
  }
  void drop(std::size_t version) {
    std::vector<SegmentIndex> unnamed;
    for (const SegmentIndex segment : versions()[version].segments) {
      if (--named_[segment] == 0) unnamed.push_back(segment);
    }
    fixture_.capture->free(unnamed);
    alive_.erase(version);
  }

  std::mt19937_64 random_;
  std::vector<std::uint64_t> sizes_;
  Fixture fixture_;
  std::map<std::size_t, std::vector<std::vector<std::byte>>> alive_;  ///< By position among the versions received.
  std::map<SegmentIndex, int> named_;
  int refused_ = 0;
};

TEST(Capture, RandomVersionsKeepTheirBytes) {
  for (const std::uint64_t seed : {std::uint64_t{5}, std::uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomRun run(seed);
    for (int step = 0; step < 400; ++step) {
      run.step();
      ASSERT_NO_FATAL_FAILURE(run.check()) << "step " << step;
    }
    EXPECT_GT(run.refused(), 0);
  }
}

}  // namespace
}  // namespace freshet
