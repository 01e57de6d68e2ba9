// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The control protocol's messages as values. transport/WIRE.md tells what each means and in which order they come;
/// transport/protocol/wire.fbs is their encoding, verified before use.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/arena.h"
#include "core/clock.h"
#include "core/ids.h"
#include "core/result.h"

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
/// How long a member of the group counts as one without being heard, unless the publisher says otherwise.
inline constexpr Duration kMembershipDefault = std::chrono::seconds(2);
inline constexpr VersionNumber kNumberMax = VersionNumber{1} << 62;
/// What a Hello may claim to have seen; leaves room to number above it.
inline constexpr VersionNumber kHighestSeenMax = VersionNumber{1} << 61;
/// How far a Hello is believed where the directory remembers nothing, and may have lost what it gave out. Where it does
/// remember, it knows better than any peer.
inline constexpr VersionNumber kNumbersBelieved = VersionNumber{1} << 20;
/// Epochs beyond those that were decided here or that the directory knew, likewise.
inline constexpr std::uint64_t kEpochsBelieved = std::uint64_t{1} << 16;

/// Random, chosen by the subscriber for each life of its connection to one incarnation.
using SessionId = std::uint64_t;

enum class Mode : std::uint8_t { latest = 0, every = 1 };

/// How a version's bytes come to a subscriber. `shm`: it maps them, through the door. `file`: it reads them from a
/// folder that both sides see. The others: it fetches them under a lease (transport/channel/channel.h).
enum class ChannelKind : std::uint8_t { shm = 0, ucx = 1, zmq = 2, file = 3 };
inline constexpr std::uint8_t kChannelKindLast = 3;
constexpr std::uint32_t bit(ChannelKind kind) { return 1u << static_cast<std::uint8_t>(kind); }
std::string_view to_string(ChannelKind kind);

struct ChannelOffer {
  ChannelKind kind = ChannelKind::shm;
  std::string address;
  bool operator==(const ChannelOffer&) const = default;
};

/// Handed out with a Grant; names one granted version of one session on a data channel. Random, never 0.
using LeaseId = std::uint64_t;

/// What is to be served. Publishing advances the number; a rollback advances the epoch, with an older version, and may
/// set a hold: then publishing advances nothing until somebody releases it. Ordered by epoch, then by number; a
/// publisher's pair only grows.
struct Current {
  std::uint64_t epoch = 0;
  VersionNumber number = 0;
  bool hold = false;
  bool operator==(const Current&) const = default;
  bool comes_after(std::uint64_t other_epoch, VersionNumber other) const {
    return epoch != other_epoch ? epoch > other_epoch : number > other;
  }
};

// Subscriber to publisher.

/// Opens a session, and repeats itself until a Welcome or a Refusal (of request 0) comes. With its door's token, it
/// takes a session along to another connection: what it holds and waits for stays.
struct Hello {
  std::uint32_t protocol = kProtocolVersion;
  SessionId session = 0;
  std::string model;
  Mode mode = Mode::latest;
  std::string label;
  std::int32_t pid = 0;
  std::string host;                                ///< Boot id and network namespace: equal means memory can be shared.
  VersionNumber highest_seen = 0;                  ///< The publisher numbers above this, as far as it can be true.
  VersionNumber after = 0;                         ///< For `every`: wanted from here on.
  std::uint64_t door_token = 0;                    ///< 0 for a new session.
  std::uint32_t channels = bit(ChannelKind::shm);  ///< Those that it can use.
  bool staged = false;  ///< A member of the group that stages versions and commits them together.
  std::string serves;   ///< Control address where it serves the model again; empty: it doesn't.
  /// For `every` with `after` 0: it followed this model before, so what it missed of this incarnation is a gap.
  bool owed_all = false;
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
  std::uint64_t epoch = 0;   ///< Under which it serves.
  VersionNumber staged = 0;  ///< Proved and ready to be swapped in; 0: nothing.
  std::int64_t sent_ns = 0;  ///< By its sender's clock; comes back in the Pong.
  std::string channel_why;   ///< Why it reads versions by the channel that it names in its Wants; for people.
  /// Of a relay: how many of those who follow it, and behind them, do not serve under the epoch that it serves under.
  std::uint32_t behind = 0;
};

struct Bye {
  SessionId session = 0;
};

/// What `freshet top` asks; needs no session.
struct StatRequest {
  std::string model;  ///< Empty: every model of this endpoint.
};

/// A member's word on the candidate: ready to be swapped in, or why not.
struct Staged {
  SessionId session = 0;
  VersionNumber number = 0;
  std::optional<Error> failed;
  std::uint64_t turn = 0;  ///< Of the news that named the candidate.
};

/// Asks that another version become current: a rollback (`desired.hold`), the release of one, or a commit. Needs no
/// session. A compare-and-swap: refused with failed_precondition when the current pair is not `expected`. `desired`
/// names version and hold; the publisher gives the epoch. As a group: once all members in good standing have staged it.
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
  Current current;            ///< As it is now.
  std::uint32_t members = 0;  ///< That had staged.
  std::int64_t mixed_ns = 0;  ///< How long some of them served the old version and some the new; 0 when not known yet.
  std::uint32_t behind = 0;   ///< Followers, and those behind relays, who do not serve it yet; it is not waited for them any more.
};

struct Welcome {
  SessionId session = 0;
  RunId run;
  std::uint64_t incarnation = 0;
  std::string door;  ///< Address of the Unix socket that hands out slabs.
  std::uint64_t door_token = 0;
  VersionNumber newest = 0;
  std::vector<ChannelOffer> channels;  ///< Where else its bytes can be had.
  std::uint32_t lease_ms = 0;          ///< A session without a door is over after that much silence.
  Current current;
  /// A member of the group has lapsed when the last Ping that was answered was sent so long ago. 0: the default.
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
  /// incarnation; of earlier incarnations every number given counts. 0 when `after` is 0: nothing was promised yet.
  std::uint64_t gap_before = 0;
  std::int64_t publish_started_ns = 0;  ///< Monotonic, this host.
  std::int64_t announced_ns = 0;
  std::uint64_t epoch = 0;  ///< Under which it is current; for a staged one, 0.
  ChannelKind channel = ChannelKind::shm;
  LeaseId lease = 0;  ///< For a channel that is fetched from; there are no places then.
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

/// To everybody who said Hello, over the connection that it was said by; also through a directory that carries news.
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
