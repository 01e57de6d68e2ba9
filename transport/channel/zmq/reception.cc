// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/zmq/reception.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"

namespace freshet::channel::zmq_channel {

Reception::Reception(FetchRequest request, FetchSink& sink)
    : request_(std::move(request)), sink_(sink), begun_(request_.pieces.size()), pieces_left_(request_.pieces.size()) {}

tl::unexpected<Error> Reception::lie(std::string_view what) {
  lied_to_ = true;
  return fail(Code::corrupt, format("the zmq server's answer to request {}: {}", request_.request, what));
}

Status Reception::check_answer(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total) {
  if (piece >= request_.pieces.size()) return lie(format("piece {} was not requested", piece));
  if (begun_[piece]) return lie(format("piece {} comes twice", piece));
  const Piece& wanted = request_.pieces[piece];
  const bool is_delta = encoding == static_cast<std::uint32_t>(Encoding::delta);
  if (!is_delta && encoding != static_cast<std::uint32_t>(Encoding::dense)) return lie("an unknown encoding");
  if (is_delta && !wanted.base) return lie(format("a delta for piece {}, which named no base", piece));
  if (is_delta ? total > wanted.bytes : total != wanted.bytes) {
    return lie(format("{} bytes for piece {} of {}", total, piece, wanted.bytes));
  }
  return {};
}

Result<MutableBytes> Reception::begin(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total) {
  FRESHET_TRY(check_answer(piece, encoding, total));
  begun_[piece] = true;
  FRESHET_ASSIGN(const MutableBytes memory,
                 sink_.place(request_.request, piece, static_cast<Encoding>(encoding), total));
  if (memory.size() == total) return memory;
  return fail(Code::invalid_argument, format("the sink has {} bytes for piece {} of {}", memory.size(), piece, total));
}

Status Reception::take_chunk(const Frame& frame, Bytes data) {
  if (data.empty() || data.size() > kChunkBytesMax) return lie(format("a chunk of {} bytes", data.size()));
  if (!coming_) {
    if (frame.offset() != 0) return lie("an answer that begins in its middle");
    FRESHET_ASSIGN(memory_, begin(frame.piece(), frame.detail(), frame.total()));
    coming_ = true;
    piece_ = frame.piece();
    encoding_ = frame.detail();
    there_ = 0;
  }
  if (frame.piece() != piece_ || frame.detail() != encoding_ || frame.total() != memory_.size()) {
    return lie(format("piece {} changes while it comes", piece_));
  }
  if (frame.offset() != there_ || data.size() > memory_.size() - there_) {
    return lie(format("{} bytes at {} of {}, where {} came", data.size(), frame.offset(), memory_.size(), there_));
  }
  if (!data.empty()) std::memcpy(memory_.data() + there_, data.data(), data.size());
  there_ += data.size();
  bytes_ += data.size();
  sink_.on_bytes(request_.request, piece_, there_);
  if (there_ != memory_.size()) return {};
  coming_ = false;
  finish(piece_);
  return {};
}

Status Reception::take_batch(const Frame& frame, Bytes data) {
  const std::size_t answers = frame.detail();
  if (answers == 0 || answers > kBatchAnswersMax || coming_) return lie(format("a batch of {} answers", answers));
  for (std::size_t i = 0; i < answers; ++i) {
    Answer answer;
    if (data.size() < sizeof answer) return lie("a batch that ends in the middle of an answer");
    std::memcpy(static_cast<void*>(&answer), data.data(), sizeof answer);
    data = data.subspan(sizeof answer);
    if (answer.bytes() > data.size()) return lie("a batch that ends in the middle of an answer");
    FRESHET_ASSIGN(const MutableBytes memory, begin(answer.piece(), answer.encoding(), answer.bytes()));
    std::copy_n(data.begin(), answer.bytes(), memory.begin());
    data = data.subspan(answer.bytes());
    bytes_ += answer.bytes();
    sink_.on_bytes(request_.request, answer.piece(), answer.bytes());
    finish(answer.piece());
  }
  if (!data.empty()) return lie("a batch with bytes of nothing");
  return {};
}

void Reception::finish(std::uint32_t piece) {
  --pieces_left_;
  sink_.on_piece_done(request_.request, piece);
}

}  // namespace freshet::channel::zmq_channel
