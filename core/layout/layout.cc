// SPDX-License-Identifier: Apache-2.0
#include "core/layout/layout.h"

#include <algorithm>
#include <unordered_set>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/model/graph.h"
#include "core/words/number.h"

namespace freshet {
namespace {

/// Replicated bytes are cut at multiples of this, so that elements and vector registers stay whole.
constexpr std::uint64_t kCutAlignment = 64;
/// The longest run of small replicated tensors that one rank stores in turn.
constexpr std::uint64_t kTurnBytesMax = std::uint64_t{16} << 10;
/// Of a model with few bytes, each rank still has so many turns: its share is even, too.
constexpr std::uint64_t kTurnsMin = 64;

std::optional<std::uint32_t> number_after(std::string_view text, std::string_view word) {
  if (!text.starts_with(word)) return std::nullopt;
  return number_in<std::uint32_t>(text.substr(word.size()));
}

/// [begin, end) of an axis of `rows` that rank `rank` holds.
struct Rows {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Rows rows_of(std::uint64_t rows, std::uint32_t ranks, std::uint32_t rank) {
  const std::uint64_t each = rows / ranks + (rows % ranks != 0 ? 1 : 0);
  if (each == 0 || rank > rows / each) return {rows, rows};
  const std::uint64_t begin = std::min(rows, each * rank);
  return {begin, begin + std::min(each, rows - begin)};
}

bool holds_whole(const LaidTensor& tensor, std::uint32_t ranks, std::uint32_t rank) {
  switch (tensor.layout.cut) {
    case Cut::replicated:
    case Cut::from: return true;
    case Cut::on: return tensor.layout.argument % ranks == rank;
    case Cut::own: return tensor.layout.argument == rank;
    case Cut::split: break;
  }
  return false;
}

/// Where the part of rank `rank` begins among so many bytes.
std::uint64_t cut_at(std::uint64_t bytes, std::uint32_t ranks, std::uint32_t rank) {
  if (rank >= ranks) return bytes;
  const std::uint64_t at = bytes / ranks * rank + bytes % ranks * rank / ranks;
  return at / kCutAlignment * kCutAlignment;
}

struct ByteRun {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The cut of replicated tensors, one after another.
class ReplicatedCut {
 public:
  ReplicatedCut(std::uint64_t replicated_bytes, std::uint32_t ranks, std::uint32_t rank)
      : turn_bytes_(std::clamp(replicated_bytes / (kTurnsMin * ranks) / kCutAlignment * kCutAlignment, kCutAlignment,
                               kTurnBytesMax)),
        ranks_(ranks),
        rank_(rank) {}

  /// What the rank stores of the next tensor.
  ByteRun next(std::uint64_t bytes) {
    // A tensor that is as long as all ranks' turns is cut by itself: however few tensors change, each rank stores an
    // N-th of what did. A shorter one has no second turn of any rank, so that a rank stores one piece of it at most.
    if (bytes > turn_bytes_ * (ranks_ - 1)) return {cut_at(bytes, ranks_, rank_), cut_at(bytes, ranks_, rank_ + 1)};
    const std::uint64_t first = small_at_;
    small_at_ += (bytes + kCutAlignment - 1) / kCutAlignment * kCutAlignment;
    const std::uint64_t first_turn = first / turn_bytes_;
    const std::uint64_t turn = first_turn + (rank_ + ranks_ - first_turn % ranks_) % ranks_;  // The first of the rank.
    const std::uint64_t begin = std::max(first, turn * turn_bytes_) - first;
    const std::uint64_t end = std::min(first + bytes, (turn + 1) * turn_bytes_);
    return end <= first + begin ? ByteRun{} : ByteRun{begin, end - first};
  }

