// SPDX-License-Identifier: Apache-2.0
/// The data channel over NCCL, beyond what every channel must do (tests/conformance): what goes by rounds, rounds that
/// break, and peers that lie. The collective is the host's; it has faults that a test chooses.

#include "transport/channel/nccl/nccl_channel.h"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <memory>

#include "core/gpu/host_collective.h"
#include "tests/conformance/channel_conformance.h"
#include "transport/channel/zmq/carrier.h"

namespace freshet::channel {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using zmq_channel::Frame;
using zmq_channel::frame_of;
using zmq_channel::Kind;

constexpr std::uint64_t kNcclTensorBytes = (40 << 20) + 3;

/// A source whose tensors all fetches read at the same place, as those of an arena. Nothing is answered before so many
/// have asked.
class ArenaSource final : public FetchSource {
 public:
  explicit ArenaSource(std::size_t fetches) : fetches_(fetches), tensor_(test::seeded_bytes(kNcclTensorBytes, 1)) {}

  const std::vector<std::byte>& tensor() const { return tensor_; }
  Result<std::unique_ptr<OpenFetch>> open(const FetchRequest& request) override {
    ++opened_;
    return std::unique_ptr<OpenFetch>(std::make_unique<Fetch>(*this, request.pieces));
  }

 private:
  class Fetch final : public OpenFetch {
   public:
    Fetch(ArenaSource& source, std::vector<Piece> pieces) : source_(source), pieces_(std::move(pieces)) {}
    Result<bool> can_answer(std::size_t /*piece*/) override { return source_.opened_ >= source_.fetches_; }
    Result<Answer> answer(std::size_t piece) override {
      return Answer{.bytes = Bytes(source_.tensor_).subspan(pieces_[piece].offset, pieces_[piece].bytes)};
    }
    void release(std::size_t /*piece*/) override {}

   private:
    ArenaSource& source_;
    const std::vector<Piece> pieces_;
  };

  const std::size_t fetches_;
  std::atomic<std::size_t> opened_{0};
  const std::vector<std::byte> tensor_;
};

/// The host collective, with faults.
class FaultyCollective final : public gpu::Collective {
 public:
  enum class Fault : std::uint8_t { none, refuses, never_joins, stands_still, aborts_late };

  explicit FaultyCollective(Fault fault = Fault::none) : fault_(fault) {}

  std::atomic<std::uint64_t> bytes_out{0};
  std::atomic<int> ranks{0};  ///< Of the last communicator.
  std::atomic<int> joins{0};
  std::latch may_abort{1};

  Result<gpu::CollectiveId> make_id() override { return host_.make_id(); }
  Result<std::unique_ptr<gpu::Communicator>> join(const gpu::CollectiveSeat& seat) override {
    ++joins;
    ranks = seat.ranks;
    if (fault_ == Fault::refuses) return fail(Code::unavailable, "Duplicate GPU detected");
    FRESHET_ASSIGN(auto inner, host_.join(seat));
    return std::unique_ptr<gpu::Communicator>(std::make_unique<Faulty>(*this, std::move(inner)));
  }

 private:
  class Faulty final : public gpu::Communicator {
   public:
    Faulty(FaultyCollective& owner, std::unique_ptr<gpu::Communicator> inner)
        : owner_(owner), inner_(std::move(inner)) {}
    ~Faulty() override {
      if (owner_.fault_ == Fault::aborts_late) owner_.may_abort.wait();
    }
    Status broadcast(MutableBytes bytes) override {
      owner_.bytes_out += bytes.size();
      begun_ = true;
      return inner_->broadcast(bytes);
    }
    Status send(Bytes bytes, int rank) override {
      owner_.bytes_out += bytes.size();
      begun_ = true;
      return inner_->send(bytes, rank);
    }
    Status receive(MutableBytes bytes, int rank) override {
      begun_ = true;
      return inner_->receive(bytes, rank);
    }
    Result<bool> poll() override {
      if (owner_.fault_ == Fault::never_joins) return false;
      if (owner_.fault_ == Fault::stands_still && begun_) return false;
      return inner_->poll();
    }
    void abort() override { inner_->abort(); }

   private:
    FaultyCollective& owner_;
    const std::unique_ptr<gpu::Communicator> inner_;
    bool begun_ = false;
  };

