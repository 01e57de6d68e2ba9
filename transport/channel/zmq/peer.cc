// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/zmq/peer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"

namespace freshet::channel::zmq_channel {
namespace {

/// Replies that wait for credit. Whoever makes more does not read them.
constexpr std::size_t kRepliesMax = 64;

std::vector<std::byte> message_of(const Frame& frame, std::string_view text = {}) {
  std::vector<std::byte> message(sizeof frame + text.size());
  std::memcpy(message.data(), &frame, sizeof frame);
  if (!text.empty()) std::memcpy(message.data() + sizeof frame, text.data(), text.size());
  return message;
}

}  // namespace

Status Peer::take(const Frame& frame, Bytes data, Time now) {
  heard_ = now;
  switch (static_cast<Kind>(frame.kind())) {
    case Kind::fetch: return take_fetch(frame, data);
    case Kind::cancel: cancel(frame.request()); break;
    case Kind::credit:
      if (frame.total() > unpaid_) return fail(Code::corrupt, "a credit for more than was sent");
      unpaid_ -= frame.total();
      break;
    case Kind::ping: replies_.push_back(message_of(frame_of(Kind::pong))); break;
    default: return fail(Code::corrupt, format("a message of kind {}", frame.kind()));
  }
  if (replies_.size() > kRepliesMax) return fail(Code::corrupt, "it does not read its answers");
  return {};
}

Status Peer::take_fetch(const Frame& frame, Bytes data) {
  if (replies_.size() >= kRepliesMax) return fail(Code::corrupt, "it does not read its answers");
  if (std::any_of(fetches_.begin(), fetches_.end(),
                  [&](const auto& fetch) { return fetch->request.request == frame.request(); })) {
    return fail(Code::corrupt, format("request {} twice", frame.request()));
  }
  if (fetches_.size() >= kRequestsInFlightMax) {
    refuse(frame.request(), Error(Code::out_of_space, format("more than {} requests at once", kRequestsInFlightMax)));
    return {};
  }
  auto request = decode_fetch(data);
  if (request && request->request != frame.request()) request = fail(Code::corrupt, "fetch request: two numbers");
  if (!request) {
    refuse(frame.request(), request.error());
    return {};
  }
  auto open = context_.source.open(*request);
  if (!open) {
    refuse(frame.request(), open.error());
    return {};
  }
  context_.counters.requests.fetch_add(1, std::memory_order_relaxed);
  auto fetch = std::make_unique<Fetching>();
  fetch->request = std::move(*request);
  fetch->open = std::move(*open);
  fetches_.push_back(std::move(fetch));
  return {};
}

void Peer::cancel(std::uint64_t request) {
  end(request);
  // Always answered: until then the client takes what comes under this number for late.
  const auto code = static_cast<std::uint32_t>(Code::cancelled);
  replies_.push_back(message_of(frame_of(Kind::ended, request, 0, 0, 0, code)));
}

void Peer::refuse(std::uint64_t request, const Error& error) {
  context_.counters.refused.fetch_add(1, std::memory_order_relaxed);
  replies_.push_back(message_of(frame_of(Kind::ended, request, 0, 0, 0, static_cast<std::uint32_t>(error.code())),
                                std::string_view(error.message()).substr(0, kErrorTextBytesMax)));
}

void Peer::end(std::uint64_t request) {
  std::erase_if(fetches_, [&](const auto& fetch) { return fetch->request.request == request; });
}

bool Peer::fetches_for(protocol::SessionId session) const {
  return std::any_of(fetches_.begin(), fetches_.end(),
                     [&](const auto& fetch) { return fetch->request.session == session; });
}

bool Peer::has_credit(std::size_t bytes) const { return unpaid_ == 0 || unpaid_ + cost_of(bytes) <= window_; }

std::size_t Peer::fill(MutableBytes room) {
  std::size_t bytes = 0;
  if (replies_.empty() && has_credit(room.size())) bytes = fill_answers(room);
  // Making an answer may have failed, which is a reply.
  if (bytes == 0 && !replies_.empty() && has_credit(replies_.front().size())) {
    bytes = replies_.front().size();
    std::memcpy(room.data(), replies_.front().data(), bytes);
    replies_.pop_front();
  }
  if (bytes != 0) unpaid_ += cost_of(bytes);
  return bytes;
}

std::size_t Peer::fill_answers(MutableBytes room) {
  Fetching* const fetch = sendable();
  if (fetch == nullptr) return 0;
  const std::size_t bytes = is_small(*fetch) ? fill_batch(*fetch, room) : fill_chunk(*fetch, room);
  const bool running =
      std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& one) { return one.get() == fetch; });
  if (running && !fetch->has_answer && fetch->next == fetch->request.pieces.size()) end(fetch->request.request);
  return bytes;
}

