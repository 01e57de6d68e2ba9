// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/peer.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/format.h"

namespace freshet::channel::ucx {
namespace {

/// Messages on their way to one peer. One that makes more does not read its answers.
constexpr std::size_t kSendsMax = 2048;
constexpr std::size_t kUcxRequestBytesMax = kPiecesMax * 64 + 1024;

}  // namespace

Peer::Peer(Worker& worker, Service& service, const UcxServerOptions& options, std::uint64_t token, Time now)
    : worker_(worker),
      options_(options),
      token_(token),
      queue_(
          service,
          {.chunk_bytes = options.chunk_bytes, .small_bytes = kSmallAnswerBytes, .traits = traits_of(ChannelKind::ucx)},
          now) {}

Status Peer::accept(ucp_conn_request_h connection) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.conn_request = connection;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Peer::on_endpoint_error;
  params.err_handler.arg = this;
  const Library& ucx = worker_.ucx();
  if (const ucs_status_t status = ucx.ucp_ep_create(worker_.handle(), &params, &endpoint_); status != UCS_OK) {
    return fail(error_from(ucx, status, "accept a UCX connection"));
  }
  post(take_send(), MessageId::welcome, wire::Welcome(kMagic, token_), {});
  return {};
}

void Peer::on_endpoint_error(void* argument, ucp_ep_h, ucs_status_t) { static_cast<Peer*>(argument)->failed_ = true; }

void Peer::on_message(const Incoming& message, const wire::ToServer& header, Time now) {
  queue_.hear(now);
  const bool known = reply_token_ == 0 || reply_token_ == header.reply_token();
  if (closing_ || !known || header.reply_token() == 0) return worker_.drop(message);
  reply_token_ = header.reply_token();
  if (message.id == MessageId::fetch) {
    take_fetch(message, header);
  } else {
    worker_.drop(message);
    if (message.id == MessageId::cancel && !queue_.cancel(header.request())) failed_ = true;
    if (message.id == MessageId::ping) queue_.ping();
  }
  tell();
}

void Peer::take_fetch(const Incoming& message, const wire::ToServer& header) {
  if (message.length > kUcxRequestBytesMax || sends_.size() > kSendsMax) {
    worker_.drop(message);
    failed_ = true;
    return;
  }
  if (!message.rendezvous) return take_request(header.request(), message.payload);
  if (queue_.is_full(receives_.size())) {
    worker_.drop(message);
    return queue_.refuse(header.request(), Error(Code::out_of_space, "more requests than may be received at once"));
  }
  receives_.push_back(std::make_unique<Receive>(
      Receive{.peer = this, .request = header.request(), .bytes = std::vector<std::byte>(message.length)}));
  Receive& receive = *receives_.back();
  queue_.count_message();
  const ucs_status_ptr_t request = worker_.receive(message, receive.bytes, &Peer::on_received, &receive);
  if (UCS_PTR_IS_PTR(request)) return;
  receive.status = UCS_PTR_RAW_STATUS(request);
  received_.push_back(&receive);
}

void Peer::take_request(std::uint64_t request, Bytes bytes) {
  if (!queue_.take_fetch(request, bytes)) failed_ = true;
}

void Peer::on_received(void* request, ucs_status_t status, std::size_t, void* argument) {
  Receive& receive = *static_cast<Receive*>(argument);
  receive.status = status;
  receive.peer->received_.push_back(&receive);
  receive.peer->worker_.ucx().ucp_request_free(request);
}

void Peer::tell() {
  for (const auto* ended = queue_.next_ended(); ended != nullptr && !closing_; ended = queue_.next_ended()) {
    Send& send = take_send();
    send.text = ended->text;
    post(send, MessageId::ended,
         wire::Ended(reply_token_, ended->request, static_cast<std::uint32_t>(ended->code), /*reserved=*/0),
         std::as_bytes(std::span(send.text)));
    queue_.told_ended();
  }
  // One answers all pings that came meanwhile.
  if (!queue_.is_pong_wanted() || closing_) return;
  queue_.told_pong();
  if (std::exchange(pong_in_flight_, true)) return;
  Send& send = take_send();
  send.is_pong = true;
  post(send, MessageId::pong, wire::Pong(reply_token_), {});
}

