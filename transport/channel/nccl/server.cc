// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "transport/channel/nccl/nccl_channel.h"
#include "transport/channel/nccl/runner.h"
#include "transport/channel/zmq/carrier.h"

namespace freshet::channel {
namespace nccl {
namespace {

using zmq_channel::Frame;
using zmq_channel::frame_of;
using zmq_channel::Kind;
using zmq_channel::Line;
using zmq_wire::Carried;

/// Smaller answers are not worth a round.
constexpr std::uint64_t kRoundAnswerBytesMin = std::uint64_t{1} << 20;
/// In one transfer; what is told of them fits a message.
constexpr std::size_t kCarriedMax = 1024;

/// What waits is packed into a transfer's room, and let go of then: a round that breaks reads no segment. Members get
/// what they had not taken from that room, by messages.
class RoundCarrier final : public zmq_channel::Carrier {
 public:
  RoundCarrier(Service& service, const RoundLimits& limits, std::shared_ptr<gpu::Collective> collective)
      : service_(service), collective_(std::move(collective)), rounds_(limits) {}
  ~RoundCarrier() override {
    for (auto& [number, round] : here_) round.runner->stop();  // Before the first is waited for.
  }

  void add(Line& line) override { lines_[line.number] = &line; }
  void remove(Line& line) override;
  bool takes(const Line& line, const RequestQueue::Part& part, Time now) override;
  Status take(Line& line, const Frame& frame, Bytes data, Time now) override;
  bool carry(const std::function<void(Line&)>& next, Time now) override;
  Time due() const override { return rounds_.due(); }

 private:
  struct Transfer {
    std::uint64_t bytes = 0;
    std::map<Rounds::Member, std::vector<Carried>> parts;
  };
  struct Round {
    std::unique_ptr<Runner> runner;
    std::map<Rounds::Member, std::uint64_t> took;  ///< By those that have not left.
    std::deque<Transfer> transfers;                ///< The last that were begun.
    std::uint64_t begun = 0;
    bool is_over = false;

    const Transfer& transfer(std::uint64_t number) const { return transfers[number + transfers.size() - begun]; }
  };

  Status on_took(Line& line, Rounds::Number number, Round& round, std::uint64_t transfers, Time now);
  void on_left(Line& line, Rounds::Number number, Round& round, Time now);
  void look_at_runners(Time now);
  void form(Rounds::Number number, const std::vector<Rounds::Member>& members, Time now);
  void end(Rounds::Number number);
  void send_by_message(Line& line, Time now);
  void begin_transfer(Rounds::Number number, Round& round, const std::function<void(Line&)>& next, Time now);
  Line* first_in(const Round& round) const;

