// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/base/format.h"
#include "transport/channel/channel.h"
#include "transport/channel/fetch_generated.h"

namespace freshet::channel {
namespace {

tl::unexpected<Error> bad(std::string_view what) { return fail(Code::corrupt, format("fetch request: {}", what)); }

SegmentName name_from(const wire::Base& base) {
  return {.writer = {.run = {.high = base.run_high(), .low = base.run_low()},
                     .incarnation = base.incarnation(),
                     .sequence = base.sequence()},
          .tensor = base.tensor()};
}

/// The verifier lets elements lie where the processor may not read them.
template <typename Vector>
bool is_aligned(const Vector* vector) {
  return vector == nullptr || vector->size() == 0 ||
         reinterpret_cast<std::uintptr_t>(vector->Data()) % alignof(std::uint64_t) == 0;
}

Result<FetchRequest> take(const wire::Fetch& fetch) {
  const std::size_t pieces = fetch.pieces() == nullptr ? 0 : fetch.pieces()->size();
  const std::size_t bases = fetch.bases() == nullptr ? 0 : fetch.bases()->size();
  if (pieces == 0 || pieces > kPiecesMax) return bad(format("{} pieces, 1 to {} are allowed", pieces, kPiecesMax));
  if (bases > pieces) return bad(format("{} bases for {} pieces", bases, pieces));
  if (!is_aligned(fetch.pieces()) || !is_aligned(fetch.bases())) return bad("its pieces are not aligned");
  FetchRequest request{.request = fetch.request(),
                       .session = fetch.session(),
                       .lease = fetch.lease(),
                       .version = fetch.version(),
                       .link_bytes_per_second = fetch.link_bytes_per_second()};
  request.pieces.reserve(pieces);
  for (const wire::Piece* from : *fetch.pieces()) {
    Piece piece{.tensor = from->tensor(), .offset = from->offset(), .bytes = from->bytes()};
    if (from->base() > bases) return bad(format("a piece names base {}, there are {}", from->base(), bases));
    if (from->base() != 0) piece.base = name_from(*fetch.bases()->Get(from->base() - 1));
    request.pieces.push_back(piece);
  }
  return request;
}

}  // namespace

std::vector<std::byte> encode(const FetchRequest& request) {
  std::vector<wire::Piece> pieces;
  std::vector<wire::Base> bases;
  pieces.reserve(request.pieces.size());
  for (const Piece& piece : request.pieces) {
    if (piece.base) {
      const VersionId& writer = piece.base->writer;
      bases.emplace_back(writer.run.high, writer.run.low, writer.incarnation, writer.sequence, piece.base->tensor);
    }
    pieces.emplace_back(piece.offset, piece.bytes, piece.tensor,
                        piece.base ? static_cast<std::uint32_t>(bases.size()) : 0);
  }
  flatbuffers::FlatBufferBuilder builder;
  const auto encoded_pieces = builder.CreateVectorOfStructs(pieces);
  const auto encoded_bases = builder.CreateVectorOfStructs(bases);
  wire::FinishFetchBuffer(builder,
                          wire::CreateFetch(builder, request.request, request.session, request.lease, request.version,
                                            encoded_pieces, encoded_bases, request.link_bytes_per_second));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

Result<FetchRequest> decode_fetch(Bytes bytes) {
  constexpr std::size_t kBytesMax = kPiecesMax * (sizeof(wire::Piece) + sizeof(wire::Base)) + 1024;
  if (bytes.size() > kBytesMax) return bad(format("{} bytes, at most {} are allowed", bytes.size(), kBytesMax));
  if (bytes.size() < 2 * sizeof(flatbuffers::uoffset_t) + sizeof(flatbuffers::soffset_t)) return bad("too short");
  // Copied to an aligned place, from which the verifier measures; small beside what it asks for.
  std::vector<std::uint64_t> aligned((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(aligned.data()));
  const auto* data = reinterpret_cast<const std::uint8_t*>(aligned.data());
  flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/4, /*max_tables=*/2);
  if (!wire::VerifyFetchBuffer(verifier)) return bad("not a whole request");
  return take(*wire::GetFetch(data));
}

}  // namespace freshet::channel
