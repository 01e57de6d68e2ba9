// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/request_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "transport/channel/fetch_generated.h"

namespace freshet::channel {
namespace {

/// Endings that wait to be told. A client that makes more does not read them.
constexpr std::size_t kEndedMax = 64;
/// A delta of a larger piece is made beside the server's thread.
constexpr std::uint64_t kQuickDeltaBytes = 256 << 10;

bool takes_a_while(const Piece& piece) { return piece.base.has_value() && piece.bytes > kQuickDeltaBytes; }

}  // namespace

Status RequestQueue::take_fetch(std::uint64_t request, Bytes bytes) {
  if (std::ranges::any_of(fetches_,
                          [&](const auto& fetch) { return !fetch->over && fetch->request.request == request; })) {
    return fail(Code::corrupt, format("request {} twice", request));
  }
  if (ended_.size() >= kEndedMax) return fail(Code::corrupt, "the peer does not read its answers");
  if (is_full()) {
    refuse(request, Error(Code::out_of_space, format("more than {} requests at once", kRequestsInFlightMax)));
  } else if (const Status opened = open(request, bytes); !opened) {
    refuse(request, opened.error());
  }
  return {};
}

Status RequestQueue::open(std::uint64_t request, Bytes bytes) {
  auto fetch = std::make_shared<Fetching>();
  FRESHET_ASSIGN(fetch->request, decode_fetch(bytes));
  if (fetch->request.request != request) return fail(Code::corrupt, "fetch request: two numbers");
  FRESHET_ASSIGN(fetch->open, service_.source.open(fetch->request));
  service_.requests.fetch_add(1, std::memory_order_relaxed);
  fetches_.push_back(std::move(fetch));
  return {};
}

Status RequestQueue::cancel(std::uint64_t request) {
  for (const auto& fetch : fetches_) fetch->over = fetch->over || fetch->request.request == request;
  sweep();
  if (!facts_.answers_cancels) return {};
  if (ended_.size() >= kEndedMax) return fail(Code::corrupt, "the peer does not read its answers");
  tell_ended(request, Code::cancelled, {});
  return {};
}

void RequestQueue::refuse(std::uint64_t request, const Error& error) {
  service_.refused.fetch_add(1, std::memory_order_relaxed);
  tell_ended(request, error.code(), error.message());
}

void RequestQueue::tell_ended(std::uint64_t request, Code code, std::string_view text) {
  ended_.push_back({.request = request, .code = code, .text = std::string(text.substr(0, kErrorTextBytesMax))});
}

bool RequestQueue::fetches_for(protocol::SessionId session) const {
  return std::ranges::any_of(fetches_, [&](const auto& fetch) { return fetch->request.session == session; });
}

void RequestQueue::end_all() {
  for (const auto& fetch : fetches_) fetch->over = true;
  ended_.clear();
  pong_wanted_ = false;
  sweep();
}

void RequestQueue::sweep() {
  std::erase_if(fetches_, [](const auto& fetch) {
    return fetch->in_flight == 0 && (fetch->over || (fetch->is_last() && !fetch->has_answer));
  });
}

std::optional<RequestQueue::Part> RequestQueue::next(MutableBytes room) {
  while (const std::shared_ptr<Fetching> fetch = sendable()) {
    if (!fetch->has_answer && !next_answer(fetch)) continue;
    // What can be answered may have no bytes yet; sendable() tells what fails.
    if (!can_go_on(*fetch).value_or(false)) continue;
    Part part = fetch->offset == 0 && fits(*fetch, room.size()) ? next_batch(fetch, room) : next_chunk(*fetch);
    part.fetch = fetch.get();
    part.request = fetch->request.request;
    ++fetch->in_flight;
    return part;
  }
  sweep();
  return std::nullopt;
}

void RequestQueue::done(const Part& part, bool sent) {
  Fetching& fetch = *part.fetch;
  --fetch.in_flight;
  if (sent) {
    service_.bytes_sent.fetch_add(part.payload, std::memory_order_relaxed);
    fetch.open->sent(part.payload);
  }
  if (part.answers == 0) {
    const auto known = std::ranges::find(fetch.sent, std::size_t{part.chunk.piece}, &Sent::piece);
    if (--known->chunks == 0 && known->all) {
      release(fetch, known->piece);
      fetch.sent.erase(known);
    }
  }
  sweep();
}

std::shared_ptr<RequestQueue::Fetching> RequestQueue::sendable() {
  for (const auto& fetch : fetches_) {
    if (fetch->over || !(fetch->has_answer || (!fetch->is_last() && !fetch->is_being_answered()))) continue;
    const Result<bool> can = can_go_on(*fetch);
    if (can && *can) return fetch;
    if (can) continue;
    fetch->over = true;
    refuse(fetch->request.request, can.error());
  }
  return nullptr;
}

/// A chunk is not sent before it is there in full.
Result<bool> RequestQueue::can_go_on(const Fetching& fetch) const {
  if (!fetch.has_answer) return fetch.asked ? true : fetch.open->can_answer(fetch.next);
  if (fetch.answer.coming == nullptr) return true;
  const std::uint64_t left = fetch.answer.bytes.size() - fetch.offset;
  FRESHET_ASSIGN(const std::uint64_t there, fetch.answer.coming->bytes_there());
  return there >= fetch.offset + std::min(facts_.chunk_bytes, left);
}

bool RequestQueue::next_answer(const std::shared_ptr<Fetching>& fetch) {
  if (!fetch->asked) {
    if (!takes_a_while(fetch->request.pieces[fetch->next])) return take_answer(fetch, fetch->open->answer(fetch->next));
    ask(fetch);
    return false;
  }
  if (fetch->is_being_answered()) return false;
  fetch->asked = false;
  for (const std::size_t piece : std::exchange(fetch->to_release, {})) fetch->open->release(piece);
  return take_answer(fetch, std::move(fetch->job.answer));
}

void RequestQueue::ask(const std::shared_ptr<Fetching>& fetch) {
  fetch->asked = true;
  fetch->job.open = fetch->open.get();
  fetch->job.piece = fetch->next;
  service_.answerer.submit(std::shared_ptr<Answerer::Job>(fetch, &fetch->job));
}

void RequestQueue::release(Fetching& fetch, std::size_t piece) {
  if (fetch.asked) {
    fetch.to_release.push_back(piece);
  } else {
    fetch.open->release(piece);
  }
}

bool RequestQueue::take_answer(const std::shared_ptr<Fetching>& fetch, Result<OpenFetch::Answer> answer) {
  fetch->piece = fetch->next;
  const std::uint64_t wanted = fetch->request.pieces[fetch->piece].bytes;
  if (answer &&
      (answer->encoding == Encoding::dense ? answer->bytes.size() != wanted : answer->bytes.size() > wanted)) {
    answer = fail(Code::io_error, format("its answer has {} bytes, asked for {}", answer->bytes.size(), wanted));
  }
  if (answer && !facts_.traits.takes(answer->memory)) {
    answer = fail(Code::unsupported,
                  format("the channel cannot send from memory of kind {}", static_cast<unsigned>(answer->memory)));
  }
  if (!answer) {
    fetch->over = true;
    refuse(fetch->request.request, std::move(answer).error().with_context(
                                       format("piece {} of version {}", fetch->piece, fetch->request.version)));
    return false;
  }
  fetch->answer = *std::move(answer);
  fetch->offset = 0;
  fetch->has_answer = true;
  ++fetch->next;
  // While this one is sent, the next is made.
  if (fetch->is_last() || !takes_a_while(fetch->request.pieces[fetch->next])) return true;
  if (const Result<bool> can = fetch->open->can_answer(fetch->next); can && *can) ask(fetch);
  return true;
}

bool RequestQueue::fits(const Fetching& fetch, std::size_t room) const {
  const std::uint64_t bytes = fetch.answer.bytes.size();
  return bytes <= facts_.small_bytes && bytes + sizeof(wire::Answer) <= room;
}

RequestQueue::Part RequestQueue::next_chunk(Fetching& fetch) const {
  const std::uint64_t total = fetch.answer.bytes.size();
  const Bytes bytes = fetch.answer.bytes.subspan(fetch.offset, std::min(facts_.chunk_bytes, total - fetch.offset));
  const Part part{.chunk = {.piece = static_cast<std::uint32_t>(fetch.piece),
                            .encoding = static_cast<std::uint32_t>(fetch.answer.encoding),
                            .total = total,
                            .offset = fetch.offset,
                            .chunk_bytes = facts_.chunk_bytes},
                  .version = fetch.request.version,
                  .tensor = fetch.request.pieces[fetch.piece].tensor,
                  .bytes = bytes,
                  .payload = bytes.size()};
  fetch.offset += bytes.size();
  fetch.has_answer = fetch.offset != total;
  auto known = std::ranges::find(fetch.sent, fetch.piece, &Sent::piece);
  if (known == fetch.sent.end()) known = fetch.sent.insert(known, {.piece = fetch.piece});
  ++known->chunks;
  known->all = !fetch.has_answer;
  return part;
}

RequestQueue::Part RequestQueue::next_batch(const std::shared_ptr<Fetching>& fetch, MutableBytes room) {
  Part part;
  std::size_t at = 0;
  for (;;) {
    const Bytes bytes = fetch->answer.bytes;
    const wire::Answer head(static_cast<std::uint32_t>(fetch->piece),
                            static_cast<std::uint32_t>(fetch->answer.encoding),
                            static_cast<std::uint32_t>(bytes.size()));
    std::memcpy(room.data() + at, &head, sizeof head);
    if (!bytes.empty()) std::memcpy(room.data() + at + sizeof head, bytes.data(), bytes.size());
    at += sizeof head + bytes.size();
    part.payload += bytes.size();
    release(*fetch, fetch->piece);
    fetch->has_answer = false;
    if (++part.answers == kBatchAnswersMax || fetch->is_last() || fetch->is_being_answered()) break;
    // What can go now does not wait for what is still coming; sendable() tells what fails.
    if (!can_go_on(*fetch).value_or(false) || !next_answer(fetch) || !can_go_on(*fetch).value_or(false)) break;
    if (!fits(*fetch, room.size() - at)) break;
  }
  part.bytes = room.first(at);
  return part;
}

}  // namespace freshet::channel