 private:
  const std::uint64_t turn_bytes_;
  const std::uint32_t ranks_;
  const std::uint32_t rank_;
  std::uint64_t small_at_ = 0;  ///< Among the bytes of the small tensors, each aligned.
};

}  // namespace

bool has_whole_byte_rows(const LaidTensor& tensor) {
  const Shape& shape = tensor.spec.shape;
  return byte_size(tensor.spec.dtype, std::span(shape).subspan(tensor.layout.argument + 1)).has_value();
}

Result<Layout> Layout::parse(std::string_view text) {
  if (text == "replicated") return Layout{};
  if (text == "own") return Layout{.cut = Cut::own};
  if (const auto axis = number_after(text, "split:")) return Layout{.cut = Cut::split, .argument = *axis};
  if (const auto rank = number_after(text, "on:")) return Layout{.cut = Cut::on, .argument = *rank};
  if (const auto rank = number_after(text, "from:")) return Layout{.cut = Cut::from, .argument = *rank};
  return refuse(format("layout \"{}\": expected replicated, split:AXIS, on:RANK, from:RANK or own", text));
}

std::string Layout::text() const {
  switch (cut) {
    case Cut::replicated: return "replicated";
    case Cut::split: return format("split:{}", argument);
    case Cut::on: return format("on:{}", argument);
    case Cut::from: return format("from:{}", argument);
    case Cut::own: break;
  }
  return "own";
}

std::string own_name(std::string_view name, std::uint32_t rank) { return format("{}.r{}", name, rank); }

Status check_layouts(std::span<const LaidTensor> tensors, std::uint32_t ranks) {
  if (ranks == 0 || ranks > kRanksMax) return refuse(format("{} ranks: 1 to {} are allowed", ranks, kRanksMax));
  std::unordered_set<std::string> names;
  std::uint64_t all = 0;
  const auto take = [&](const std::string& name) -> Status {
    if (name.size() > kTensorNameBytesMax) return refuse(format("tensor {}: its name is too long", name));
    if (!names.insert(name).second) return refuse(format("tensor {}: two have this name", name));
    return {};
  };
  for (const LaidTensor& tensor : tensors) {
    FRESHET_TRY(tensor.spec.check());
    if (tensor.spec.slice)
      return refuse(format("tensor {}: a whole tensor is expected, not a slice", tensor.spec.name));
    if (tensor.layout.cut == Cut::split && tensor.layout.argument >= tensor.spec.shape.size()) {
      return refuse(format("tensor {} is split along axis {}, but has {} axes", tensor.spec.name,
                           tensor.layout.argument, tensor.spec.shape.size()));
    }
    if (tensor.layout.cut == Cut::split && !has_whole_byte_rows(tensor)) {
      return refuse(format("tensor {} is split along axis {}, whose rows begin inside a byte; keep it replicated",
                           tensor.spec.name, tensor.layout.argument));
    }
    if (tensor.layout.cut == Cut::own) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) FRESHET_TRY(take(own_name(tensor.spec.name, rank)));
    } else {
      FRESHET_TRY(take(tensor.spec.name));
    }
    const std::uint64_t copies = tensor.layout.cut == Cut::own ? ranks : 1;
    constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62;
    if (tensor.spec.bytes() > (kBytesMax - all) / copies) return refuse("the tensors are of more than 2^62 bytes");
    all += tensor.spec.bytes() * copies;
    if (names.size() > kTensorsMax) return refuse(format("more than {} tensors", kTensorsMax));
  }
  return {};
}

std::vector<LaidTensor> whole_tensors(std::span<const LaidTensor> tensors, std::uint32_t ranks) {
  std::vector<LaidTensor> whole;
  for (const LaidTensor& tensor : tensors) {
    if (tensor.layout.cut != Cut::own) {
      whole.push_back(tensor);
      continue;
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      LaidTensor& own = whole.emplace_back(tensor);
      own.spec.name = own_name(tensor.spec.name, rank);
      own.layout.argument = rank;
    }
  }
  return whole;
}

Piece held_piece(const LaidTensor& tensor, std::uint32_t index, std::uint32_t ranks, std::uint32_t rank) {
  const std::uint64_t bytes = tensor.spec.bytes();
  Piece piece{.tensor = index};
  if (bytes == 0) return piece;
  if (tensor.layout.cut != Cut::split) {
    if (!holds_whole(tensor, ranks, rank)) return piece;
    return {.tensor = index, .count = 1, .stride = bytes, .begin = 0, .length = bytes};
  }
  const Shape& shape = tensor.spec.shape;
  const std::size_t axis = tensor.layout.argument;
  FRESHET_CHECK(axis < shape.size());
  std::uint64_t outer = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
  const std::uint64_t stride = bytes / outer;  // Nothing is 0 where there are bytes.
  const std::uint64_t row = stride / shape[axis];
  const Rows rows = rows_of(shape[axis], ranks, rank);
  if (rows.begin == rows.end) return piece;
  piece = {.tensor = index,
           .count = outer,
           .stride = stride,
           .begin = rows.begin * row,
           .length = (rows.end - rows.begin) * row};
  if (piece.length == stride) piece = {.tensor = index, .count = 1, .stride = bytes, .begin = 0, .length = bytes};
  return piece;
}

Shape held_shape(const LaidTensor& tensor, std::uint32_t ranks, std::uint32_t rank) {
  Shape shape = tensor.spec.shape;
  if (tensor.layout.cut == Cut::split) {
    const Rows rows = rows_of(shape[tensor.layout.argument], ranks, rank);
    shape[tensor.layout.argument] = rows.end - rows.begin;
  }
  return shape;
}

std::vector<StoredPiece> stored_pieces(std::span<const LaidTensor> version_tensors, std::uint32_t ranks,
                                       std::uint32_t rank) {
  std::uint64_t replicated = 0;
  for (const LaidTensor& tensor : version_tensors) {
    if (tensor.layout.cut == Cut::replicated) replicated += tensor.spec.bytes();
  }
  ReplicatedCut cut(replicated, ranks, rank);
  std::vector<StoredPiece> stored;
  for (std::size_t i = 0; i < version_tensors.size(); ++i) {
    const LaidTensor& tensor = version_tensors[i];
    const auto index = static_cast<std::uint32_t>(i);
    if (tensor.layout.cut == Cut::from && tensor.layout.argument % ranks != rank) continue;
    if (tensor.layout.cut != Cut::replicated) {
      const Piece piece = held_piece(tensor, index, ranks, rank);
      if (piece.bytes() > 0) stored.push_back({.piece = piece, .offset_in_held = 0});
      continue;
    }
    const std::uint64_t bytes = tensor.spec.bytes();
    const ByteRun run = cut.next(bytes);
    if (run.begin == run.end) continue;
    stored.push_back(
        {.piece = {.tensor = index, .count = 1, .stride = bytes, .begin = run.begin, .length = run.end - run.begin},
         .offset_in_held = run.begin});
  }
  return stored;
}

void for_each_common_run(const Piece& a, std::uint64_t first, std::uint64_t last, const Piece& b,
                         const std::function<void(std::uint64_t from, std::uint64_t to, std::uint64_t bytes)>& visit) {
  if (a.bytes() == 0 || b.bytes() == 0) return;
  last = std::min(last, a.bytes());
  while (first < last) {
    // The rest of one run of a, in the whole tensor's bytes.
    const std::uint64_t within = first % a.length;
    const std::uint64_t begin = first / a.length * a.stride + a.begin + within;
    const std::uint64_t bytes = std::min(a.length - within, last - first);
    const std::uint64_t end = begin + bytes;
    // The first run of b that ends behind its beginning.
    std::uint64_t run = begin >= b.begin + b.length ? (begin - b.begin - b.length) / b.stride + 1 : 0;
    for (; run < b.count && run * b.stride + b.begin < end; ++run) {
      const std::uint64_t run_begin = run * b.stride + b.begin;
      const std::uint64_t from = std::max(begin, run_begin);
      const std::uint64_t to = std::min(end, run_begin + b.length);
      if (from < to) visit(first + (from - begin), run * b.length + (from - run_begin), to - from);
    }
    first += bytes;
  }
}

}  // namespace freshet