  const Fault fault_;
  gpu::HostCollective host_;
};
using Fault = FaultyCollective::Fault;

class NcclChannel : public testing::Test {
 protected:
  /// Deadlines of a test: what is late is so at once, what works has all the time it wants.
  static constexpr nccl::RoundLimits kPatient{
      .join = std::chrono::minutes(1), .transfer = std::chrono::minutes(1), .lately = std::chrono::minutes(1)};
  static constexpr nccl::RoundLimits kHasty{.join = milliseconds(50), .transfer = milliseconds(50)};

  void serve(std::size_t fetches, const nccl::RoundLimits& limits, Fault fault = Fault::none) {
    source_ = std::make_unique<ArenaSource>(fetches);
    collective_ = std::make_shared<FaultyCollective>(fault);
    auto opened = open_nccl_server(*source_, {.trusted_fabric = true, .rounds = limits, .collective = collective_});
    ASSERT_TRUE(opened) << opened.error().message();
    server_ = std::move(*opened);
  }
  std::unique_ptr<ChannelClient> connect(std::shared_ptr<gpu::Collective> collective) {
    return *open_nccl_client(server_->address(), {.trusted_fabric = true, .collective = std::move(collective)});
  }
  static FetchRequest request_of(std::uint64_t number, std::uint64_t offset = 0) {
    return {.request = number, .pieces = {{.tensor = 0, .offset = offset, .bytes = kNcclTensorBytes - offset}}};
  }
  void expect_arrived(const CollectingSink& sink, std::uint64_t number, std::uint64_t offset = 0) const {
    ASSERT_NE(sink.ended(number), nullptr);
    ASSERT_TRUE(*sink.ended(number)) << sink.ended(number)->error().message();
    EXPECT_EQ(sink.faults(), "");
    const std::vector<std::byte> expected(source_->tensor().begin() + static_cast<std::ptrdiff_t>(offset),
                                          source_->tensor().end());
    EXPECT_TRUE(test::same_bytes(sink.find(number, 0)->content(), expected));
  }
  /// All fetch the tensor at once, each with its collective.
  void expect_all_fetch(const std::vector<std::shared_ptr<gpu::Collective>>& collectives) {
    std::vector<std::unique_ptr<ChannelClient>> clients;
    std::vector<ChannelClient*> pointers;
    std::vector<CollectingSink> sinks(collectives.size());
    for (std::size_t i = 0; i < collectives.size(); ++i) {
      clients.push_back(connect(collectives[i]));
      pointers.push_back(clients.back().get());
      ASSERT_TRUE(clients.back()->fetch(request_of(1), sinks[i]));
    }
    ASSERT_TRUE(drive(pointers, [&] {
      return std::ranges::all_of(sinks, [](const CollectingSink& sink) { return sink.ended_count() == 1; });
    }));
    for (const CollectingSink& sink : sinks) expect_arrived(sink, 1);
  }
  static std::shared_ptr<gpu::Collective> sound() { return std::make_shared<gpu::HostCollective>(); }
  static std::shared_ptr<gpu::Collective> with(Fault fault) { return std::make_shared<FaultyCollective>(fault); }

  std::unique_ptr<ArenaSource> source_;
  std::shared_ptr<FaultyCollective> collective_;
  std::unique_ptr<ChannelServer> server_;
};

TEST_F(NcclChannel, MembersOfARoundShareOneBroadcast) {
  serve(3, kPatient);
  expect_all_fetch({sound(), sound(), sound()});
  EXPECT_EQ(collective_->joins, 1);
  EXPECT_EQ(collective_->ranks, 4);
  EXPECT_EQ(collective_->bytes_out, kNcclTensorBytes) << "each byte once";
}

TEST_F(NcclChannel, ARoundServesOneFetchAfterAnother) {
  serve(1, kPatient);
  const auto client = connect(sound());
  std::uint64_t sent = 0;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    CollectingSink sink;
    sent += kNcclTensorBytes - number;
    ASSERT_TRUE(client->fetch(request_of(number, number), sink));
    ASSERT_TRUE(drive({client.get()}, [&] { return sink.ended(number) != nullptr; }));
    expect_arrived(sink, number, number);
  }
  EXPECT_EQ(collective_->bytes_out, sent) << "some went by messages";
  EXPECT_EQ(collective_->joins, 1);
  EXPECT_EQ(collective_->ranks, 2);
}

TEST_F(NcclChannel, WhatARoundCannotBringComesByMessages) {
  for (const Fault fault : {Fault::refuses, Fault::never_joins, Fault::stands_still}) {
    SCOPED_TRACE(static_cast<int>(fault));
    serve(3, fault == Fault::refuses ? kPatient : kHasty);
    expect_all_fetch({sound(), with(fault), sound()});
    server_.reset();
  }
}

