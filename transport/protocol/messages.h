#pragma once

/// The control protocol's messages as values. transport/WIRE.md tells what each means and in which order they come;
/// transport/protocol/wire.fbs is their encoding, verified before use.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/arena.h"
#include "core/ids.h"
#include "core/result.h"

namespace freshet::protocol {

inline constexpr std::uint32_t kProtocolVersion = 1;

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
inline constexpr VersionNumber kNumberMax = VersionNumber{1} << 62;
/// What a Hello may claim to have seen; leaves room to number above it.
inline constexpr VersionNumber kHighestSeenMax = VersionNumber{1} << 61;

/// Random, chosen by the subscriber for each life of its connection to one incarnation.
using SessionId = std::uint64_t;

enum class Mode : std::uint8_t { latest = 0, every = 1 };

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
  std::string host;                ///< Boot id and network namespace: equal means memory can be shared.
  VersionNumber highest_seen = 0;  ///< The publisher numbers its next versions above this.
  VersionNumber after = 0;         ///< For `every`: wanted from here on.
  std::uint64_t door_token = 0;    ///< 0 for a new session.
};

/// Asks for the newest version (`latest`), or the next one after `after` (`every`). A repeated one carries the same
/// request.
struct Want {
  SessionId session = 0;
  std::uint64_t request = 0;  ///< From 1, growing within the session.
  VersionNumber after = 0;    ///< Answered with a version numbered above this; for `every`, all up to it have come.
  std::vector<Digest> known_architectures;  ///< Need not be sent again. A few at most.
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
};

struct Bye {
  SessionId session = 0;
};

/// What `freshet top` asks; needs no session.
struct StatRequest {
  std::string model;  ///< Empty: every model of this endpoint.
};

// Publisher to subscriber.

struct Welcome {
  SessionId session = 0;
  RunId run;
  std::uint64_t incarnation = 0;
  std::string announcements;  ///< Address of the PUB socket.
  std::string door;           ///< Address of the Unix socket that hands out slabs.
  std::uint64_t door_token = 0;
  VersionNumber newest = 0;
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
};

/// The answer no, to a Want or (request 0) to a Hello. not_found: there is nothing newer, wait for news. unavailable,
/// out_of_space, failed_precondition: ask again after a pause. Others: asking this publisher again cannot help.
struct Refusal {
  SessionId session = 0;
  std::uint64_t request = 0;
  Code code = Code::unavailable;
  std::string message;
  VersionNumber newest = 0;
};

struct Pong {
  SessionId session = 0;
  std::uint64_t incarnation = 0;
  VersionNumber newest = 0;
};

/// The publisher does not know the session (it restarted, or gave it up): say Hello again with a new one.
struct UnknownSession {
  SessionId session = 0;
};

struct StatReply {
  std::string json;  ///< One object: PublisherStat of each model.
};

/// On the PUB socket, topic = model name.
struct Announcement {
  std::string model;
  std::uint64_t incarnation = 0;
  VersionNumber number = 0;
  std::int64_t announced_ns = 0;
};

using Message = std::variant<Hello, Want, Held, Ping, Bye, StatRequest, Welcome, Grant, Refusal, Pong, UnknownSession,
                             StatReply, Announcement>;

std::vector<std::byte> encode(const Message& message);

/// corrupt for anything that is not a whole, verified message of this protocol within the limits of WIRE.md.
Result<Message> decode(Bytes bytes);

}  // namespace freshet::protocol
