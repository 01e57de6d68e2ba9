// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/reception.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "transport/channel/fetch_generated.h"

namespace freshet::channel {

Reception::Reception(const Rules& rules, FetchRequest request, FetchSink& sink)
    : rules_(rules),
      request_(std::move(request)),
      sink_(sink),
      begun_(request_.pieces.size()),
      pieces_left_(request_.pieces.size()) {}

tl::unexpected<Error> Reception::lie(std::string_view what) {
  lied_to_ = true;
  return fail(Code::corrupt,
              format("the {} server's answer to request {}: {}", rules_.channel, request_.request, what));
}

Reception::Open* Reception::find(std::uint32_t piece) {
  const auto at = std::ranges::find(open_, piece, &Open::piece);
  return at == open_.end() ? nullptr : &*at;
}

Result<MutableBytes> Reception::begin(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total) {
  if (piece >= request_.pieces.size()) return lie(format("piece {} was not requested", piece));
  if (begun_[piece]) return lie(format("piece {} comes twice", piece));
  const Piece& wanted = request_.pieces[piece];
  const bool is_delta = encoding == static_cast<std::uint32_t>(Encoding::delta);
  if (!is_delta && encoding != static_cast<std::uint32_t>(Encoding::dense)) return lie("an unknown encoding");
  if (is_delta && !wanted.base) return lie(format("a delta for piece {}, which named no base", piece));
  if (is_delta ? total > wanted.bytes : total != wanted.bytes) {
    return lie(format("{} bytes for piece {} of {}", total, piece, wanted.bytes));
  }
  begun_[piece] = true;
  FRESHET_ASSIGN(const Place place, sink_.place(request_.request, piece, static_cast<Encoding>(encoding), total));
  if (!rules_.traits.takes(place.memory)) {
    return fail(Code::unsupported,
                format("the {} channel cannot receive into memory of kind {}, which the sink has for piece {}",
                       rules_.channel, static_cast<unsigned>(place.memory), piece));
  }
  if (place.bytes.size() == total) return place.bytes;
  return fail(Code::invalid_argument,
              format("the sink has {} bytes for piece {} of {}", place.bytes.size(), piece, total));
}

Result<Reception::Open*> Reception::open(const Chunk& chunk) {
  if (Open* const known = find(chunk.piece)) {
    if (known->memory.size() == chunk.total && known->encoding == chunk.encoding &&
        known->chunk_bytes == chunk.chunk_bytes) {
      return known;
    }
    return lie(format("piece {} changes while it comes", chunk.piece));
  }
  FRESHET_ASSIGN(const MutableBytes memory, begin(chunk.piece, chunk.encoding, chunk.total));
  open_.push_back(
      {.piece = chunk.piece, .encoding = chunk.encoding, .memory = memory, .chunk_bytes = chunk.chunk_bytes});
  return &open_.back();
}

Result<MutableBytes> Reception::place(const Chunk& chunk, std::uint64_t length) {
  return rules_.in_order ? place_next(chunk, length) : place_anywhere(chunk, length);
}

Result<MutableBytes> Reception::place_next(const Chunk& chunk, std::uint64_t length) {
  if (length == 0 || length > rules_.chunk_bytes_max) return lie(format("a chunk of {} bytes", length));
  if (!open_.empty() && open_.front().piece != chunk.piece) {
    return lie(format("piece {} changes while it comes", open_.front().piece));
  }
  if (open_.empty() && chunk.offset != 0) return lie("an answer that begins in its middle");
  FRESHET_ASSIGN(const Open* open, this->open(chunk));
  if (chunk.offset != open->prefix || length > open->memory.size() - open->prefix) {
    return lie(format("{} bytes at {} of {}, where {} came", length, chunk.offset, chunk.total, open->prefix));
  }
  return open->memory.subspan(chunk.offset, length);
}

Result<MutableBytes> Reception::place_anywhere(const Chunk& chunk, std::uint64_t length) {
  if (chunk.chunk_bytes < rules_.chunk_bytes_min || chunk.chunk_bytes > rules_.chunk_bytes_max) {
    return lie("its chunks' size");
  }
  if (chunk.offset >= chunk.total || chunk.offset % chunk.chunk_bytes != 0 ||
      length != std::min(chunk.chunk_bytes, chunk.total - chunk.offset)) {
    return lie(format("{} bytes at {} of {}", length, chunk.offset, chunk.total));
  }
  FRESHET_ASSIGN(Open * open, this->open(chunk));
  if (open->placed.empty()) {
    const std::size_t chunks = (chunk.total + chunk.chunk_bytes - 1) / chunk.chunk_bytes;
    open->placed.resize(chunks);
    open->there.resize(chunks);
  }
  const std::size_t index = chunk.offset / chunk.chunk_bytes;
  if (open->placed[index]) return lie(format("a chunk of piece {} comes twice", chunk.piece));
  open->placed[index] = true;
  return open->memory.subspan(chunk.offset, length);
}

void Reception::arrived(const Chunk& chunk, std::uint64_t length) {
  Open& open = *find(chunk.piece);
  const std::uint64_t total = open.memory.size();
  std::uint64_t prefix = open.prefix;
  if (rules_.in_order) {
    prefix += length;
  } else {
    open.there[chunk.offset / open.chunk_bytes] = true;
    while (prefix < total && open.there[prefix / open.chunk_bytes]) prefix = std::min(prefix + open.chunk_bytes, total);
  }
  if (prefix == open.prefix) return;
  bytes_ += prefix - std::exchange(open.prefix, prefix);
  sink_.on_bytes(request_.request, chunk.piece, prefix);
  if (prefix != total) return;
  std::erase_if(open_, [&](const Open& one) { return one.piece == chunk.piece; });
  finish(chunk.piece);
}

Status Reception::take_batch(std::size_t answers, Bytes data) {
  if (answers == 0 || answers > kBatchAnswersMax || (rules_.in_order && !open_.empty())) {
    return lie(format("a batch of {} answers", answers));
  }
  for (std::size_t i = 0; i < answers; ++i) {
    wire::Answer answer;
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

}  // namespace freshet::channel
