// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Data channels: how the bytes of a version come from a process that has them to one that fetches them. A fetch names
/// a lease, a version, and pieces: whole tensors or ranges of them. The owner checks it against the lease before any
/// byte moves, and answers each piece with its bytes, or with an element delta against a segment that the fetcher says
/// it has.
///
/// Two sides: ChannelServer answers, on a thread of its own, so that a slow or lying peer costs nobody else anything.
/// ChannelClient fetches; it has no thread: its owner polls its descriptor and calls progress().
///
/// What both promise: bytes are moved only into memory that the receiver named; at most a stated number of bytes is on
/// its way per peer; every request ends, with its bytes or with an error; a segment that is read for a peer is referred
/// to (through the OpenFetch) until the last of its bytes was sent or the peer was cut off by force.
///
/// All channels share one skeleton (skeleton/), which opens no socket:
///   - client.h: Client, the only ChannelClient: requests in flight, ends, cancels, silence. It has a Connection.
///   - reception.h: checks what a server sends before its sink hears of it. Client has one for each request.
///   - server.h: Server, the only ChannelServer: its thread, cutting off, counters. It has a Port.
///   - request_queue.h: what one client asked for, and the next part of an answer; owns the OpenFetches, and has deltas
///     made by answerer.h. A Port has one for each connection.
///
/// To add a channel NAME, write a folder NAME/ of about 400 lines that is only connect, send, receive and close:
///   1. NAME_channel.h: options, open_NAME_server and open_NAME_client.
///   2. client.cc: a Connection. It sends fetch, cancel and ping; it hands Client each chunk (take_chunk if the bytes
///      are here, place and arrived if the library writes them where they belong), batch and end.
///   3. server.cc: a Port. It hands the messages of each connection to its RequestQueue, asks that for the `next` Part
///      as long as there is room for more on the way, and says when a Part is `done`: its memory is not read any more.
///   4. frame.fbs, frame.h: its messages, if no library has them.
///   5. Its kind and its traits (transport/channel_kind.h): which memory its bytes may lie in, where it may be used,
///      and what else it can.
/// Then tell of it where channels are chosen and tested; ARCHITECTURE.md ("A new data channel") has the list of files.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"
#include "transport/protocol/messages.h"