void Peer::close() {
  if (std::exchange(closing_, true)) return;
  queue_.end_all();
  if (endpoint_ != nullptr) close_request_ = worker_.close_by_force(std::exchange(endpoint_, nullptr));
}

bool Peer::settle(Time now) {
  if (failed_) close();
  bool did = !completed_.empty() || !received_.empty();
  if (!completed_.empty()) queue_.hear(now);
  for (Send* send : std::exchange(completed_, {})) {
    queue_.uncount_message();
    if (send->is_pong) pong_in_flight_ = false;
    if (send->part.fetch != nullptr) {
      --answers_in_flight_;
      queue_.done(send->part, send->status == UCS_OK);
    }
    idle_sends_.push_back(send);
  }
  for (Receive* receive : std::exchange(received_, {})) {
    queue_.uncount_message();
    const auto kept = std::ranges::find(receives_, receive, &std::unique_ptr<Receive>::get);
    const std::unique_ptr<Receive> taken = std::move(*kept);
    receives_.erase(kept);
    if (taken->status == UCS_OK && !closing_) take_request(taken->request, taken->bytes);
  }
  if (closing_ && close_request_ != nullptr && worker_.closed(close_request_)) {
    close_request_ = nullptr;
    did = true;
  }
  return did;
}

bool Peer::send() {
  bool did = false;
  while (!closing_ && !queue_.is_empty() && answers_in_flight_ < options_.sends_in_flight) {
    Send& send = take_send();
    const auto part = queue_.next(room_of(send));
    if (!part) {
      idle_sends_.push_back(&send);
      break;
    }
    send.part = *part;
    send_part(send);
    did = true;
  }
  if (!closing_) tell();
  return did;
}

void Peer::send_part(Send& send) {
  const RequestQueue::Part& part = send.part;
  ++answers_in_flight_;
  if (part.answers != 0) {
    return post(send, MessageId::batch, wire::Batch(reply_token_, part.request, part.answers, /*reserved=*/0),
                part.bytes);
  }
  const Chunk& chunk = part.chunk;
  post(send, MessageId::chunk,
       wire::Chunk(reply_token_, part.request, chunk.total, chunk.offset, chunk.piece, chunk.encoding,
                   static_cast<std::uint32_t>(chunk.chunk_bytes), /*reserved=*/0),
       part.bytes);
}

MutableBytes Peer::room_of(Send& send) const {
  const std::size_t bytes = std::min(kBatchBytes, options_.chunk_bytes) + sizeof(channel::wire::Answer);
  // Not value-initialised: what is sent of it is written first.
  if (send.room == nullptr) send.room.reset(new std::byte[bytes]);
  return {send.room.get(), bytes};
}

Peer::Send& Peer::take_send() {
  if (idle_sends_.empty()) {
    sends_.push_back(std::make_unique<Send>());
    idle_sends_.push_back(sends_.back().get());
  }
  Send& send = *idle_sends_.back();
  idle_sends_.pop_back();
  send.peer = this;
  send.part = {};
  send.is_pong = false;
  send.status = UCS_OK;
  return send;
}

void Peer::on_sent(void* request, ucs_status_t status, void* argument) {
  Send& send = *static_cast<Send*>(argument);
  send.status = status;
  send.peer->completed_.push_back(&send);
  send.peer->worker_.ucx().ucp_request_free(request);
}

template <typename Header>
void Peer::post(Send& send, MessageId id, const Header& header, Bytes data) {
  static_assert(sizeof(Header) <= kHeaderBytesMax);
  std::memcpy(send.header.data(), &header, sizeof header);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &Peer::on_sent;
  param.user_data = &send;
  const bool by_rendezvous = options_.rendezvous == UcxRendezvous::always && data.size() > kSmallAnswerBytes;
  param.flags = by_rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  queue_.count_message();
  const ucs_status_ptr_t request = worker_.ucx().ucp_am_send_nbx(
      endpoint_, static_cast<unsigned>(id), send.header.data(), sizeof header, data.data(), data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  send.status = UCS_PTR_RAW_STATUS(request);
  completed_.push_back(&send);
}

}  // namespace freshet::channel::ucx
