// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/peer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"

namespace freshet::channel::ucx {
namespace {

/// Requests and refusals on their way to one peer. One that makes more does not read its answers.
constexpr std::size_t kSendsMax = 2048;
constexpr std::size_t kUcxRequestBytesMax = kPiecesMax * 64 + 1024;

/// A delta of a larger piece is made beside the server's thread.
constexpr std::uint64_t kQuickDeltaBytes = 256 << 10;

bool takes_a_while(const Piece& piece) { return piece.base.has_value() && piece.bytes > kQuickDeltaBytes; }

}  // namespace

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
  heard_ = now;
  const bool known = reply_token_ == 0 || reply_token_ == header.reply_token();
  if (closing_ || !known || header.reply_token() == 0) return worker_.drop(message);
  reply_token_ = header.reply_token();
  if (message.id == MessageId::fetch) return take_fetch(message, header);
  worker_.drop(message);
  if (message.id == MessageId::cancel) cancel(header.request());
  if (message.id == MessageId::ping) pong();
}

void Peer::take_fetch(const Incoming& message, const wire::ToServer& header) {
  const bool repeated = std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& fetch) {
    return !fetch->over && fetch->request.request == header.request();
  });
  if (message.length > kUcxRequestBytesMax || repeated || sends_.size() > kSendsMax) {
    worker_.drop(message);
    failed_ = true;  // No client of ours does that.
    return;
  }
  if (fetches_.size() + receiving_ >= kRequestsInFlightMax) {
    worker_.drop(message);
    return refuse(header.request(),
                  Error(Code::out_of_space, format("more than {} requests at once", kRequestsInFlightMax)));
  }
  if (!message.rendezvous) return open_fetch(header, message.payload);
  receives_.push_back(std::make_unique<Receive>(
      Receive{.peer = this, .header = header, .bytes = std::vector<std::byte>(message.length)}));
  Receive& receive = *receives_.back();
  ++receiving_;
  const ucs_status_ptr_t request = worker_.receive(message, receive.bytes, &Peer::on_received, &receive);
  if (UCS_PTR_IS_PTR(request)) return;
  receive.status = UCS_PTR_RAW_STATUS(request);
  received_.push_back(&receive);
}

void Peer::on_received(void* request, ucs_status_t status, std::size_t, void* argument) {
  Receive& receive = *static_cast<Receive*>(argument);
  receive.status = status;
  receive.peer->received_.push_back(&receive);
  receive.peer->worker_.ucx().ucp_request_free(request);
}

void Peer::open_fetch(const wire::ToServer& header, Bytes bytes) {
  auto request = decode_fetch(bytes);
  if (request && request->request != header.request()) request = fail(Code::corrupt, "fetch request: two numbers");
  if (!request) return refuse(header.request(), request.error());
  auto open = source_.open(*request);
  if (!open) return refuse(header.request(), open.error());
  counters_.requests.fetch_add(1, std::memory_order_relaxed);
  auto fetch = std::make_unique<Fetching>();
  fetch->request = std::move(*request);
  fetch->open = std::move(*open);
  fetches_.push_back(std::move(fetch));
}

void Peer::cancel(std::uint64_t request) {
  for (const auto& fetch : fetches_) fetch->over = fetch->over || fetch->request.request == request;
}

void Peer::refuse(std::uint64_t request, const Error& error) {
  counters_.refused.fetch_add(1, std::memory_order_relaxed);
  Send& send = take_send();
  const auto* text = reinterpret_cast<const std::byte*>(error.message().data());
  send.staging.assign(text, text + std::min(error.message().size(), kErrorTextBytesMax));
  post(send, MessageId::ended,
       wire::Ended(reply_token_, request, static_cast<std::uint32_t>(error.code()), /*reserved=*/0), send.staging);
}

void Peer::pong() {
  // One answers all pings that came meanwhile.
  if (std::exchange(pong_in_flight_, true)) return;
  Send& send = take_send();
  send.is_pong = true;
  post(send, MessageId::pong, wire::Pong(reply_token_), {});
}

bool Peer::fetches_for(protocol::SessionId session) const {
  return std::any_of(fetches_.begin(), fetches_.end(),
                     [&](const auto& fetch) { return fetch->request.session == session; });
}

void Peer::close() {
  if (std::exchange(closing_, true)) return;
  for (const auto& fetch : fetches_) fetch->over = true;
  if (endpoint_ != nullptr) close_request_ = worker_.close_by_force(std::exchange(endpoint_, nullptr));
}

