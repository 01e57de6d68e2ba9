// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The control protocol's messages as values. transport/WIRE.md has their meaning and their order.
/// transport/protocol/wire.fbs is their encoding, verified before use.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/arena/arena.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "transport/channel_kind.h"
#include "transport/current.h"

namespace freshet::protocol {

inline constexpr std::uint32_t kProtocolVersion = 3;

/// Limits; a message past one of them is corrupt.
inline constexpr std::size_t kMessageBytesMax = (std::size_t{64} << 20) + (std::size_t{16} << 20);
inline constexpr std::size_t kRequestBytesMax = std::size_t{64} << 10;  ///< Whatever goes to a publisher.
inline constexpr std::size_t kLabelBytesMax = 256;                      ///< Also of host strings.
inline constexpr std::size_t kAddressBytesMax = 1024;
inline constexpr std::size_t kRefusalBytesMax = 4096;
inline constexpr std::size_t kStatBytesMax = std::size_t{16} << 20;
inline constexpr std::size_t kSlabsMax = 4096;
inline constexpr std::size_t kHeldMax = 4096;  ///< Versions that one session can hold.
inline constexpr std::size_t kKnownArchitecturesMax = 16;
inline constexpr std::size_t kChannelsMax = 8;
inline constexpr std::uint64_t kEpochMax = std::uint64_t{1} << 62;
inline constexpr std::uint32_t kWithinMsMax = 3'600'000;
inline constexpr std::uint32_t kBehindMax = 1U << 24;  ///< Followers that are counted; more are so many.
/// The default time after which a silent member of the group has lapsed.
inline constexpr Duration kMembershipDefault = std::chrono::seconds(2);
inline constexpr VersionNumber kNumberMax = VersionNumber{1} << 62;
/// The greatest number that a Hello may claim to have seen; it leaves room for numbers above it.
inline constexpr VersionNumber kHighestSeenMax = VersionNumber{1} << 61;
/// The largest number that the publisher accepts from a Hello if the directory has no number of the model (it may have
/// lost it). If the directory has a number, that number counts more than any peer's.
inline constexpr VersionNumber kNumbersBelieved = VersionNumber{1} << 20;
/// Epochs beyond those that were decided here or that the directory knew, likewise.
inline constexpr std::uint64_t kEpochsBelieved = std::uint64_t{1} << 16;

/// Random, chosen by the subscriber for each life of its connection to one incarnation.
using SessionId = std::uint64_t;

enum class Mode : std::uint8_t { latest = 0, every = 1 };

/// The way of a version's bytes to a subscriber: `shm` through the door, the others but `file` under a lease
/// (transport/channel/channel.h).
using freshet::ChannelKind;
using freshet::to_string;
inline constexpr std::uint8_t kChannelKindLast = kChannelTraits.size() - 1;
constexpr std::uint32_t bit(ChannelKind kind) { return 1u << static_cast<std::uint8_t>(kind); }

struct ChannelOffer {
  ChannelKind kind = ChannelKind::shm;
  std::string address;
  bool operator==(const ChannelOffer&) const = default;
};

/// Handed out with a Grant; names one granted version of one session on a data channel. Random, never 0.
using LeaseId = std::uint64_t;

using Current = CurrentVersion;

// Subscriber to publisher.

/// Opens a session. The subscriber repeats it until a Welcome or a Refusal (of request 0) comes. With the door's token,
/// it moves a session to another connection: its holds and wants stay.
struct Hello {
  std::uint32_t protocol = kProtocolVersion;
  SessionId session = 0;
  std::string model;
  Mode mode = Mode::latest;
  std::string label;
  std::int32_t pid = 0;
  std::string host;                                ///< Boot id and network namespace: equal means memory can be shared.
  VersionNumber highest_seen = 0;                  ///< The publisher numbers above this, if it is plausible.
  VersionNumber after = 0;                         ///< For `every`: wanted from here on.
  std::uint64_t door_token = 0;                    ///< 0 for a new session.
  std::uint32_t channels = bit(ChannelKind::shm);  ///< The channels that the subscriber can use.
  bool staged = false;  ///< A member of the group that stages versions and commits them together.
  std::string serves;   ///< Of a relay: the control address where it serves the model again; otherwise empty.
  /// For `every` with `after` 0: it followed this model before, so versions of this incarnation that it missed are a
  /// gap.
  bool owed_all = false;
  /// The UUID of the GPU in whose memory it maps versions too, by `cuda_ipc`; empty: none. A Hello that is repeated
  /// changes it.
  std::string device;
};

/// Asks for the current version (`latest`), the next one after `after` (`every`), or, when `exactly` is not 0, for that
/// one (to stage it, or because a group goes back to it). A repeated one carries the same request.
struct Want {
  SessionId session = 0;
  std::uint64_t request = 0;  ///< From 1, growing within the session.
  VersionNumber after = 0;    ///< Answered with a version numbered above this; for `every`, all up to it have come.
  std::vector<Digest> known_architectures;  ///< Need not be sent again. A few at most.
  std::uint64_t after_epoch = 0;            ///< For `latest`: the pair (after_epoch, after) is what it has.
  ChannelKind channel = ChannelKind::shm;   ///< How it will read the version.
  VersionNumber exactly = 0;
  bool waits =
      false;  ///< Of `latest`: where nothing comes after what it has, it is kept and answered when something does.
  VersionNumber serving = 0;  ///< As in Ping; 0: its sender is older than the field, or serves nothing.
};

/// Everything this session still holds. Grants with an id up to `grants_seen` that are not named are released; later
/// ones are on their way and stay.
struct Held {
  SessionId session = 0;
  std::uint64_t grants_seen = 0;
  std::vector<VersionNumber> numbers;
};

struct Ping {
  SessionId session = 0;
  VersionNumber serving = 0;
  std::uint64_t epoch = 0;   ///< The epoch of the served version.
  VersionNumber staged = 0;  ///< Proved and ready to be swapped in; 0: none.
  std::int64_t sent_ns = 0;  ///< By its sender's clock; comes back in the Pong.
  std::string channel_why;   ///< The reason for the channel in its Wants; for people.
  /// Of a relay: the number of subscribers behind it that do not serve in the relay's epoch. One more if the
  /// subscriber's program still has to put the served version to use.
  std::uint32_t behind = 0;
};

struct Bye {
  SessionId session = 0;
  /// Snapshots outlive the subscriber: what was granted to be mapped and not let go is read until the door closes.
  bool reads_on = false;
};

/// The question of `freshet top`; needs no session.
struct StatRequest {
  std::string model;  ///< Empty: every model of this endpoint.
};

/// A member's report on the candidate: ready to be swapped in, or the reason why not.
struct Staged {
  SessionId session = 0;
  VersionNumber number = 0;
  std::optional<Error> failed;
  std::uint64_t turn = 0;  ///< Of the news that named the candidate.
};

/// Asks that another version become current: a rollback (`desired.hold`), the release of one, or a commit. Needs no
/// session. A compare-and-swap: refused with failed_precondition when the current pair is not `expected`. `desired`
/// names version and hold; the publisher gives the epoch. As a group: when all members that have not lapsed have staged
/// it.
struct Activate {
  std::string model;
  std::uint64_t request = 0;
  Current expected;
  Current desired;
  bool as_group = false;
  std::uint32_t within_ms = 0;
};

// Publisher to subscriber.

/// The answer to Activate, when it is decided.
struct Activated {
  std::uint64_t request = 0;
  std::optional<Error> refused;
  Current current;            ///< The current version after the decision.
  std::uint32_t members = 0;  ///< Members that had staged it.
  /// Time in which some followers served the old version and some the new one. 0: not known yet.
  std::int64_t mixed_ns = 0;
  /// Followers, also behind relays, that do not serve it yet. The publisher waits for them no longer.
  std::uint32_t behind = 0;
};

struct Welcome {
  SessionId session = 0;
  RunId run;
  std::uint64_t incarnation = 0;
  std::string door;  ///< Address of the Unix socket that hands out slabs.
  std::uint64_t door_token = 0;
  VersionNumber newest = 0;
  std::vector<ChannelOffer> channels;  ///< Other channels to the publisher's bytes.
  std::uint32_t lease_ms = 0;          ///< A session without a door ends after this time of silence.
  Current current;
  /// A member of the group has lapsed this time after it sent the last answered Ping. 0: the default.
  std::uint32_t membership_ms = 0;
  bool keeps_wants = false;  ///< A Want may wait here.
  /// Versions of this incarnation have this number or a later one; 0: not told (a relay).
  VersionNumber first_number = 0;
};

/// A version, held for this session from now on.
struct Grant {
  SessionId session = 0;
  std::uint64_t request = 0;
  std::uint64_t grant = 0;  ///< Grows by one with each grant of a session.
  VersionNumber number = 0;
  std::vector<std::byte> manifest;
  std::vector<std::byte> architecture;    ///< Empty when the subscriber named its digest.
  std::vector<SegmentPlace> places;       ///< By tensor index.
  std::vector<std::uint64_t> slab_bytes;  ///< Sizes of the slabs that the places need, by slab index; all of them.
  /// For `every`: versions between the Want's `after` and this one that cannot be had any more. Exact within an
  /// incarnation; of earlier incarnations every number given counts. When `after` is 0: those since the session began
  /// (or all, with owed_all).
  std::uint64_t gap_before = 0;
  std::int64_t publish_started_ns = 0;  ///< Monotonic, this host.
  std::int64_t announced_ns = 0;
  std::uint64_t epoch = 0;  ///< Under which it is current; for a staged one, 0.
  ChannelKind channel = ChannelKind::shm;
  LeaseId lease = 0;  ///< For a channel that is fetched from; there are no places then.
  /// Only to a session whose door is open and that named this GPU. By tensor index, or none at all: where the tensor's
  /// bytes lie in the GPU's memory too. No bytes: only `places` has the tensor.
  std::vector<SegmentPlace> device_places;
  std::vector<std::uint64_t> device_slab_bytes;  ///< As slab_bytes, of the slabs of device memory.
};

/// The answer no, to a Want or (request 0) to a Hello. not_found: there is nothing newer, wait for news. unavailable,
/// out_of_space, failed_precondition: ask again after a pause. Others: asking this publisher again cannot help.
struct Refusal {
  SessionId session = 0;
  std::uint64_t request = 0;
  Code code = Code::unavailable;
  std::string message;
  VersionNumber newest = 0;
  Current current;
};

struct Pong {
  SessionId session = 0;
  std::uint64_t incarnation = 0;
  VersionNumber newest = 0;
  Current current;
  VersionNumber candidate = 0;  ///< To be staged by members of the group; 0: none.
  std::uint64_t turn = 0;       ///< Counts the changes of current and candidate; news of an older turn is overtaken.
  std::int64_t ping_ns = 0;     ///< The Ping's sent_ns.
};

/// The publisher does not know the session (it restarted, or gave it up): say Hello again with a new one.
struct UnknownSession {
  SessionId session = 0;
};

struct StatReply {
  std::string json;  ///< One object: PublisherStat of each model.
};

/// To every subscriber that sent a Hello, over the same connection; also through a directory that carries news.
struct Announcement {
  std::string model;
  std::uint64_t incarnation = 0;
  VersionNumber number = 0;
  std::int64_t announced_ns = 0;
  Current current;
  VersionNumber candidate = 0;
  std::uint64_t turn = 0;
};

using Message = std::variant<Hello, Want, Held, Ping, Bye, StatRequest, Welcome, Grant, Refusal, Pong, UnknownSession,
                             StatReply, Announcement, Staged, Activate, Activated>;

std::vector<std::byte> encode(const Message& message);

/// corrupt for anything that is not a whole, verified message of this protocol within the limits of WIRE.md.
Result<Message> decode(Bytes bytes);

}  // namespace freshet::protocol