TEST_F(NcclChannel, AServerThatCanMakeNoRoundSendsMessages) {
  serve(2, kPatient, Fault::refuses);
  expect_all_fetch({sound(), sound()});
  EXPECT_EQ(collective_->bytes_out, 0u);
}

TEST_F(NcclChannel, NobodyWaitsForAnAbort) {
  serve(1, kPatient, Fault::aborts_late);
  const std::unique_ptr<std::latch, void (*)(std::latch*)> at_end(&collective_->may_abort,
                                                                  [](std::latch* latch) { latch->count_down(); });
  CollectingSink sink;
  {
    const auto client = connect(sound());
    ASSERT_TRUE(client->fetch(request_of(1), sink));
    ASSERT_TRUE(drive({client.get()}, [&] { return sink.begun(1); }));
  }
  const auto other = connect(sound());
  CollectingSink other_sink;
  ASSERT_TRUE(other->fetch(request_of(1), other_sink));
  ASSERT_TRUE(drive({other.get()}, [&] { return other_sink.ended(1) != nullptr; }));
  expect_arrived(other_sink, 1);
  EXPECT_EQ(collective_->joins, 2);
}

TEST_F(NcclChannel, AFabricThatIsNotTrustedIsRefused) {
  ArenaSource source(1);
  const auto server = open_nccl_server(source, {.collective = sound()});
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), Code::failed_precondition);
  EXPECT_THAT(server.error().message(), HasSubstr("trusted_fabric"));
  const auto client = open_nccl_client("tcp://127.0.0.1:9", {.collective = sound()});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Code::failed_precondition);
}

TEST_F(NcclChannel, WithoutALibraryItIsUnavailable) {
  if (gpu::open_nccl()) GTEST_SKIP() << "there is an NCCL here";
  ArenaSource source(1);
  EXPECT_EQ(open_nccl_server(source, {.trusted_fabric = true}).error().code(), Code::unavailable);
  EXPECT_EQ(open_nccl_client("tcp://127.0.0.1:9", {.trusted_fabric = true}).error().code(), Code::unavailable);
}

/// Says to each client what the test likes, in the place of an answer.
class LyingCarrier final : public zmq_channel::Carrier {
 public:
  using Lie = std::function<void(zmq_channel::Line&)>;
  explicit LyingCarrier(Lie lie) : lie_(std::move(lie)) {}
  void add(zmq_channel::Line& line) override { lie_(line); }
  void remove(zmq_channel::Line& /*line*/) override {}
  bool takes(const zmq_channel::Line& /*line*/, const RequestQueue::Part& /*part*/, Time /*now*/) override {
    return true;
  }
  Status take(zmq_channel::Line& /*line*/, const Frame& /*frame*/, Bytes /*data*/, Time /*now*/) override { return {}; }
  bool carry(const std::function<void(zmq_channel::Line&)>& /*next*/, Time /*now*/) override { return false; }
  Time due() const override { return Time::max(); }

 private:
  const Lie lie_;
};

