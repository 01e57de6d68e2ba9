// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/places.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/vector/copy.h"
#include "repo/bucket/packer.h"
#include "repo/bucket/time_to_move.h"
#include "repo/local/side_by_side.h"

namespace freshet::bucket {
namespace {

struct PlacePiece {
  const log::Place& place;
  std::uint64_t offset = 0;  ///< In the place.
  MutableBytes out;
};

/// A piece of a place cannot be proved: only the whole place has a digest.
Status read_piece(const ObjectStore& store, const PlacePiece& piece) {
  const std::string key = log::object_key(piece.place.object);
  FRESHET_TRY(store.read(key, piece.place.offset + piece.offset, piece.out, time_to_move(store, piece.out.size())));
  if (piece.out.size() != piece.place.bytes || digest_of(piece.out) == piece.place.digest) return {};
  return fail(Code::corrupt, format("{}: the bytes of {} differ from their digest", store.place(), key));
}

/// Bytes between two places of one row, which come for nothing.
constexpr std::uint64_t kRowGapMax = std::uint64_t{64} << 10;

using Row = std::span<const PlaceRead>;

std::uint64_t end_of(const log::Place& place) { return place.offset + place.bytes; }

/// Reads of one object, near each other, in the order of their offsets.
std::vector<Row> rows_of(const std::vector<PlaceRead>& sorted) {
  std::vector<Row> rows;
  for (std::size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    const log::Place& first = sorted[begin].place;
    std::uint64_t row_end = end_of(first);
    for (end = begin + 1; end < sorted.size(); ++end) {
      const log::Place& next = sorted[end].place;
      const bool is_near = next.object == first.object && next.offset <= row_end + kRowGapMax;
      if (!is_near || end_of(next) - first.offset > 2 * kPackBytes) break;
      row_end = std::max(row_end, end_of(next));
    }
    if (end - begin > 1) rows.push_back(Row(sorted).subspan(begin, end - begin));
  }
  return rows;
}

void read_row(const ObjectStore& store, Row row, std::vector<std::optional<Digest>>& digests) {
  const log::Place& first = row.front().place;
  std::uint64_t row_end = 0;
  for (const PlaceRead& one : row) row_end = std::max(row_end, end_of(one.place));
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_end - first.offset));
  const std::string key = log::object_key(first.object);
  if (!store.read(key, first.offset, bytes, time_to_move(store, bytes.size()))) return;
  for (const PlaceRead& one : row) {
    const std::byte* const from = bytes.data() + (one.place.offset - first.offset);
    digests[one.read] = copy_and_digest(one.out, Bytes(from, one.out.size()));
  }
}

}  // namespace

Status read_rows(const ObjectStore& store, std::vector<PlaceRead> reads, std::vector<std::optional<Digest>>& digests) {
  std::ranges::sort(reads, {}, [](const PlaceRead& one) { return std::pair(one.place.object, one.place.offset); });
  const std::vector<Row> rows = rows_of(reads);
  return run_side_by_side(rows.size(), store.transfers_max(), [&](std::size_t at) -> Status {
    read_row(store, rows[at], digests);  // Each thread writes to digests of its own.
    return Interruption::check();
  });
}

Status read_places(const ObjectStore& store, const log::Value& value, std::uint64_t offset, MutableBytes out) {
  if (value.places.empty()) {
    if (!out.empty()) std::memcpy(out.data(), value.inlined.data() + offset, out.size());
    return {};
  }
  std::vector<PlacePiece> pieces;
  for (const log::Place& place : value.places) {
    if (out.empty()) break;
    if (offset >= place.bytes) {
      offset -= place.bytes;
      continue;
    }
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), place.bytes - offset));
    pieces.push_back({.place = place, .offset = offset, .out = out.first(bytes)});
    out = out.subspan(bytes);
    offset = 0;
  }
  return run_side_by_side(pieces.size(), store.transfers_max(),
                          [&](std::size_t at) { return read_piece(store, pieces[at]); });
}

}  // namespace freshet::bucket