bool Peer::carry_on(Time now) {
  if (failed_) close();
  bool did = !completed_.empty() || !received_.empty();
  if (!completed_.empty()) heard_ = now;
  for (Send* send : std::exchange(completed_, {})) settle(*send);
  for (Receive* receive : std::exchange(received_, {})) {
    --receiving_;
    if (receive->status == UCS_OK && !closing_) open_fetch(receive->header, receive->bytes);
    std::erase_if(receives_, [&](const auto& kept) { return kept.get() == receive; });
  }
  while (!closing_ && answers_in_flight_ < options_.sends_in_flight) {
    Fetching* fetch = sendable();
    if (fetch == nullptr) break;
    send_next(*fetch);
    did = true;
  }
  sweep();
  if (closing_ && close_request_ != nullptr && worker_.closed(close_request_)) {
    close_request_ = nullptr;
    did = true;
  }
  return did;
}

void Peer::settle(Send& send) {
  --in_flight_;
  if (send.status == UCS_OK) counters_.bytes_sent.fetch_add(send.payload, std::memory_order_relaxed);
  if (send.is_pong) pong_in_flight_ = false;
  if (Fetching* fetch = send.fetch; fetch != nullptr) {
    --answers_in_flight_;
    --fetch->in_flight;
    if (send.status == UCS_OK) fetch->open->sent(send.payload);
    if (send.is_chunk) {
      Sent& sent = fetch->sent.at(send.piece);
      if (--sent.chunks == 0 && sent.all) {
        release(*fetch, send.piece);
        fetch->sent.erase(send.piece);
      }
    }
  }
  send.fetch = nullptr;
  idle_sends_.push_back(&send);
}

void Peer::sweep() {
  std::erase_if(fetches_, [](const auto& fetch) {
    const bool all_sent = fetch->next == fetch->request.pieces.size() && !fetch->has_answer;
    return fetch->in_flight == 0 && !fetch->is_being_answered() && (fetch->over || all_sent);
  });
}