Peer::Fetching* Peer::sendable() {
  for (std::size_t i = 0; i < fetches_.size();) {
    Fetching& fetch = *fetches_[i];
    Result<std::uint64_t> bytes = 0;
    if (!fetch.has_answer) {
      const Result<bool> can = fetch.open->can_answer(fetch.next);
      if (!can) bytes = fail(can.error());
      if (can && *can && !next_answer(fetch)) continue;  // It was ended.
    }
    if (fetch.has_answer) bytes = sendable_bytes(fetch);
    if (!bytes) {
      refuse(fetch.request.request, bytes.error());
      end(fetch.request.request);
      continue;
    }
    if (fetch.has_answer && (*bytes > 0 || fetch.answer.bytes.empty())) return &fetch;
    ++i;
  }
  return nullptr;
}

/// A chunk is not sent before it is there in full.
Result<std::uint64_t> Peer::sendable_bytes(const Fetching& fetch) const {
  const std::uint64_t chunk = std::min<std::uint64_t>(context_.chunk_bytes, fetch.answer.bytes.size() - fetch.offset);
  if (fetch.answer.coming == nullptr) return chunk;
  FRESHET_ASSIGN(const std::uint64_t there, fetch.answer.coming->bytes_there());
  return there >= fetch.offset + chunk ? chunk : 0;
}

bool Peer::next_answer(Fetching& fetch) {
  fetch.piece = fetch.next;
  const std::uint64_t wanted = fetch.request.pieces[fetch.piece].bytes;
  auto answer = fetch.open->answer(fetch.piece);
  if (answer &&
      (answer->encoding == Encoding::dense ? answer->bytes.size() != wanted : answer->bytes.size() > wanted)) {
    answer = fail(Code::io_error, format("its answer has {} bytes, asked for {}", answer->bytes.size(), wanted));
  }
  if (answer) {
    fetch.answer = *answer;
    fetch.offset = 0;
    fetch.has_answer = true;
    ++fetch.next;
    return true;
  }
  refuse(fetch.request.request,
         std::move(answer).error().with_context(format("piece {} of version {}", fetch.piece, fetch.request.version)));
  end(fetch.request.request);
  return false;
}

bool Peer::is_small(const Fetching& fetch) const {
  const std::uint64_t bytes = fetch.answer.bytes.size();
  return bytes <= kSmallAnswerBytes && bytes + sizeof(Answer) <= context_.chunk_bytes;
}

std::size_t Peer::fill_chunk(Fetching& fetch, MutableBytes room) {
  const std::uint64_t total = fetch.answer.bytes.size();
  const std::uint64_t bytes = std::min(context_.chunk_bytes, total - fetch.offset);
  const Frame frame =
      frame_of(Kind::chunk, fetch.request.request, total, fetch.offset, static_cast<std::uint32_t>(fetch.piece),
               static_cast<std::uint32_t>(fetch.answer.encoding));
  std::memcpy(room.data(), &frame, sizeof frame);
  if (bytes > 0) std::memcpy(room.data() + sizeof frame, fetch.answer.bytes.data() + fetch.offset, bytes);
  fetch.offset += bytes;
  fetch.open->sent(bytes);
  if (fetch.offset == total) {
    fetch.has_answer = false;
    fetch.open->release(fetch.piece);
  }
  context_.counters.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  return sizeof frame + bytes;
}

std::size_t Peer::fill_batch(Fetching& fetch, MutableBytes room) {
  std::size_t at = sizeof(Frame);
  std::uint32_t answers = 0;
  const std::uint64_t request = fetch.request.request;
  for (;;) {
    const Bytes bytes = fetch.answer.bytes;
    const Answer head(static_cast<std::uint32_t>(fetch.piece), static_cast<std::uint32_t>(fetch.answer.encoding),
                      static_cast<std::uint32_t>(bytes.size()));
    std::memcpy(room.data() + at, &head, sizeof head);
    if (!bytes.empty()) std::memcpy(room.data() + at + sizeof head, bytes.data(), bytes.size());
    at += sizeof head + bytes.size();
    context_.counters.bytes_sent.fetch_add(bytes.size(), std::memory_order_relaxed);
    fetch.open->sent(bytes.size());
    fetch.open->release(fetch.piece);
    fetch.has_answer = false;
    if (++answers == kBatchAnswersMax || fetch.next == fetch.request.pieces.size()) break;
    // What can go now does not wait for what is still coming; sendable() tells what fails.
    const Result<bool> can = fetch.open->can_answer(fetch.next);
    if (!can || !*can || !next_answer(fetch)) break;
    const Result<std::uint64_t> there = sendable_bytes(fetch);
    if (!there || (*there == 0 && !fetch.answer.bytes.empty())) break;
    if (!is_small(fetch) || at + sizeof head + fetch.answer.bytes.size() > room.size()) break;
  }
  const Frame frame = frame_of(Kind::batch, request, 0, 0, 0, answers);
  std::memcpy(room.data(), &frame, sizeof frame);
  return at;
}

}  // namespace freshet::channel::zmq_channel
