// SPDX-License-Identifier: Apache-2.0
/// Puts and reads through memory that client and server share.

#include <algorithm>
#include <cstring>
#include <deque>

#include "core/base/format.h"
#include "core/base/log.h"
#include "core/vector/copy.h"
#include "repo/serve/client/remote.h"
#include "transport/zmq/this_host.h"

namespace freshet::rpc {
namespace {

/// Of a lane that is announced at once: more are fewer messages, less lets the other side begin sooner.
constexpr std::uint64_t kAnnouncedBytes = std::uint64_t{512} << 10;
/// Of a lane that is filled at once. A few slots are filled while others are emptied.
constexpr std::uint64_t kSlotBytes = std::uint64_t{1} << 20;
static_assert(kLaneBytes % kSlotBytes == 0 && kSlotBytes <= kDataBytesMax);
constexpr Duration kAnnouncedAfter = std::chrono::seconds(1);

struct SlotPiece {
  std::uint32_t part = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

Result<ClientLane> RemoteRepository::make_put_lane(Link& connection) const {
  FRESHET_ASSIGN(std::shared_ptr<LaneMemory> memory, LaneMemory::create(kLaneBytes));
  const LanePlace& place = memory->place();
  FRESHET_ASSIGN(Conversation conversation, connection.begin([&](Builder& builder) {
    const wire::Mark mark(place.mark[0], place.mark[1]);
    return wire::CreateOfferLane(builder, place.pid, place.descriptor, place.bytes, &mark);
  }));
  FRESHET_ASSIGN(const Response response, last_answer(conversation, options_.answer, {}));
  FRESHET_ASSIGN(const wire::Number* const number, body_of<wire::Number>(response));
  return ClientLane{.id = number->value(), .ours = std::move(memory), .theirs = nullptr};
}

Result<ClientLane> RemoteRepository::make_read_lane(Link& connection) const {
  FRESHET_ASSIGN(Conversation conversation,
                 connection.begin([&](Builder& builder) { return wire::CreateAskLane(builder, kLaneBytes); }));
  FRESHET_ASSIGN(const Response response, last_answer(conversation, options_.answer, {}));
  FRESHET_ASSIGN(const wire::LaneMade* const made, body_of<wire::LaneMade>(response));
  LanePlace place{.pid = made->pid(), .descriptor = made->descriptor(), .bytes = made->bytes(), .mark = {}};
  if (made->mark() != nullptr) place.mark = {made->mark()->high(), made->mark()->low()};
  if (place.bytes < kSlotBytes) return fail(Code::corrupt, "the server's lane is too short");
  FRESHET_ASSIGN(auto memory, LaneMemory::open(place));
  return ClientLane{.id = made->lane(), .ours = nullptr, .theirs = std::move(memory)};
}

template <typename Make>
std::optional<LaneLoan> RemoteRepository::lane_of(LanePool& pool, Link& connection, std::uint64_t bytes,
                                                  Make make) const {
  if (!has_lanes_ || bytes < options_.channel_bytes_min || connection.host() != this_host()) return std::nullopt;
  if (auto idle = pool.take()) return LaneLoan(pool, std::move(*idle));
  if (!pool.may_make()) return std::nullopt;
  Result<ClientLane> made = make(connection);
  if (made) return LaneLoan(pool, std::move(*made));
  if (connection.is_dead()) return std::nullopt;
  pool.refuse();
  // An older server, or one that offers none, is nothing to tell of.
  if (made.error().code() != Code::unsupported && !told_of_lanes_.exchange(true)) {
    log_line(LogLevel::warning, format("tensors go to the repository at {} without shared memory: {}", connection.address(),
                                       made.error().message()));
  }
  return std::nullopt;
}

std::optional<LaneLoan> RemoteRepository::put_lane(Link& connection, const Manifest& manifest,
                                                   const PutOptions& options) const {
  if (!options.has_weights) return std::nullopt;
  std::uint64_t bytes = 0;
  const auto tensors = manifest.architecture->tensors();
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    if (manifest.owners[tensor].writer == manifest.id) bytes += tensors[tensor].bytes();
  }
  return lane_of(connection.put_lanes, connection, bytes, [this](Link& at) { return make_put_lane(at); });
}

std::optional<LaneLoan> RemoteRepository::read_lane(Link& connection, std::uint64_t bytes) const {
  return lane_of(connection.read_lanes, connection, bytes, [this](Link& at) { return make_read_lane(at); });
}

Result<std::optional<Response>> RemoteRepository::send_by_lane(Conversation& conversation, const wire::Upload& upload,
                                                               LaneMemory& lane, const PutSource& source) const {
  const MutableBytes ring = lane.memory();
  std::uint64_t credit = std::min<std::uint64_t>(upload.window(), ring.size());
  std::uint64_t written = 0;
  std::uint64_t announced = 0;
  Time announced_at = system_clock().now();
  const auto announce = [&] {
    if (written != announced) conversation.send_announcement(announced, written - announced);
    announced = written;
    announced_at = system_clock().now();
  };
  for (const std::uint32_t tensor : rpc::copied(upload.tensors())) {
    FRESHET_ASSIGN(Bytes bytes, source.bytes_of(conversation, tensor));
    while (!bytes.empty()) {
      if (credit == 0) {
        announce();
        FRESHET_ASSIGN(std::optional<Response> other, more_credit(conversation, credit));
        if (other) return other;
        credit = std::min<std::uint64_t>(credit, ring.size());
      }
      const std::uint64_t at = written % ring.size();
      const std::uint64_t count =
          std::min<std::uint64_t>({bytes.size(), credit, kAnnouncedBytes - (written - announced), ring.size() - at});
      std::memcpy(ring.data() + at, bytes.data(), count);
      bytes = bytes.subspan(count);
      written += count;
      credit -= count;
      if (written - announced == kAnnouncedBytes) announce();
    }
    // Where tensors come slowly, the server still hears that they come.
    if (system_clock().now() - announced_at > kAnnouncedAfter) announce();
  }
  announce();
  return std::optional<Response>();
}

/// Slot after slot of the lane is filled by the server, emptied here in the same order, and filled again.
class RemoteRepository::LaneRead {
 public:
  LaneRead(Link& connection, const ClientLane& lane, const BulkLease& lease, std::span<BulkPart> parts)
      : connection_(connection), lane_(lane), lease_(lease), parts_(parts) {}