Peer::Send& Peer::take_send() {
  if (idle_sends_.empty()) {
    sends_.push_back(std::make_unique<Send>());
    idle_sends_.push_back(sends_.back().get());
  }
  Send& send = *idle_sends_.back();
  idle_sends_.pop_back();
  send.peer = this;
  send.fetch = nullptr;
  send.is_chunk = false;
  send.is_pong = false;
  send.payload = 0;
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
  ++in_flight_;
  const ucs_status_ptr_t request = worker_.ucx().ucp_am_send_nbx(
      endpoint_, static_cast<unsigned>(id), send.header.data(), sizeof header, data.data(), data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  send.status = UCS_PTR_RAW_STATUS(request);
  completed_.push_back(&send);
}

Peer::Fetching* Peer::sendable() {
  for (const auto& fetch : fetches_) {
    const bool has_next = fetch->next < fetch->request.pieces.size() && !fetch->is_being_answered();
    if (fetch->over || !(fetch->has_answer || has_next)) continue;
    const Result<bool> can = can_go_on(*fetch);
    if (can && *can) return fetch.get();
    if (can) continue;
    fetch->over = true;
    refuse(fetch->request.request, can.error());
  }
  return nullptr;
}

/// A chunk is not sent before it is there in full.
Result<bool> Peer::can_go_on(const Fetching& fetch) const {
  if (!fetch.has_answer) return fetch.asked ? true : fetch.open->can_answer(fetch.next);
  if (fetch.answer.coming == nullptr) return true;
  const std::uint64_t left = fetch.answer.bytes.size() - fetch.offset;
  FRESHET_ASSIGN(const std::uint64_t there, fetch.answer.coming->bytes_there());
  return there >= fetch.offset + std::min(options_.chunk_bytes, left);
}

void Peer::send_next(Fetching& fetch) {
  if (!fetch.has_answer) {
    if (!next_answer(fetch)) return;
    // What can be answered may have no bytes yet; sendable() tells what fails.
    if (!can_go_on(fetch).value_or(false)) return;
  }
  if (fetch.offset == 0 && fetch.answer.bytes.size() <= kSmallAnswerBytes) return send_batch(fetch);
  send_chunk(fetch);
}

bool Peer::next_answer(Fetching& fetch) {
  if (!fetch.asked) {
    if (!takes_a_while(fetch.request.pieces[fetch.next])) return take_answer(fetch, fetch.open->answer(fetch.next));
    ask(fetch);
    return false;
  }
  if (fetch.is_being_answered()) return false;
  fetch.asked = false;
  for (const std::size_t piece : std::exchange(fetch.to_release, {})) fetch.open->release(piece);
  return take_answer(fetch, std::move(fetch.job.answer));
}

void Peer::ask(Fetching& fetch) {
  fetch.asked = true;
  fetch.job.open = fetch.open.get();
  fetch.job.piece = fetch.next;
  answerer_.submit(fetch.job);
}

void Peer::release(Fetching& fetch, std::size_t piece) {
  if (fetch.asked) {
    fetch.to_release.push_back(piece);
  } else {
    fetch.open->release(piece);
  }
}

bool Peer::take_answer(Fetching& fetch, Result<OpenFetch::Answer> answer) {
  fetch.piece = fetch.next;
  const std::uint64_t wanted = fetch.request.pieces[fetch.piece].bytes;
  if (answer &&
      (answer->encoding == Encoding::dense ? answer->bytes.size() != wanted : answer->bytes.size() > wanted)) {
    answer = fail(Code::io_error, format("its answer has {} bytes, asked for {}", answer->bytes.size(), wanted));
  }
  if (!answer) {
    fetch.over = true;
    refuse(fetch.request.request, std::move(answer).error().with_context(
                                      format("piece {} of version {}", fetch.piece, fetch.request.version)));
    return false;
  }
  fetch.answer = *answer;
  fetch.offset = 0;
  fetch.has_answer = true;
  ++fetch.next;
  // While this one is sent, the next is made.
  if (fetch.next == fetch.request.pieces.size() || !takes_a_while(fetch.request.pieces[fetch.next])) return true;
  if (const Result<bool> can = fetch.open->can_answer(fetch.next); can && *can) ask(fetch);
  return true;
}

void Peer::send_chunk(Fetching& fetch) {
  const std::uint64_t total = fetch.answer.bytes.size();
  const std::uint64_t bytes = std::min(options_.chunk_bytes, total - fetch.offset);
  Send& send = take_send();
  send.fetch = &fetch;
  send.piece = fetch.piece;
  send.is_chunk = true;
  send.payload = bytes;
  const wire::Chunk header(reply_token_, fetch.request.request, total, fetch.offset,
                           static_cast<std::uint32_t>(fetch.piece), static_cast<std::uint32_t>(fetch.answer.encoding),
                           static_cast<std::uint32_t>(options_.chunk_bytes), /*reserved=*/0);
  const Bytes data = fetch.answer.bytes.subspan(fetch.offset, bytes);
  fetch.offset += bytes;
  Sent& sent = fetch.sent[fetch.piece];
  ++sent.chunks;
  sent.all = fetch.offset == total;
  if (sent.all) fetch.has_answer = false;
  ++fetch.in_flight;
  ++answers_in_flight_;
  post(send, MessageId::chunk, header, data);
}

void Peer::send_batch(Fetching& fetch) {
  const std::uint64_t batch_bytes = std::min(kBatchBytes, options_.chunk_bytes);
  std::vector<wire::Answer> answers;
  std::vector<std::byte> bytes;
  while (fetch.has_answer && fetch.answer.bytes.size() <= kSmallAnswerBytes && answers.size() < kBatchAnswersMax &&
         bytes.size() + fetch.answer.bytes.size() <= batch_bytes) {
    answers.emplace_back(static_cast<std::uint32_t>(fetch.piece), static_cast<std::uint32_t>(fetch.answer.encoding),
                         static_cast<std::uint32_t>(fetch.answer.bytes.size()));
    bytes.insert(bytes.end(), fetch.answer.bytes.begin(), fetch.answer.bytes.end());
    release(fetch, fetch.piece);
    fetch.has_answer = false;
    if (fetch.next == fetch.request.pieces.size() || fetch.is_being_answered()) break;
    // What can go now does not wait for what is still coming; sendable() tells what fails.
    if (!can_go_on(fetch).value_or(false) || !next_answer(fetch) || !can_go_on(fetch).value_or(false)) break;
  }
  Send& send = take_send();
  send.fetch = &fetch;
  send.payload = bytes.size();
  const auto* table = reinterpret_cast<const std::byte*>(answers.data());
  send.staging.assign(table, table + answers.size() * sizeof(wire::Answer));
  send.staging.insert(send.staging.end(), bytes.begin(), bytes.end());
  ++fetch.in_flight;
  ++answers_in_flight_;
  post(send, MessageId::batch,
       wire::Batch(reply_token_, fetch.request.request, static_cast<std::uint32_t>(answers.size()), /*reserved=*/0),
       send.staging);
}

}  // namespace freshet::channel::ucx