  Service& service_;
  const std::shared_ptr<gpu::Collective> collective_;
  Rounds rounds_;
  std::map<Rounds::Member, Line*> lines_;
  std::map<Rounds::Number, Round> here_;  ///< Also those that ended, until all have left and the thread is at its end.
};

void RoundCarrier::remove(Line& line) {
  lines_.erase(line.number);
  rounds_.on_gone(line.number);
  for (auto& [number, round] : here_) round.took.erase(line.number);
}

bool RoundCarrier::takes(const Line& line, const RequestQueue::Part& part, Time now) {
  if (part.chunk.total < kRoundAnswerBytesMin || rounds_.goes_by_messages(line.number, now)) return false;
  rounds_.on_waits(line.number, true, now);
  return true;
}

Status RoundCarrier::take(Line& line, const Frame& frame, Bytes data, Time now) {
  const auto kind = static_cast<Kind>(frame.kind());
  const auto found = here_.find(frame.request());
  if ((kind != Kind::took && kind != Kind::left) || found == here_.end() || !found->second.took.contains(line.number)) {
    return fail(Code::corrupt, format("a message of kind {} about round {}", frame.kind(), frame.request()));
  }
  Round& round = found->second;
  FRESHET_TRY(on_took(line, frame.request(), round, frame.total(), now));
  if (kind == Kind::took) return {};
  if (!data.empty()) {
    const std::string_view why(reinterpret_cast<const char*>(data.data()), std::min(data.size(), kErrorTextBytesMax));
    log_line(LogLevel::warning, format("nccl: a member of round {} left it: {}", frame.request(), shown(why)));
  }
  on_left(line, frame.request(), round, now);
  return {};
}

Status RoundCarrier::on_took(Line& line, Rounds::Number number, Round& round, std::uint64_t transfers, Time now) {
  std::uint64_t& took = round.took.at(line.number);
  if (transfers < took || transfers > round.begun) {
    return fail(Code::corrupt, format("{} transfers of round {} were taken, {} made", transfers, number, round.begun));
  }
  for (; took < transfers; ++took) line.queue.uncount_message();
  return rounds_.on_took(line.number, number, transfers, now);
}

void RoundCarrier::on_left(Line& line, Rounds::Number number, Round& round, Time now) {
  for (std::uint64_t missing = round.took.at(line.number); missing < round.begun; ++missing) {
    const Transfer& transfer = round.transfer(missing);
    const Bytes room = round.runner->room(missing);
    line.queue.uncount_message();
    for (const Carried& part : transfer.parts.at(line.number)) {
      line.post(
          frame_of(
              part.request(),
              {.piece = part.piece(), .encoding = part.encoding(), .total = part.total(), .offset = part.offset()}),
          room.subspan(part.at(), part.bytes()));
    }
  }
  round.took.erase(line.number);
  rounds_.on_left(line.number, number, now);
}

bool RoundCarrier::carry(const std::function<void(Line&)>& next, Time now) {
  look_at_runners(now);
  const Rounds::Steps steps = rounds_.step(now);
  for (const Rounds::Number number : steps.ended) end(number);
  for (const Rounds::Number number : steps.late) {
    log_line(LogLevel::warning,
             format("nccl: round {} broke, its bytes go by messages: a member did not answer in time", number));
  }
  for (const auto& [number, members] : steps.formed) form(number, members, now);
  bool did = !steps.ended.empty() || !steps.formed.empty();
  for (const auto& [number, line] : lines_) {
    if (!line->waiting || !rounds_.goes_by_messages(number, now)) continue;
    send_by_message(*line, now);
    did = true;
  }
  for (auto& [number, round] : here_) {
    // One each: rounds take turns, and clients are heard in between.
    if (!rounds_.may_carry(number, now)) continue;
    begin_transfer(number, round, next, now);
    did = true;
  }
  std::erase_if(here_, [&](const auto& entry) {
    const Round& round = entry.second;
    const bool is_closed = round.is_over && round.took.empty() && round.runner->stand().over;
    if (is_closed) rounds_.on_closed(entry.first);
    return is_closed;
  });
  return did;
}

void RoundCarrier::look_at_runners(Time now) {
  for (auto& [number, round] : here_) {
    if (round.is_over) continue;
    const Runner::Stand stand = round.runner->stand();
    if (stand.open) rounds_.on_open(number, now);
    rounds_.on_sent(number, stand.done, now);
    if (!stand.over) continue;
    rounds_.on_failed(number, now);
    const std::string why = stand.status ? "it ended" : stand.status.error().message();
    log_line(LogLevel::warning, format("nccl: round {} broke, its bytes go by messages: {}", number, why));
  }
}

void RoundCarrier::form(Rounds::Number number, const std::vector<Rounds::Member>& members, Time now) {
  gpu::CollectiveSeat seat{.id = {}, .ranks = static_cast<int>(members.size()) + 1, .rank = 0};
  const auto start = [&]() -> Result<std::unique_ptr<Runner>> {
    FRESHET_ASSIGN(seat.id, collective_->make_id());
    return Runner::start(collective_, seat, [this] { service_.wake.wake(); });
  };
  auto runner = start();
  if (!runner) {
    rounds_.on_failed(number, now);
    return log_line(LogLevel::warning, format("nccl: no round can be made: {}", runner.error().message()));
  }
  Round& round = here_[number];
  round.runner = std::move(*runner);
  std::uint32_t rank = 0;
  for (const Rounds::Member member : members) {
    round.took[member] = 0;
    lines_.at(member)->post(frame_of(Kind::round, number, 0, 0, ++rank, static_cast<std::uint32_t>(seat.ranks)),
                            seat.id.bytes);
  }
}

void RoundCarrier::end(Rounds::Number number) {
  const auto found = here_.find(number);
  if (found == here_.end()) return rounds_.on_closed(number);  // It could not be made.
  found->second.is_over = true;
  found->second.runner->stop();
  for (const auto& [member, took] : found->second.took) lines_.at(member)->post(frame_of(Kind::leave, number));
}

void RoundCarrier::send_by_message(Line& line, Time now) {
  line.post(frame_of(line.waiting->request, line.waiting->chunk), line.waiting->bytes);
  line.queue.done(*std::exchange(line.waiting, std::nullopt), true);
  rounds_.on_waits(line.number, false, now);
}

Line* RoundCarrier::first_in(const Round& round) const {
  const auto place = [](const RequestQueue::Part& part) {
    return std::tuple(part.version, part.tensor, part.chunk.offset);
  };
  Line* first = nullptr;
  for (const auto& [member, took] : round.took) {
    Line* const line = lines_.at(member);
    if (!line->waiting) continue;
    if (first == nullptr || place(*line->waiting) < place(*first->waiting)) first = line;
  }
  return first;
}

/// Members that wait for the same bytes share them; the others throw them away. What comes first in a version goes
/// first, so that members that do not ask for all of it, or asked later, meet.
void RoundCarrier::begin_transfer(Rounds::Number number, Round& round, const std::function<void(Line&)>& next,
                                  Time now) {
  rounds_.on_begun(number, kTransferBytesMax, now);
  const MutableBytes room = round.runner->room(round.begun++);
  if (round.transfers.size() == kTransfersInFlight) round.transfers.pop_front();
  Transfer& transfer = round.transfers.emplace_back();
  for (const auto& [member, took] : round.took) transfer.parts[member] = {};
  for (std::size_t parts = 0; parts < kCarriedMax; ++parts) {
    const Line* const first = first_in(round);
    if (first == nullptr || first->waiting->bytes.size() > room.size() - transfer.bytes) break;
    const Bytes bytes = first->waiting->bytes;
    std::memcpy(room.data() + transfer.bytes, bytes.data(), bytes.size());
    std::vector<Line*> sharing;
    for (const auto& [member, took] : round.took) {
      Line* const line = lines_.at(member);
      if (line->waiting && line->waiting->bytes.data() == bytes.data() && line->waiting->bytes.size() == bytes.size()) {
        sharing.push_back(line);
      }
    }
    for (Line* const line : sharing) {
      const Chunk& chunk = line->waiting->chunk;
      transfer.parts[line->number].emplace_back(line->waiting->request, chunk.total, chunk.offset, chunk.piece,
                                                chunk.encoding, static_cast<std::uint32_t>(transfer.bytes),
                                                static_cast<std::uint32_t>(bytes.size()));
    }
    transfer.bytes += bytes.size();
    for (Line* const line : sharing) {
      line->queue.done(*std::exchange(line->waiting, std::nullopt), true);
      rounds_.on_waits(line->number, false, now);
      next(*line);
    }
  }
  for (const auto& [member, parts] : transfer.parts) {
    Line& line = *lines_.at(member);
    line.queue.count_message();
    line.post(
        frame_of(Kind::transfer, number, transfer.bytes, round.begun - 1, 0, static_cast<std::uint32_t>(parts.size())),
        std::as_bytes(std::span(parts)));
  }
  round.runner->push(transfer.bytes);
}

}  // namespace
}  // namespace nccl

Result<std::unique_ptr<ChannelServer>> open_nccl_server(FetchSource& source, const NcclServerOptions& options) {
  FRESHET_TRY(nccl::check_fabric(options.trusted_fabric));
  std::shared_ptr<gpu::Collective> collective = options.collective;
  if (collective == nullptr) {
    FRESHET_ASSIGN(collective, gpu::open_nccl());
  }
  nccl::RoundLimits limits = options.rounds;
  limits.members_max = std::clamp<std::size_t>(limits.members_max, 1, gpu::kRanksMax - 1);
  limits.transfers_in_flight = nccl::kTransfersInFlight;
  ZmqServerOptions messages = options.messages;
  messages.chunk_bytes = zmq_channel::kCarriedChunkBytes;
  return zmq_channel::open_carried_server(source, messages, ChannelKind::nccl, [&](Service& service) {
    return std::make_unique<nccl::RoundCarrier>(service, limits, collective);
  });
}

}  // namespace freshet::channel
