// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server's side of one connection over UCX: its endpoint, and the messages that are on their way.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "transport/channel/skeleton/request_queue.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/ucx/worker.h"

namespace freshet::channel::ucx {

/// The server's thread only. Its queue's parts are done when UCX has completed their sends, by itself or because the
/// endpoint was closed by force.
class Peer {
 public:
  /// `token` is what this client must show.
  Peer(Worker& worker, Service& service, const UcxServerOptions& options, std::uint64_t token, Time now);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Status accept(ucp_conn_request_h connection);
  const RequestQueue& queue() const { return queue_; }
  /// A message that showed the token; `header` is its own. Takes its data.
  void on_message(const Incoming& message, const wire::ToServer& header, Time now);
  /// Settles what has completed. True if it did anything.
  bool settle(Time now);
  /// Sends more. True if it did anything.
  bool send();
  /// Ends everything by force; settle() sees to the rest.
  void close();
  /// Nothing is left of it.
  bool is_gone() const {
    return closing_ && close_request_ == nullptr && queue_.messages() == 0 && receives_.empty() && queue_.is_empty();
  }
  bool is_closing() const { return closing_; }

 private:
  /// A message on its way; kept by the peer until UCX is done with it, then used again.
  struct Send {
    Peer* peer = nullptr;
    RequestQueue::Part part;  ///< Of no fetch: no answer.
    bool is_pong = false;
    ucs_status_t status = UCS_OK;
    std::array<std::byte, kHeaderBytesMax> header{};
    std::unique_ptr<std::byte[]> room;  ///< For a batch.
    std::string text;                   ///< An error's.
  };
  /// A fetch whose pieces are still coming in.
  struct Receive {
    Peer* peer = nullptr;
    std::uint64_t request = 0;
    std::vector<std::byte> bytes;
    ucs_status_t status = UCS_OK;
  };

  static void on_sent(void* request, ucs_status_t status, void* argument);
  static void on_received(void* request, ucs_status_t status, std::size_t length, void* argument);
  static void on_endpoint_error(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  void take_fetch(const Incoming& message, const wire::ToServer& header);
  void take_request(std::uint64_t request, Bytes bytes);
  /// What the queue has to tell beside answers.
  void tell();
  void send_part(Send& send);
  Send& take_send();
  MutableBytes room_of(Send& send) const;
  template <typename Header>
  void post(Send& send, MessageId id, const Header& header, Bytes data);

  Worker& worker_;
  const UcxServerOptions& options_;
  const std::uint64_t token_;
  RequestQueue queue_;
  std::uint64_t reply_token_ = 0;
  ucp_ep_h endpoint_ = nullptr;
  bool failed_ = false;  ///< UCX found the connection broken, or its client says what no client of ours does.
  bool closing_ = false;
  ucs_status_ptr_t close_request_ = nullptr;

  std::vector<std::unique_ptr<Send>> sends_;
  std::vector<Send*> idle_sends_;
  std::vector<Send*> completed_;
  std::size_t answers_in_flight_ = 0;
  bool pong_in_flight_ = false;
  std::vector<std::unique_ptr<Receive>> receives_;
  std::vector<Receive*> received_;
};

}  // namespace freshet::channel::ucx