namespace freshet::channel {

using freshet::ChannelTraits;
using protocol::ChannelKind;
using protocol::LeaseId;

/// A tensor, or a range of one, of the version that a request names.
struct Piece {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  /// A segment whose bytes the fetcher has, all of them: the piece, which must be a whole tensor then, may be answered
  /// with an element delta that starts from it (core/delta/element_delta.h).
  std::optional<SegmentName> base;
};

struct FetchRequest {
  std::uint64_t request = 0;  ///< Chosen by the fetcher, growing within a connection.
  protocol::SessionId session = 0;
  LeaseId lease = 0;
  VersionNumber version = 0;
  /// What the fetcher measured of the way between the two, so that the owner can tell whether a delta is worth its
  /// making. 0: not known.
  std::uint64_t link_bytes_per_second = 0;
  std::vector<Piece> pieces;
};

/// A request past one of them is corrupt.
inline constexpr std::size_t kPiecesMax = std::size_t{1} << 18;
inline constexpr std::size_t kRequestsInFlightMax = 8;  ///< Per connection; more are refused.

enum class Encoding : std::uint8_t { dense = 0, delta = 1 };

/// FlatBuffers (channel/fetch.fbs), verified; `decode_fetch` answers corrupt for anything that is not a whole request
/// within the limits.
std::vector<std::byte> encode(const FetchRequest& request);
Result<FetchRequest> decode_fetch(Bytes bytes);

/// The progress of an answer whose bytes still arrive at the answering side: a relay passes on a version while it
/// fetches this version. Any thread.
class ComingAnswer {
 public:
  virtual ~ComingAnswer() = default;
  /// The number of bytes, from the beginning, that are there. It only grows, and these bytes do not change. An error:
  /// the rest will never come, and the request must end with this error.
  virtual Result<std::uint64_t> bytes_there() const = 0;
};

/// A request that was allowed. The bytes of its answers stay unchanged until the object is destroyed. One thread at a
/// time.
class OpenFetch {
 public:
  virtual ~OpenFetch() = default;
  struct Answer {
    Encoding encoding = Encoding::dense;
    Bytes bytes;  ///< Valid until the OpenFetch is destroyed, or release(piece) is called.
    std::shared_ptr<const ComingAnswer> coming;  ///< Null: all of them are there.
    MemoryKind memory = MemoryKind::host;        ///< What `bytes` lie in; the server refuses what its channel cannot.
  };
  /// True: this piece can be answered now. False: ask again after ChannelServer::look_again. An error: the piece can
  /// never be answered, and the request must end with this error.
  virtual Result<bool> can_answer(std::size_t /*piece*/) { return true; }
  /// The bytes of a piece (an index into the request's). May take a while: a delta is made here.
  virtual Result<Answer> answer(std::size_t piece) = 0;
  /// So many bytes of answers went on their way; the peer takes them. Any thread.
  virtual void sent(std::uint64_t /*bytes*/) {}
  /// The answer to this piece was sent; memory that was made for it may be freed.
  virtual void release(std::size_t piece) = 0;
};

/// The bytes that a server answers with. Any thread.
class FetchSource {
 public:
  virtual ~FetchSource() = default;
  /// Checks the whole request: the lease lives, belongs to this session and names this version; pieces lie within their
  /// tensors. failed_precondition: the lease is unknown or has ended. invalid_argument: everything else.
  virtual Result<std::unique_ptr<OpenFetch>> open(const FetchRequest& request) = 0;
};

struct ChannelStat {
  std::uint64_t bytes_sent = 0;
  std::uint64_t requests = 0;
  std::uint64_t refused = 0;
  std::size_t peers = 0;
  std::uint64_t bytes_registered = 0;  ///< Of memory, where the channel has a use for that.
};

/// Any thread. Destroying it cuts every peer off and ends its thread. Server (server.h) is the implementation.
class ChannelServer {
 public:
  virtual ~ChannelServer() = default;
  virtual ChannelKind kind() const = 0;
  /// As ChannelClient's factories take it; other hosts can reach it if the server was opened on such an address.
  virtual std::string address() const = 0;
  /// Cuts off all fetches of this session by force, so they end soon even if the peer does not answer.
  virtual void cut_off(protocol::SessionId session) = 0;
  virtual ChannelStat stat() const = 0;
  /// Pieces that could not be answered, or not in full, may be answerable now.
  virtual void look_again() {}
  /// Memory that answers will lie in (an arena's slab), told once, so that what a fabric wants of it is paid once. It
  /// stays mapped until forget_memory, or until the channel is destroyed. A channel that has no use for it does
  /// nothing; one that could not register it sends from it all the same.
  virtual Status register_memory(Bytes /*memory*/) { return {}; }
  /// It is about to be unmapped. REQUIRES: no answer lies in it any more. Memory that was never told of is passed over.
  virtual void forget_memory(Bytes /*memory*/) {}
};

/// Where the bytes of an answer are to lie.
struct Place {
  Place(MutableBytes where, MemoryKind kind = MemoryKind::host) : bytes(where), memory(kind) {}
  MutableBytes bytes;
  MemoryKind memory;
};

/// Where a client's bytes go. Called on the client's progress() only.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  /// Bytes of the piece are about to come: `bytes` in all, in that encoding. Where to put them, exactly as many; they
  /// must stay there until on_piece_done or on_request_done. A dense answer has as many bytes as the piece, or is
  /// refused before this is called; so is one of more than the piece's bytes in an encoding. An error refuses the
  /// piece. Memory of a kind that the channel does not take refuses it, too: ask traits_of(its kind) before.
  virtual Result<Place> place(std::uint64_t request, std::size_t piece, Encoding encoding, std::uint64_t bytes) = 0;
  /// The first `bytes` of the piece are there; called as it grows, so that they can be digested while they are warm.
  virtual void on_bytes(std::uint64_t request, std::size_t piece, std::uint64_t bytes) = 0;
  virtual void on_piece_done(std::uint64_t request, std::size_t piece) = 0;
  /// All pieces are done, or the first error. Nothing of that request is touched afterwards.
  virtual void on_request_done(std::uint64_t request, Status status) = 0;
};

/// One connection to a server; Client (client.h) is the implementation. One thread at a time. Destroying it ends every
/// request without a word; nothing is written into their memory afterwards.
class ChannelClient {
 public:
  virtual ~ChannelClient() = default;
  virtual ChannelKind kind() const = 0;
  /// Queues a request. `sink` stays until on_request_done, or until the client is destroyed. out_of_space when
  /// kRequestsInFlightMax are under way.
  virtual Status fetch(FetchRequest request, FetchSink& sink) = 0;
  /// Ends a request: what still comes for it is thrown away. on_request_done is called with `cancelled` when its memory
  /// is not written any more, perhaps after a few rounds of progress.
  virtual void cancel(std::uint64_t request) = 0;
  /// Readable when progress() has something to do.
  virtual int descriptor() const = 0;
  /// Carries on, for about `at_most`; false when there is nothing left to do until the descriptor is readable. An error
  /// means that the connection is dead: every request was ended with it.
  virtual Result<bool> progress(std::chrono::microseconds at_most) = 0;
  /// Since it was opened; of payloads.
  virtual std::uint64_t bytes_received() const = 0;
  /// Memory that places will lie in; as ChannelServer's. It stays mapped until the client is destroyed.
  virtual Status register_memory(Bytes /*memory*/) { return {}; }
};

/// Silence that ends a connection: the other side answers nothing, though asked, for that long.
inline constexpr std::chrono::milliseconds kPeerSilence{3000};

}  // namespace freshet::channel
