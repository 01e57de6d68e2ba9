// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The serving side of one connection: what its client asked for, and what is to be sent to it next. Opens no socket:
/// it is handed what the client said, and asked for the next part of an answer.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/wake.h"
#include "transport/channel/channel.h"
#include "transport/channel/skeleton/answerer.h"
#include "transport/channel/skeleton/reception.h"

namespace freshet::channel {

/// What all connections of a server share.
struct Service {
  Service(FetchSource& fetches, Wake of_thread) : source(fetches), wake(std::move(of_thread)) {}

  FetchSource& source;
  const Wake wake;  ///< Wakes the server's thread.
  Answerer answerer{wake};
  // Any thread.
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::size_t> peers{0};
};

/// The server's thread only.
///
/// Invariant: an OpenFetch is destroyed when neither a message that was not done() reads what it answered, nor a thread
/// makes an answer of it.
class RequestQueue {
  struct Fetching;

 public:
  struct Facts {
    std::uint64_t chunk_bytes = 0;
    std::uint64_t small_bytes = 0;  ///< Answers up to this size travel together.
    bool answers_cancels = false;   ///< By `ended`.
    ChannelTraits traits;
  };
  RequestQueue(Service& service, const Facts& facts, Time now) : service_(service), facts_(facts), heard_(now) {}

  // What the client said. An error: no client of ours says that, and the connection is to end.

  Status take_fetch(std::uint64_t request, Bytes bytes);
  Status cancel(std::uint64_t request);
  void ping() { pong_wanted_ = true; }
  /// It may have at most so many under way; a message of one that is still being received is the library's.
  bool is_full(std::size_t receiving = 0) const { return fetches_.size() + receiving >= kRequestsInFlightMax; }
  void refuse(std::uint64_t request, const Error& error);
  /// It has a sign of life of the client's.
  void hear(Time now) { heard_ = now; }
  Time heard() const { return heard_; }

  // What it is to be told.

  struct Ended {
    std::uint64_t request = 0;
    Code code = Code::cancelled;
    std::string text;
  };
  /// The next to be told; it goes before answers. Null for none.
  const Ended* next_ended() const { return ended_.empty() ? nullptr : &ended_.front(); }
  void told_ended() { ended_.pop_front(); }
  bool is_pong_wanted() const { return pong_wanted_; }
  void told_pong() { pong_wanted_ = false; }

  /// A part of an answer, on its way until done().
  struct Part {
    Fetching* fetch = nullptr;
    std::uint64_t request = 0;
    std::uint32_t answers = 0;  ///< Of a batch, which was written to the room; 0: a chunk.
    Chunk chunk;
    VersionNumber version = 0;  ///< A chunk's, and its tensor's place in it.
    std::uint32_t tensor = 0;
    Bytes bytes;  ///< Of a chunk: in the source's memory. Of a batch: in the room.
    std::uint64_t payload = 0;
  };
  /// What can be sent by now. `room` takes a batch: a small answer at least, with its head.
  std::optional<Part> next(MutableBytes room);
  /// Its bytes are not read any more; `sent`: they went on their way.
  void done(const Part& part, bool sent);

  /// Nothing more is sent; what was, is still to be done().
  void end_all();
  bool fetches_for(protocol::SessionId session) const;
  bool is_empty() const { return fetches_.empty(); }
  /// Something is under way, so that silence counts.
  bool is_busy() const { return !fetches_.empty() || !ended_.empty() || pong_wanted_ || messages_ != 0; }
  /// Messages that the library has not let go of.
  void count_message() { ++messages_; }
  void uncount_message() { --messages_; }
  std::size_t messages() const { return messages_; }

 private:
  struct Sent {
    std::size_t piece = 0;
    std::uint32_t chunks = 0;  ///< Under way.
    bool all = false;          ///< No more will follow.
  };
  struct Fetching {
    FetchRequest request;
    std::unique_ptr<OpenFetch> open;
    std::size_t next = 0;  ///< The first piece that has not been asked for.
    bool has_answer = false;
    std::size_t piece = 0;  ///< That `answer` is of.
    OpenFetch::Answer answer;
    std::uint64_t offset = 0;  ///< Of it was sent.
    std::vector<Sent> sent;    ///< A few.
    std::size_t in_flight = 0;
    bool over = false;  ///< Nothing more is sent for it.
    /// `job` makes the answer to piece `next`; `open` is not touched before it is done.
    bool asked = false;
    Answerer::Job job;
    std::vector<std::size_t> to_release;  ///< Meanwhile.

    bool is_being_answered() const { return asked && !job.done.load(); }
    bool is_last() const { return next == request.pieces.size(); }
  };

  Status open(std::uint64_t request, Bytes bytes);
  void tell_ended(std::uint64_t request, Code code, std::string_view text);
  /// The first fetch that something can be done for by now; those that never can be answered are over. Null for none.
  std::shared_ptr<Fetching> sendable();
  /// Whether the next of its answer, or the answer to its next piece, is there.
  Result<bool> can_go_on(const Fetching& fetch) const;
  /// False when there is none yet, or none any more.
  bool next_answer(const std::shared_ptr<Fetching>& fetch);
  bool take_answer(const std::shared_ptr<Fetching>& fetch, Result<OpenFetch::Answer> answer);
  void ask(const std::shared_ptr<Fetching>& fetch);
  static void release(Fetching& fetch, std::size_t piece);
  bool fits(const Fetching& fetch, std::size_t room) const;
  Part next_chunk(Fetching& fetch) const;
  Part next_batch(const std::shared_ptr<Fetching>& fetch, MutableBytes room);
  void sweep();

  Service& service_;
  const Facts facts_;
  Time heard_;
  std::deque<std::shared_ptr<Fetching>> fetches_;  ///< Shared with the job that answers.
  std::deque<Ended> ended_;
  bool pong_wanted_ = false;
  std::size_t messages_ = 0;
};

}  // namespace freshet::channel
