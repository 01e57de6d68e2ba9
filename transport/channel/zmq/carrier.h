// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How another channel (channel/nccl) carries large chunks beside the messages of this one, and shares everything else:
/// connections, requests, small answers, credit and silence.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/channel/skeleton/client.h"
#include "transport/channel/skeleton/request_queue.h"
#include "transport/channel/zmq/frame.h"
#include "transport/channel/zmq/zmq_channel.h"

namespace freshet::channel::zmq_channel {

class Carrier;

/// A connection, as the server's carrier sees it.
struct Line {
  /// `carrier` is null for the channel zmq; otherwise it is told of the beginning and the end.
  Line(std::uint64_t line_number, Service& service, const RequestQueue::Facts& facts, Carrier* of_server, Time now);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  /// Sends a message when there is credit, before any more of an answer.
  void post(const Frame& frame, Bytes data = {});

  const std::uint64_t number;  ///< Never used again.
  Carrier* const carrier;
  RequestQueue queue;
  std::optional<RequestQueue::Part> waiting;  ///< A chunk for the carrier; the queue gives no other meanwhile.
  std::deque<std::vector<std::byte>> messages;
};

/// The server's thread only. It outlives the lines.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual void add(Line& line) = 0;
  virtual void remove(Line& line) = 0;
  /// Whether the chunk is to become the line's `waiting`.
  virtual bool takes(const Line& line, const RequestQueue::Part& part, Time now) = 0;
  /// A message of a kind that this channel does not know. An error ends the connection.
  virtual Status take(Line& line, const Frame& frame, Bytes data, Time now) = 0;
  /// Takes what waits. `next` has the line's next chunk wait, if there is one. True if it did anything.
  virtual bool carry(const std::function<void(Line&)>& next, Time now) = 0;
  /// When carry() is to be called though nothing happened.
  virtual Time due() const = 0;
};

/// The client's part. One thread at a time. Its end ends all that it does.
class Rider {
 public:
  using Say = std::function<void(const Frame&, Bytes data)>;
  virtual ~Rider() = default;
  /// A message of a kind that this channel does not know. An error breaks the connection off.
  virtual Status take(Client& client, const Frame& frame, Bytes data, const Say& say) = 0;
  /// Hands over what has come. True if it did anything.
  virtual Result<bool> receive(Client& client, const Say& say) = 0;
  /// receive() has something to do.
  virtual bool is_ready() const = 0;
  /// Readable when is_ready() may have become true.
  virtual int descriptor() const = 0;
};

/// Chunks of an answer that some other way carries have this size, but the last, and come in any order.
inline constexpr std::uint64_t kCarriedChunkBytes = kChunkBytesMax;

using MakeCarrier = std::function<std::unique_ptr<Carrier>(Service& service)>;
/// As open_zmq_server, of that kind.
Result<std::unique_ptr<ChannelServer>> open_carried_server(FetchSource& source, const ZmqServerOptions& options,
                                                           ChannelKind kind, const MakeCarrier& make_carrier);
Result<std::unique_ptr<ChannelClient>> open_carried_client(const std::string& address, const ZmqClientOptions& options,
                                                           ChannelKind kind, std::unique_ptr<Rider> rider);

}  // namespace freshet::channel::zmq_channel