TEST_F(NcclChannel, AServerThatLiesIsLeft) {
  const gpu::CollectiveId id{};
  const auto part = [](std::uint32_t at, std::uint32_t bytes) {
    return std::vector{zmq_wire::Carried(1, kNcclTensorBytes, 0, 0, 0, at, bytes)};
  };
  const auto told_of = [&](zmq_channel::Line& line, std::uint64_t total, std::uint64_t number, std::uint32_t count,
                           const std::vector<zmq_wire::Carried>& parts) {
    line.post(frame_of(Kind::round, 1, 0, 0, 1, 2), id.bytes);
    line.post(frame_of(Kind::transfer, 1, total, number, 0, count), std::as_bytes(std::span(parts)));
  };
  const std::vector<LyingCarrier::Lie> lies{
      [&](auto& line) { line.post(frame_of(Kind::round, 1, 0, 0, 1, gpu::kRanksMax + 1), id.bytes); },
      [&](auto& line) { line.post(frame_of(Kind::round, 1, 0, 0, 2, 2), id.bytes); },
      [&](auto& line) { line.post(frame_of(Kind::round, 1, 0, 0, 0, 2), id.bytes); },
      [&](auto& line) { line.post(frame_of(Kind::round, 1, 0, 0, 1, 2), Bytes(id.bytes).first(127)); },
      [&](auto& line) {
        for (const std::uint64_t round : {1, 2}) line.post(frame_of(Kind::round, round, 0, 0, 1, 2), id.bytes);
      },
      [&](auto& line) { told_of(line, 0, 0, 1, part(0, 0)); },
      [&](auto& line) { told_of(line, (16 << 20) + 1, 0, 1, part(0, 1)); },
      [&](auto& line) { told_of(line, 100, 1, 1, part(0, 100)); },
      [&](auto& line) {
        line.post(frame_of(Kind::round, 1, 0, 0, 1, 2), id.bytes);
        for (const std::uint64_t number : {0, 1, 2}) line.post(frame_of(Kind::transfer, 1, 100, number));
      },
      [&](auto& line) { told_of(line, 100, 0, 2, part(0, 100)); },
      [&](auto& line) { told_of(line, 100, 0, 1, part(1, 100)); },
      [&](auto& line) { told_of(line, 100, 0, 1, part(101, 0)); },
      [&](auto& line) { line.post(frame_of(static_cast<Kind>(99), 1)); },
  };
  for (std::size_t lie = 0; lie < lies.size(); ++lie) {
    SCOPED_TRACE(lie);
    ArenaSource source(1);
    const auto server =
        zmq_channel::open_carried_server(source, {.chunk_bytes = zmq_channel::kCarriedChunkBytes}, ChannelKind::nccl,
                                         [&](Service&) { return std::make_unique<LyingCarrier>(lies[lie]); });
    ASSERT_TRUE(server);
    const auto client = *open_nccl_client((*server)->address(), {.trusted_fabric = true, .collective = sound()});
    CollectingSink sink;
    ASSERT_TRUE(client->fetch(request_of(1), sink));
    EXPECT_FALSE(drive({client.get()}, [] { return false; }));
    ASSERT_TRUE(sink.ended(1) != nullptr && !*sink.ended(1));
    EXPECT_EQ(sink.ended(1)->error().code(), Code::corrupt) << sink.ended(1)->error().message();
  }
}

/// Answers the messages of this kind with a lie.
class LyingRider final : public zmq_channel::Rider {
 public:
  LyingRider(Kind asked, Frame lie) : asked_(asked), lie_(lie), wake_(*Wake::open()) {}
  Status take(Client& /*client*/, const Frame& frame, Bytes /*data*/, const Say& say) override {
    if (static_cast<Kind>(frame.kind()) == asked_) say(lie_, {});
    return {};
  }
  Result<bool> receive(Client& /*client*/, const Say& /*say*/) override { return false; }
  bool is_ready() const override { return false; }
  int descriptor() const override { return wake_.descriptor(); }

 private:
  const Kind asked_;
  const Frame lie_;
  const Wake wake_;
};

TEST_F(NcclChannel, AClientThatLiesIsPutOut) {
  for (const Frame& lie : {frame_of(Kind::took, 1, 1), frame_of(Kind::took, 2, 0), frame_of(Kind::left, 1, 1),
                           frame_of(Kind::left, 2, 0), frame_of(Kind::leave, 1)}) {
    SCOPED_TRACE(lie.kind());
    serve(1, kPatient);
    const auto client = *zmq_channel::open_carried_client(server_->address(), {}, ChannelKind::nccl,
                                                          std::make_unique<LyingRider>(Kind::round, lie));
    CollectingSink sink;
    ASSERT_TRUE(client->fetch(request_of(1), sink));
    EXPECT_FALSE(drive({client.get()}, [] { return false; })) << "the connection should be dead";
    ASSERT_NE(sink.ended(1), nullptr);
    EXPECT_FALSE(*sink.ended(1));
    EXPECT_EQ(server_->stat().refused, 1u);
    server_.reset();
  }
}

/// The server knows a round until its members have left it.
TEST_F(NcclChannel, AClientThatLiesAboutARoundThatHasEndedIsPutOut) {
  serve(1, kHasty);
  const auto client = *zmq_channel::open_carried_client(
      server_->address(), {}, ChannelKind::nccl, std::make_unique<LyingRider>(Kind::leave, frame_of(Kind::took, 1, 1)));
  CollectingSink sink;
  ASSERT_TRUE(client->fetch(request_of(1), sink));
  EXPECT_FALSE(drive({client.get()}, [] { return false; })) << "the connection should be dead";
  EXPECT_EQ(server_->stat().refused, 1u);
}

}  // namespace
}  // namespace freshet::channel
