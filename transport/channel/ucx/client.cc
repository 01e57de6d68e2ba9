// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/client.h"

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "core/base/format.h"
#include "transport/channel/ucx/address.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/ucx/worker.h"

namespace freshet::channel {
namespace ucx {
namespace {

constexpr Duration kClientClosingPatience = std::chrono::seconds(1);
constexpr int kClientIdleRounds = 64;

class UcxConnection final : public Connection {
 public:
  UcxConnection(std::string address, Neighbours believed) : address_(std::move(address)), believed_(believed) {}
  ~UcxConnection() override;
  Status start(const Address& address);
  int worker_descriptor() const { return worker_->descriptor(); }

  void send(Say what, std::uint64_t request, Bytes data) override;
  Result<bool> receive(Client& client, Time deadline) override;
  Result<bool> arm() override { return worker_->arm(); }
  bool is_open() const override { return server_token_ != 0; }
  Status register_memory(Bytes memory) override { return worker_->register_memory(memory); }

 private:
  /// A rendezvous that is being received: of a chunk straight into the sink's memory, of a batch into `bounce`.
  struct Receive {
    UcxConnection* connection = nullptr;
    std::uint64_t request = 0;
    Chunk chunk;
    std::uint64_t length = 0;
    std::uint32_t answers = 0;  ///< Of a batch; 0: a chunk.
    std::vector<std::byte> bounce;
    ucs_status_t status = UCS_OK;
  };
  struct Send {
    UcxConnection* connection = nullptr;
    std::array<std::byte, kHeaderBytesMax> header{};
    std::vector<std::byte> data;
    bool done = false;
  };

  static void on_sent(void* request, ucs_status_t status, void* argument);
  static void on_received(void* request, ucs_status_t status, std::size_t length, void* argument);

  Status check_server() const;
  void handle(const Incoming& message);
  void take_welcome(const Incoming& message);
  void take_chunk(const Incoming& message);
  void take_batch(const Incoming& message);
  void receive(const Incoming& message, MutableBytes to, std::unique_ptr<Receive> receive);
  bool settle_receives();
  void post(MessageId id, std::uint64_t request, std::vector<std::byte> data);