  Status run(Duration answer) {
    Time renewed = system_clock().now();
    for (;;) {
      while (under_way_.size() < slots() && part_ < parts_.size()) FRESHET_TRY(ask());
      if (under_way_.empty()) return {};
      Filling& filling = under_way_.front();
      FRESHET_ASSIGN(const Response response, filling.conversation.next(deadline_in(answer)));
      FRESHET_ASSIGN(const wire::Done* const done, body_of<wire::Done>(response));
      static_cast<void>(done);
      empty(filling);
      under_way_.pop_front();
      const Time now = system_clock().now();
      if (now - renewed <= lease_.lifetime / 3) continue;
      renewed = now;
      lease_.renew();
    }
  }
  /// Whether the server may still write into the lane.
  bool is_under_way() const { return !under_way_.empty(); }

 private:
  struct Filling {
    Conversation conversation;
    std::uint64_t at = 0;
    std::vector<SlotPiece> pieces;
  };

  std::size_t slots() const { return lane_.theirs->memory().size() / kSlotBytes; }

  Status ask() {
    std::vector<SlotPiece> pieces;
    std::vector<wire::Range> ranges;
    std::uint64_t room = kSlotBytes;
    while (part_ < parts_.size() && room != 0 && pieces.size() < kRangesMax) {
      const std::uint64_t left = parts_[part_].out.size() - offset_;
      const std::uint64_t bytes = std::min({left, room, lease_.piece_bytes});
      pieces.push_back({.part = part_, .offset = offset_, .bytes = bytes});
      ranges.emplace_back(offset_, bytes, part_);
      room -= bytes;
      offset_ += bytes;
      if (bytes == left) {
        ++part_;
        offset_ = 0;
      }
    }
    const std::uint64_t at = asked_++ % slots() * kSlotBytes;
    FRESHET_ASSIGN(Conversation conversation, connection_.begin([&](Builder& builder) {
      return wire::CreateFillLane(builder, lane_.id, at, lease_.lease, builder.CreateVectorOfStructs(ranges));
    }));
    under_way_.push_back({std::move(conversation), at, std::move(pieces)});
    return {};
  }

  /// What is digested is what was copied: the lane is the server's to change.
  void empty(const Filling& filling) {
    Bytes from = lane_.theirs->memory().subspan(filling.at);
    for (const SlotPiece& piece : filling.pieces) {
      BulkPart& part = parts_[piece.part];
      if (piece.offset == 0) digest_.reset();
      const MutableBytes to = part.out.subspan(piece.offset, piece.bytes);
      if (part.is_digested) {
        copy_and_digest(to, from.first(piece.bytes), digest_);
      } else if (!to.empty()) {
        std::memcpy(to.data(), from.data(), to.size());
      }
      from = from.subspan(piece.bytes);
      if (piece.offset + piece.bytes < part.out.size()) continue;
      part.came = true;
      part.digest = digest_.finish();
    }
  }

  Link& connection_;
  const ClientLane& lane_;
  const BulkLease& lease_;
  const std::span<BulkPart> parts_;
  std::uint32_t part_ = 0;  ///< What is asked for next.
  std::uint64_t offset_ = 0;
  std::uint64_t asked_ = 0;
  DigestStream digest_;  ///< Of the part that is coming; they come in their order.
  std::deque<Filling> under_way_;
};

void RemoteRepository::fetch_by_lane(Link& connection, LaneLoan& lane, const BulkLease& lease,
                                     std::vector<BulkPart>& parts) const {
  LaneRead read(connection, lane.lane(), lease, parts);
  // What did not come is asked for in another way, whose error says more than this one's.
  static_cast<void>(read.run(options_.answer));
  if (read.is_under_way()) lane.spoil();
}

}  // namespace freshet::rpc
