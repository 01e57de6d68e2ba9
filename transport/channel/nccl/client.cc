// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <utility>

#include "core/base/format.h"
#include "core/base/wake.h"
#include "transport/channel/nccl/nccl_channel.h"
#include "transport/channel/nccl/runner.h"
#include "transport/channel/zmq/carrier.h"

namespace freshet::channel {
namespace nccl {

Status check_fabric(bool trusted) {
  if (trusted) return {};
  return fail(Code::failed_precondition,
              "the nccl channel: its sockets know no keys, so it is for a fabric that both sides declared trusted "
              "(trusted_fabric)");
}

namespace {

using zmq_channel::Frame;
using zmq_channel::frame_of;
using zmq_channel::Kind;
using zmq_wire::Carried;

/// Rounds that a client left, and whose threads are not at their end. A server that makes more is hostile, or both are
/// in trouble.
constexpr std::size_t kRoundsLeftMax = 8;

class RoundRider final : public zmq_channel::Rider {
 public:
  RoundRider(std::shared_ptr<gpu::Collective> collective, Wake wake)
      : collective_(std::move(collective)), wake_(std::move(wake)) {}
  ~RoundRider() override {
    for (const Round& round : rounds_) round.runner->stop();  // Before the first is waited for.
  }

  Status take(Client& client, const Frame& frame, Bytes data, const Say& say) override;
  Result<bool> receive(Client& client, const Say& say) override;
  bool is_ready() const override;
  int descriptor() const override { return wake_.descriptor(); }

 private:
  struct Round {
    std::uint64_t number = 0;
    std::unique_ptr<Runner> runner;
    std::deque<std::vector<Carried>> transfers;  ///< That were not taken.
    std::uint64_t taken = 0;
    bool has_left = false;
  };

  Status join(const Frame& frame, Bytes data, const Say& say);
  static Status begin(Round& round, const Frame& frame, Bytes data);
  /// The next transfer that is there, if there is one.
  static bool take_transfer(Client& client, Round& round, const Say& say);
  static void leave(Client& client, Round& round, std::string_view why, const Say& say);

  const std::shared_ptr<gpu::Collective> collective_;
  const Wake wake_;
  std::list<Round> rounds_;
};

Status RoundRider::take(Client& client, const Frame& frame, Bytes data, const Say& say) {
  const auto kind = static_cast<Kind>(frame.kind());
  if (kind == Kind::round) return join(frame, data, say);
  if (kind != Kind::transfer && kind != Kind::leave) {
    return fail(Code::corrupt, format("a message of kind {}", frame.kind()));
  }
  const auto round = std::ranges::find(rounds_, frame.request(), &Round::number);
  if (round == rounds_.end() || round->has_left) return {};  // The server has not heard of it yet.
  if (kind == Kind::transfer) return begin(*round, frame, data);
  leave(client, *round, {}, say);
  return {};
}

Status RoundRider::join(const Frame& frame, Bytes data, const Say& say) {
  gpu::CollectiveSeat seat{
      .id = {}, .ranks = static_cast<int>(frame.detail()), .rank = static_cast<int>(frame.piece())};
  if (data.size() != seat.id.bytes.size() || frame.detail() > gpu::kRanksMax || seat.rank < 1 ||
      seat.rank >= seat.ranks) {
    return fail(Code::corrupt, format("round {} has rank {} of {}; at most {} may be", frame.request(), frame.piece(),
                                      frame.detail(), gpu::kRanksMax));
  }
  if (rounds_.size() > kRoundsLeftMax || std::ranges::any_of(rounds_, [](const Round& one) { return !one.has_left; })) {
    return fail(Code::corrupt, format("round {} begins, and others have not ended", frame.request()));
  }
  std::copy(data.begin(), data.end(), seat.id.bytes.begin());
  auto runner = Runner::start(collective_, seat, [this] { wake_.wake(); });
  if (!runner) {
    const std::string& why = runner.error().message();
    say(frame_of(Kind::left, frame.request()), bytes_of(why.data(), why.size()));
    return {};
  }
  rounds_.push_back({.number = frame.request(), .runner = std::move(*runner)});
  return {};
}

Status RoundRider::begin(Round& round, const Frame& frame, Bytes data) {
  const std::uint64_t bytes = frame.total();
  const std::uint64_t number = round.taken + round.transfers.size();
  if (bytes == 0 || bytes > kTransferBytesMax || frame.offset() != number ||
      round.transfers.size() >= kTransfersInFlight || data.size() != frame.detail() * sizeof(Carried)) {
    return fail(Code::corrupt, format("transfer {} of round {}", frame.offset(), round.number));
  }
  std::vector<Carried> parts(frame.detail());
  if (!data.empty()) std::memcpy(static_cast<void*>(parts.data()), data.data(), data.size());
  for (const Carried& part : parts) {
    if (part.at() <= bytes && part.bytes() <= bytes - part.at()) continue;
    return fail(Code::corrupt, format("a part past the end of transfer {} of round {}", number, round.number));
  }
  round.transfers.push_back(std::move(parts));
  round.runner->push(bytes);
  return {};
}

bool RoundRider::take_transfer(Client& client, Round& round, const Say& say) {
  if (round.taken == round.runner->stand().done) return false;
  const Bytes room = round.runner->room(round.taken);
  for (const Carried& part : round.transfers.front()) {
    client.take_chunk(part.request(),
                      {.piece = part.piece(),
                       .encoding = part.encoding(),
                       .total = part.total(),
                       .offset = part.offset(),
                       .chunk_bytes = zmq_channel::kCarriedChunkBytes},
                      room.subspan(part.at(), part.bytes()));
  }
  round.transfers.pop_front();
  say(frame_of(Kind::took, round.number, ++round.taken), {});
  return true;
}

void RoundRider::leave(Client& client, Round& round, std::string_view why, const Say& say) {
  while (take_transfer(client, round, say)) {
  }
  round.runner->stop();
  round.has_left = true;
  say(frame_of(Kind::left, round.number, round.taken), bytes_of(why.data(), why.size()));
}

Result<bool> RoundRider::receive(Client& client, const Say& say) {
  wake_.acknowledge();
  bool did = false;
  for (Round& round : rounds_) {
    if (round.has_left) continue;
    const Runner::Stand stand = round.runner->stand();
    did = take_transfer(client, round, say) || did;
    if (!stand.over) continue;
    leave(client, round, stand.status ? "it ended" : stand.status.error().message(), say);
    did = true;
  }
  std::erase_if(rounds_, [](const Round& round) { return round.has_left && round.runner->stand().over; });
  return did;
}

bool RoundRider::is_ready() const {
  return std::ranges::any_of(rounds_, [](const Round& round) {
    const Runner::Stand stand = round.runner->stand();
    return stand.over || (!round.has_left && stand.done != round.taken);
  });
}

}  // namespace
}  // namespace nccl

Result<std::unique_ptr<ChannelClient>> open_nccl_client(const std::string& address, const NcclClientOptions& options) {
  FRESHET_TRY(nccl::check_fabric(options.trusted_fabric));
  std::shared_ptr<gpu::Collective> collective = options.collective;
  if (collective == nullptr) {
    FRESHET_ASSIGN(collective, gpu::open_nccl());
  }
  FRESHET_ASSIGN(Wake wake, Wake::open());
  return zmq_channel::open_carried_client(address, options.messages, ChannelKind::nccl,
                                          std::make_unique<nccl::RoundRider>(std::move(collective), std::move(wake)));
}

}  // namespace freshet::channel
