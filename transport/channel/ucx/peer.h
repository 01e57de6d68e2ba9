// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server's side of one connection: its requests, and the messages that are on their way to it.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "transport/channel/channel.h"
#include "transport/channel/ucx/answerer.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/ucx/worker.h"

namespace freshet::channel::ucx {

/// Of the whole server. Any thread.
struct Counters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::size_t> peers{0};
};

/// The server's thread only.
///
/// Invariant: an OpenFetch is destroyed when no send reads what it answered: each of them has completed, by itself or
/// because the endpoint was closed by force.
class Peer {
 public:
  struct Context {
    Worker& worker;
    FetchSource& source;
    Answerer& answerer;
    Counters& counters;
    const UcxServerOptions& options;
  };
  /// `token` is what this client must show.
  Peer(Context context, std::uint64_t token, Time now)
      : worker_(context.worker),
        source_(context.source),
        answerer_(context.answerer),
        counters_(context.counters),
        options_(context.options),
        token_(token),
        heard_(now) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Status accept(ucp_conn_request_h connection);
  std::uint64_t token() const { return token_; }
  /// A message that showed the token; `header` is its own. Takes its data.
  void on_message(const Incoming& message, const wire::ToServer& header, Time now);
  /// Settles what has completed, and sends more. True if it did anything.
  bool carry_on(Time now);
  bool fetches_for(protocol::SessionId session) const;
  /// Ends everything by force; carry_on() settles the rest.
  void close();
  /// Nothing is left of it.
  bool is_gone() const {
    return closing_ && close_request_ == nullptr && in_flight_ == 0 && receiving_ == 0 && fetches_.empty();
  }
  /// Something is under way, so that silence counts.
  bool is_busy() const { return in_flight_ != 0 || receiving_ != 0 || !fetches_.empty(); }
  bool is_closing() const { return closing_; }
  Time heard() const { return heard_; }

 private:
  struct Fetching;
  /// A message on its way; kept by the peer until UCX is done with it, then used again.
  struct Send {
    Peer* peer = nullptr;
    Fetching* fetch = nullptr;  ///< Null for messages that carry no answers.
    std::size_t piece = 0;
    bool is_chunk = false;
    bool is_pong = false;
    std::uint64_t payload = 0;
    ucs_status_t status = UCS_OK;
    std::array<std::byte, kHeaderBytesMax> header{};
    std::vector<std::byte> staging;
  };
  struct Sent {
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
    std::unordered_map<std::size_t, Sent> sent;
    std::size_t in_flight = 0;
    bool over = false;  ///< Nothing more is sent for it.
    /// `job` makes the answer to piece `next`; `open` is not touched before it is done.
    bool asked = false;
    Answerer::Job job;
    std::vector<std::size_t> to_release;  ///< Meanwhile.

    bool is_being_answered() const { return asked && !job.done.load(); }
  };
  /// A fetch whose pieces are still coming in.
  struct Receive {
    Peer* peer = nullptr;
    wire::ToServer header;
    std::vector<std::byte> bytes;
    ucs_status_t status = UCS_OK;
  };

  static void on_sent(void* request, ucs_status_t status, void* argument);
  static void on_received(void* request, ucs_status_t status, std::size_t length, void* argument);
  static void on_endpoint_error(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  void take_fetch(const Incoming& message, const wire::ToServer& header);
  void open_fetch(const wire::ToServer& header, Bytes bytes);
  void cancel(std::uint64_t request);
  void settle(Send& send);
  void sweep();
  void refuse(std::uint64_t request, const Error& error);
  void pong();

  /// The first fetch that something can be done for by now; those that never can be answered are over. Null for none.
  Fetching* sendable();
  /// Whether the next of its answer, or the answer to its next piece, is there.
  Result<bool> can_go_on(const Fetching& fetch) const;
  void send_next(Fetching& fetch);
  /// False when there is none yet, or none any more.
  bool next_answer(Fetching& fetch);
  bool take_answer(Fetching& fetch, Result<OpenFetch::Answer> answer);
  void ask(Fetching& fetch);
  static void release(Fetching& fetch, std::size_t piece);
  void send_chunk(Fetching& fetch);
  void send_batch(Fetching& fetch);

  Send& take_send();
  template <typename Header>
  void post(Send& send, MessageId id, const Header& header, Bytes data);

  Worker& worker_;
  FetchSource& source_;
  Answerer& answerer_;
  Counters& counters_;
  const UcxServerOptions& options_;
  const std::uint64_t token_;
  std::uint64_t reply_token_ = 0;
  Time heard_;
  ucp_ep_h endpoint_ = nullptr;
  bool failed_ = false;  ///< UCX found the connection broken.
  bool closing_ = false;
  ucs_status_ptr_t close_request_ = nullptr;

  std::deque<std::unique_ptr<Fetching>> fetches_;
  std::vector<std::unique_ptr<Send>> sends_;
  std::vector<Send*> idle_sends_;
  std::vector<Send*> completed_;
  std::size_t in_flight_ = 0;          ///< Sends of all kinds.
  std::size_t answers_in_flight_ = 0;  ///< Those with answers.
  bool pong_in_flight_ = false;
  std::vector<std::unique_ptr<Receive>> receives_;
  std::size_t receiving_ = 0;
  std::vector<Receive*> received_;
};

}  // namespace freshet::channel::ucx
