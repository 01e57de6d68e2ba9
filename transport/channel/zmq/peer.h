// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server's side of one connection: its requests, its credit, and what is to be said to it next. Opens no socket:
/// messages are filled into memory that the server gives.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "transport/channel/channel.h"
#include "transport/channel/zmq/frame.h"

namespace freshet::channel::zmq_channel {

/// Of the whole server. Any thread.
struct Counters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::size_t> peers{0};
};

/// The server's thread only.
///
/// Invariant: what was filled and not yet credited costs at most the window, or is one message.
class Peer {
 public:
  struct Context {
    FetchSource& source;
    Counters& counters;
    std::uint64_t chunk_bytes = 0;
  };
  Peer(Context context, std::uint64_t window, Time now) : context_(context), window_(window), heard_(now) {}

  /// An error: no client of ours says that, and the connection is to end.
  Status take(const Frame& frame, Bytes data, Time now);

  /// Fills the next message into `room`, which has fill_bytes(). Its size; 0 when there is nothing to say or no credit
  /// for it.
  std::size_t fill(MutableBytes room);
  static std::size_t fill_bytes(std::uint64_t chunk_bytes) { return sizeof(Frame) + chunk_bytes; }

  bool fetches_for(protocol::SessionId session) const;
  /// Something is under way, so that silence counts.
  bool is_busy() const { return !fetches_.empty() || !replies_.empty(); }
  Time heard() const { return heard_; }

 private:
  struct Fetching {
    FetchRequest request;
    std::unique_ptr<OpenFetch> open;
    std::size_t next = 0;  ///< The first piece that has not been asked for.
    bool has_answer = false;
    std::size_t piece = 0;  ///< That `answer` is of.
    OpenFetch::Answer answer;
    std::uint64_t offset = 0;  ///< Of it was sent.
  };

  Status take_fetch(const Frame& frame, Bytes data);
  void cancel(std::uint64_t request);
  void refuse(std::uint64_t request, const Error& error);
  bool has_credit(std::size_t bytes) const;
  std::size_t fill_answers(MutableBytes room);
  /// The first fetch that something can be sent for by now; those that never can are ended. Null when there is none.
  Fetching* sendable();
  /// How much of its answer can be sent next: 0 when it has to wait.
  Result<std::uint64_t> sendable_bytes(const Fetching& fetch) const;
  /// False when its request ended with an error instead.
  bool next_answer(Fetching& fetch);
  bool is_small(const Fetching& fetch) const;
  std::size_t fill_chunk(Fetching& fetch, MutableBytes room);
  std::size_t fill_batch(Fetching& fetch, MutableBytes room);
  void end(std::uint64_t request);

  const Context context_;
  const std::uint64_t window_;
  Time heard_;
  std::uint64_t unpaid_ = 0;  ///< Cost of what was filled and not credited.
  std::deque<std::unique_ptr<Fetching>> fetches_;
  std::deque<std::vector<std::byte>> replies_;
};

}  // namespace freshet::channel::zmq_channel