  const std::string address_;
  const Neighbours believed_;
  Address server_;
  std::unique_ptr<Worker> worker_;
  Client* client_ = nullptr;  ///< Set by receive().
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_t endpoint_status_ = UCS_OK;  ///< Set by UCX when it finds the connection broken.
  std::uint64_t own_token_ = 0;
  std::uint64_t server_token_ = 0;                           ///< 0 until the Welcome.
  std::map<std::uint64_t, std::vector<std::byte>> waiting_;  ///< Fetches, until then.
  std::vector<std::unique_ptr<Send>> sends_;
  std::vector<std::unique_ptr<Receive>> receives_;
  std::vector<Receive*> received_;
};

/// UCX shows nobody its connections, so it is asked who listens where they lead.
Status UcxConnection::check_server() const {
  if (!server_.loopback || believed_ == Neighbours::all) return {};
  Status listener = check_listener(server_.storage);
  if (!listener) return fail(std::move(listener).error().with_context(format("{} is not believed", address_)));
  return {};
}

Status UcxConnection::start(const Address& address) {
  server_ = address;
  // That nobody listens there is found out later. Whoever listens then is looked at with the welcome.
  if (Status listener = check_server(); !listener && listener.error().code() == Code::failed_precondition) {
    return listener;
  }
  FRESHET_ASSIGN(worker_, Worker::open({.loopback = address.loopback, .rendezvous = pays_by_rendezvous(address)}));
  for (const MessageId id :
       {MessageId::welcome, MessageId::chunk, MessageId::batch, MessageId::ended, MessageId::pong}) {
    FRESHET_TRY(worker_->take_messages(id, [this](const Incoming& message) { handle(message); }));
  }
  own_token_ = random_u64(system_env()) | 1;

  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = server_.get();
  params.sockaddr.addrlen = server_.bytes;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* connection, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxConnection*>(connection)->endpoint_status_ = status;
  };
  params.err_handler.arg = this;
  const Library& ucx = worker_->ucx();
  if (const ucs_status_t status = ucx.ucp_ep_create(worker_->handle(), &params, &endpoint_); status != UCS_OK) {
    return fail(error_from(ucx, status, format("connect to {}", address_)));
  }
  return {};
}

UcxConnection::~UcxConnection() {
  client_ = nullptr;
  if (worker_ == nullptr) return;
  const auto drop = [this] {
    for (const Incoming& message : std::exchange(worker_->incoming(), {})) worker_->drop(message);
  };
  drop();
  if (endpoint_ != nullptr) {
    const ucs_status_ptr_t closing = worker_->close_by_force(std::exchange(endpoint_, nullptr));
    const Time deadline = system_clock().now() + kClientClosingPatience;
    bool closed = worker_->closed(closing);
    while ((!closed || received_.size() < receives_.size()) && system_clock().now() < deadline) {
      worker_->progress();
      drop();
      closed = closed || worker_->closed(closing);
    }
  }
  worker_.reset();  // Whatever did not complete by then ends with the worker.
}

void UcxConnection::send(Say what, std::uint64_t request, Bytes data) {
  if (!is_open()) {
    if (what == Say::fetch) waiting_[request].assign(data.begin(), data.end());
    if (what == Say::cancel) waiting_.erase(request);
    return;
  }
  constexpr std::array kIds{MessageId::fetch, MessageId::cancel, MessageId::ping};
  post(kIds.at(static_cast<std::size_t>(what)), request, {data.begin(), data.end()});
}

Result<bool> UcxConnection::receive(Client& client, Time) {
  client_ = &client;
  bool did = worker_->progress();
  const auto messages = std::exchange(worker_->incoming(), {});
  for (const Incoming& message : messages) handle(message);
  did = settle_receives() || did || !messages.empty();
  if (endpoint_status_ == UCS_OK) return did;
  const Error why = error_from(worker_->ucx(), endpoint_status_, format("the connection to {}", address_));
  return fail(Code::unavailable, why.message());
}

void UcxConnection::handle(const Incoming& message) {
  if (client_ == nullptr) return worker_->drop(message);  // It is being closed.
  if (is_open()) client_->heard();
  switch (message.id) {
    case MessageId::welcome: take_welcome(message); break;
    case MessageId::chunk: return take_chunk(message);
    case MessageId::batch: return take_batch(message);
    case MessageId::ended:
      if (const auto header = read_header<wire::Ended>(message.header()); header && header->token() == own_token_) {
        client_->take_ended(header->request(), header->code(), message.payload);
      }
      break;
    default: break;
  }
  worker_->drop(message);
}

void UcxConnection::take_welcome(const Incoming& message) {
  const auto header = read_header<wire::Welcome>(message.header());
  if (!header || header->magic() != kMagic || header->token() == 0) {
    client_->break_off(
        Error(Code::unsupported,
              format("the connection to {}: the peer is not Freshet, or is of another version of Freshet", address_)));
  } else if (Status listener = check_server(); !listener) {
    client_->break_off(listener.error());
  } else if (!is_open()) {
    server_token_ = header->token();
    client_->heard();
    for (auto& [request, data] : std::exchange(waiting_, {})) post(MessageId::fetch, request, std::move(data));
  }
}

void UcxConnection::take_chunk(const Incoming& message) {
  const auto header = read_header<wire::Chunk>(message.header());
  if (!header || header->token() != own_token_) return worker_->drop(message);
  const Chunk chunk{.piece = header->piece(),
                    .encoding = header->encoding(),
                    .total = header->total(),
                    .offset = header->offset(),
                    .chunk_bytes = header->chunk_bytes()};
  if (!message.rendezvous) return client_->take_chunk(header->request(), chunk, message.payload);
  const auto memory = client_->place(header->request(), chunk, message.length);
  if (!memory) return worker_->drop(message);
  receive(message, *memory,
          std::make_unique<Receive>(
              Receive{.request = header->request(), .chunk = chunk, .length = message.length, .bounce = {}}));
}

void UcxConnection::take_batch(const Incoming& message) {
  const auto header = read_header<wire::Batch>(message.header());
  const bool is_ours = header && header->token() == own_token_ && client_->is_running(header->request());
  // A batch by rendezvous is told from a chunk by its bytes.
  if (!is_ours || message.length == 0 || message.length > kBatchBytesMax) return worker_->drop(message);
  if (!message.rendezvous) return client_->take_batch(header->request(), header->answers(), message.payload);
  auto receive = std::make_unique<Receive>();
  receive->request = header->request();
  receive->answers = header->answers();
  receive->bounce.resize(message.length);
  const MutableBytes to = receive->bounce;
  this->receive(message, to, std::move(receive));
}

void UcxConnection::receive(const Incoming& message, MutableBytes to, std::unique_ptr<Receive> receive) {
  receive->connection = this;
  Receive* const kept = receive.get();
  receives_.push_back(std::move(receive));
  const ucs_status_ptr_t request = worker_->receive(message, to, &UcxConnection::on_received, kept);
  if (UCS_PTR_IS_PTR(request)) return;
  kept->status = UCS_PTR_RAW_STATUS(request);
  received_.push_back(kept);
}

void UcxConnection::on_received(void* request, ucs_status_t status, std::size_t, void* argument) {
  Receive& receive = *static_cast<Receive*>(argument);
  receive.status = status;
  receive.connection->received_.push_back(&receive);
  receive.connection->worker_->ucx().ucp_request_free(request);
}

bool UcxConnection::settle_receives() {
  const auto received = std::exchange(received_, {});
  for (const Receive* receive : received) {
    client_->heard();
    Status status;
    if (receive->status != UCS_OK) {
      const Error why = error_from(worker_->ucx(), receive->status, format("receive from {}", address_));
      status = fail(Code::unavailable, why.message());
    }
    if (receive->bounce.empty()) {
      client_->arrived(receive->request, receive->chunk, receive->length, status);
    } else if (status) {
      client_->take_batch(receive->request, receive->answers, receive->bounce);
    } else {
      client_->lost(receive->request, status.error());
    }
    std::erase_if(receives_, [&](const auto& kept) { return kept.get() == receive; });
  }
  return !received.empty();
}

void UcxConnection::post(MessageId id, std::uint64_t request, std::vector<std::byte> data) {
  std::erase_if(sends_, [](const auto& send) { return send->done; });
  auto send = std::make_unique<Send>();
  send->connection = this;
  send->data = std::move(data);
  const wire::ToServer header(server_token_, own_token_, request);
  std::memcpy(send->header.data(), &header, sizeof header);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxConnection::on_sent;
  param.user_data = send.get();
  const ucs_status_ptr_t sending =
      worker_->ucx().ucp_am_send_nbx(endpoint_, static_cast<unsigned>(id), send->header.data(), sizeof header,
                                     send->data.data(), send->data.size(), &param);
  // A send that failed needs no answer of its own: UCX tells of the broken connection.
  if (UCS_PTR_IS_PTR(sending)) sends_.push_back(std::move(send));
}

void UcxConnection::on_sent(void* request, ucs_status_t, void* argument) {
  Send& send = *static_cast<Send*>(argument);
  send.done = true;
  send.connection->worker_->ucx().ucp_request_free(request);
}

}  // namespace
}  // namespace ucx

Result<std::unique_ptr<ChannelClient>> open_ucx_client(const std::string& text, const UcxClientOptions& options) {
  FRESHET_ASSIGN(const ucx::Address address, ucx::parse_address(text, /*any_port=*/false));
  FRESHET_TRY(ucx::check_trusted(address, text, options.trusted_fabric));
  auto connection = std::make_unique<ucx::UcxConnection>(text, options.believed);
  FRESHET_TRY(connection->start(address));
  const int descriptor = connection->worker_descriptor();
  return Client::open(std::move(connection), {.kind = ChannelKind::ucx,
                                              .address = text,
                                              .rules = {.channel = "ucx",
                                                        .traits = traits_of(ChannelKind::ucx),
                                                        .chunk_bytes_min = ucx::kChunkBytesMin,
                                                        .chunk_bytes_max = ucx::kChunkBytesMax},
                                              .idle_rounds = ucx::kClientIdleRounds,
                                              .descriptors = {descriptor}});
}

}  // namespace freshet::channel
