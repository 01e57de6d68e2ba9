// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fetching side of a connection.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "transport/channel/channel.h"
#include "transport/channel/ucx/address.h"
#include "transport/channel/ucx/reception.h"
#include "transport/channel/ucx/worker.h"
#include "transport/security/socket_owner.h"

namespace freshet::channel::ucx {

/// The sink is called within progress(), sometimes from UCX's callbacks: all that it may do then (fetch, cancel) is
/// bookkeeping and a send at most.
///
/// Invariant: a request is forgotten, and its end told, when no receive writes into its memory: each has completed, or
/// the worker is gone.
class Client final : public ChannelClient {
 public:
  Client(std::string address, Neighbours believed) : address_(std::move(address)), believed_(believed) {}
  ~Client() override;
  Status start(const Address& address);

  ChannelKind kind() const override { return ChannelKind::ucx; }
  Status fetch(FetchRequest request, FetchSink& sink) override;
  void cancel(std::uint64_t request) override;
  int descriptor() const override { return epoll_.get(); }
  Result<bool> progress(std::chrono::microseconds at_most) override;
  std::uint64_t bytes_received() const override;
  Status register_memory(Bytes memory) override;

 private:
  struct Request {
    explicit Request(FetchRequest request, FetchSink& sink) : reception(std::move(request), sink) {}
    Reception reception;
    bool sent = false;
    std::size_t receiving = 0;
    std::optional<Status> ending;  ///< What will be told when nothing is received for it any more.
  };
  /// A rendezvous that is being received: of a chunk straight into the sink's memory, of a batch into `bounce`.
  struct Receive {
    Client* client = nullptr;
    std::uint64_t request = 0;
    std::optional<wire::Chunk> chunk;
    std::optional<wire::Batch> batch;
    std::vector<std::byte> bounce;
    ucs_status_t status = UCS_OK;
  };
  struct Send {
    Client* client = nullptr;
    std::array<std::byte, kHeaderBytesMax> header{};
    std::vector<std::byte> data;
    bool done = false;
  };

  static void on_sent(void* request, ucs_status_t status, void* argument);
  static void on_received(void* request, ucs_status_t status, std::size_t length, void* argument);

  Status check_server() const;
  bool handle_messages();
  void handle(const Incoming& message);
  void take_welcome(const Incoming& message);
  void take_chunk(const Incoming& message);
  void take_batch(const Incoming& message);
  void take_ended(const Incoming& message);
  void receive(const Incoming& message, MutableBytes to, std::unique_ptr<Receive> receive);
  bool settle_receives();
  void settle(const Receive& receive);
  bool tell_endings();

  Request* running(std::uint64_t request);
  /// After an error of its reception's.
  void give_up(Request& request, Error error);
  void end(Request& request, Status status);
  void tell_server(MessageId id, std::uint64_t request, std::vector<std::byte> data);
  void check_silence(Time now);
  void set_timer(Time now);
  void kick();
  void shut();
  void die(Error why);

  const std::string address_;
  const Neighbours believed_;
  Address server_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  std::unique_ptr<Worker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_t endpoint_status_ = UCS_OK;  ///< Set by UCX when it finds the connection broken.
  std::optional<Error> broken_;            ///< Why progress() is to end the connection.
  std::optional<Error> dead_;

  std::uint64_t own_token_ = 0;
  std::uint64_t server_token_ = 0;  ///< 0 until the Welcome.
  std::map<std::uint64_t, Request> requests_;
  std::vector<std::unique_ptr<Send>> sends_;
  std::vector<std::unique_ptr<Receive>> receives_;
  std::vector<Receive*> received_;
  std::uint64_t bytes_received_ = 0;
  Time heard_;
  Time looked_;                ///< When progress() last had a look.
  std::optional<Time> asked_;  ///< When the server was asked for a sign of life that has not come.
};

}  // namespace freshet::channel::ucx
