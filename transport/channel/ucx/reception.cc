// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/reception.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::channel::ucx {

Reception::Reception(FetchRequest request, FetchSink& sink)
    : request_(std::move(request)), sink_(sink), begun_(request_.pieces.size()), pieces_left_(request_.pieces.size()) {}

tl::unexpected<Error> Reception::lie(std::string_view what) {
  lied_to_ = true;
  return fail(Code::corrupt, format("the ucx server's answer to request {}: {}", request_.request, what));
}

Status Reception::check_answer(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total) {
  if (piece >= request_.pieces.size()) return lie(format("piece {} was not requested", piece));
  const Piece& wanted = request_.pieces[piece];
  const bool is_delta = encoding == static_cast<std::uint32_t>(Encoding::delta);
  if (!is_delta && encoding != static_cast<std::uint32_t>(Encoding::dense)) return lie("an unknown encoding");
  if (is_delta && !wanted.base) return lie(format("a delta for piece {}, which named no base", piece));
  if (is_delta ? total > wanted.bytes : total != wanted.bytes) {
    return lie(format("{} bytes for piece {} of {}", total, piece, wanted.bytes));
  }
  return {};
}

Result<MutableBytes> Reception::ask(std::uint32_t piece, std::uint32_t encoding, std::uint64_t total) {
  begun_[piece] = true;
  FRESHET_ASSIGN(const MutableBytes memory,
                 sink_.place(request_.request, piece, static_cast<Encoding>(encoding), total));
  if (memory.size() == total) return memory;
  return fail(Code::invalid_argument, format("the sink has {} bytes for piece {} of {}", memory.size(), piece, total));
}

Result<Reception::Open*> Reception::open(const wire::Chunk& chunk) {
  if (const auto at = open_.find(chunk.piece()); at != open_.end()) {
    const Open& open = at->second;
    if (open.memory.size() != chunk.total() || open.chunk_bytes != chunk.chunk_bytes() ||
        open.encoding != chunk.encoding()) {
      return lie(format("piece {} changes while it comes", chunk.piece()));
    }
    return &at->second;
  }
  if (begun_[chunk.piece()]) return lie(format("piece {} comes twice", chunk.piece()));
  FRESHET_ASSIGN(const MutableBytes memory, ask(chunk.piece(), chunk.encoding(), chunk.total()));
  const std::size_t chunks = (chunk.total() + chunk.chunk_bytes() - 1) / chunk.chunk_bytes();
  Open open{.memory = memory, .chunk_bytes = chunk.chunk_bytes(), .encoding = chunk.encoding(), .left = chunks};
  open.placed.resize(chunks);
  open.there.resize(chunks);
  return &open_.emplace(chunk.piece(), std::move(open)).first->second;
}

Result<MutableBytes> Reception::place(const wire::Chunk& chunk, std::uint64_t length) {
  FRESHET_TRY(check_answer(chunk.piece(), chunk.encoding(), chunk.total()));
  if (chunk.chunk_bytes() < kChunkBytesMin || chunk.chunk_bytes() > kChunkBytesMax) return lie("its chunks' size");
  if (chunk.offset() >= chunk.total() || chunk.offset() % chunk.chunk_bytes() != 0 ||
      length != std::min<std::uint64_t>(chunk.chunk_bytes(), chunk.total() - chunk.offset())) {
    return lie(format("{} bytes at {} of {}", length, chunk.offset(), chunk.total()));
  }
  FRESHET_ASSIGN(Open * open, this->open(chunk));
  const std::size_t index = chunk.offset() / chunk.chunk_bytes();
  if (open->placed[index]) return lie(format("a chunk of piece {} comes twice", chunk.piece()));
  open->placed[index] = true;
  return open->memory.subspan(chunk.offset(), length);
}

void Reception::arrived(const wire::Chunk& chunk) {
  Open& open = open_.at(chunk.piece());
  open.there[chunk.offset() / open.chunk_bytes] = true;
  --open.left;
  const std::size_t before = open.prefix;
  while (open.prefix < open.there.size() && open.there[open.prefix]) ++open.prefix;
  if (open.prefix == before) return;
  const std::uint64_t total = open.memory.size();
  const std::uint64_t prefix_bytes = std::min<std::uint64_t>(open.prefix * open.chunk_bytes, total);
  bytes_ += prefix_bytes - std::min<std::uint64_t>(before * open.chunk_bytes, total);
  sink_.on_bytes(request_.request, chunk.piece(), prefix_bytes);
  if (open.left != 0) return;
  open_.erase(chunk.piece());
  finish(chunk.piece());
}

Status Reception::take_batch(const wire::Batch& batch, Bytes data) {
  const std::size_t answers = batch.answers();
  if (answers == 0 || answers > kBatchAnswersMax || data.size() < answers * sizeof(wire::Answer)) {
    return lie(format("{} answers in {} bytes", answers, data.size()));
  }
  const Bytes table = data.first(answers * sizeof(wire::Answer));
  Bytes rest = data.subspan(table.size());
  for (std::size_t i = 0; i < answers; ++i) {
    const auto answer = *read_header<wire::Answer>(table.subspan(i * sizeof(wire::Answer), sizeof(wire::Answer)));
    FRESHET_TRY(check_answer(answer.piece(), answer.encoding(), answer.bytes()));
    if (answer.bytes() > rest.size()) return lie("a batch that ends in the middle of an answer");
    if (begun_[answer.piece()]) return lie(format("piece {} comes twice", answer.piece()));
    FRESHET_ASSIGN(const MutableBytes memory, ask(answer.piece(), answer.encoding(), answer.bytes()));
    std::copy_n(rest.begin(), answer.bytes(), memory.begin());
    rest = rest.subspan(answer.bytes());
    bytes_ += answer.bytes();
    sink_.on_bytes(request_.request, answer.piece(), answer.bytes());
    finish(answer.piece());
  }
  if (!rest.empty()) return lie("a batch with bytes of nothing");
  return {};
}

void Reception::finish(std::uint32_t piece) {
  --pieces_left_;
  sink_.on_piece_done(request_.request, piece);
}

}  // namespace freshet::channel::ucx
