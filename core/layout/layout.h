// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The cut of one model's tensors over the ranks of a job. A version consists of whole tensors. The layout, which is
/// not part of the version, says which rank holds which bytes. So a job of N ranks and a job of M ranks write and read
/// the same versions. Pure functions of numbers.
///
/// A rank r of N has two kinds of pieces:
///   *held*    in its memory while it trains: a whole replicated tensor, its rows of a split tensor, …
///   *stored*  in a checkpoint: the held piece of each tensor, with two exceptions. Of a replicated tensor, each rank
///             stores only an N-th. A tensor `from` one rank is stored by this rank alone.
/// DeepFreeze (section IV-B) cuts each replicated tensor along its largest dimension. Freshet cuts the tensor's bytes,
/// so the parts have about the same length for any shape. Each large replicated tensor is cut by itself. So if a few of
/// them change, each rank stores an N-th of their bytes again, and parity is computed again for these tensors only.
/// Small replicated tensors stand one after another. The ranks store them in turn, in runs of at most 16 KiB. A tensor
/// is small if N - 1 such runs can hold it. So a rank stores at most one piece of each tensor. Over all ranks, the
/// stored pieces cover each byte of each whole tensor exactly once.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet {

inline constexpr std::uint32_t kRanksMax = 4096;

/// `replicated`: each rank holds all of it. `split`: of the d rows of an axis rank r holds [r·c, (r+1)·c) ∩ [0, d) with
/// c = ⌈d/N⌉, which may be no rows. `on`: one rank holds it. `own`: each rank has its own tensor, of the same shape.
/// `from`: each rank holds all of it, perhaps with other values; those of one rank are stored, and all get them back.
enum class Cut : std::uint8_t { replicated = 0, split = 1, on = 2, own = 3, from = 4 };
inline constexpr Cut kCutMax = Cut::from;

struct Layout {
  Cut cut = Cut::replicated;
  std::uint32_t argument = 0;  ///< `split`: the axis. `on`, `from`: the rank, modulo N. `own`, in a version: the rank.

  /// "replicated", "split:A", "on:R", "own", "from:R".
  static Result<Layout> parse(std::string_view text);
  std::string text() const;
  bool operator==(const Layout&) const = default;
};

/// A whole tensor and its cut. In a program's list, one entry with `own` stands for the tensors of all ranks. In a
/// version each of these tensors has its own entry, "NAME.r<rank>".
struct LaidTensor {
  TensorSpec spec;  ///< The global shape; no slice.
  Layout layout;
  bool operator==(const LaidTensor&) const = default;
};

/// Whether a step on the axis that the tensor is split along is a whole number of bytes. REQUIRES: it has that axis.
bool has_whole_byte_rows(const LaidTensor& tensor);

/// invalid_argument for a bad spec, a split axis that is not there or has rows that begin inside a byte, or a name that
/// comes twice (with the names of `own` for that many ranks); the message names the tensor.
Status check_layouts(std::span<const LaidTensor> tensors, std::uint32_t ranks);

/// The version's tensors. An entry with `own` becomes one tensor for each rank, in its place. REQUIRES: check_layouts()
/// passes.
std::vector<LaidTensor> whole_tensors(std::span<const LaidTensor> tensors, std::uint32_t ranks);

/// The name of a rank's own tensor in a version.
std::string own_name(std::string_view name, std::uint32_t rank);

/// A piece of a whole tensor's row-major bytes: `count` runs of `length` bytes; run i begins at i·stride + begin. The
/// piece's own bytes are the runs one after another, which is the row-major order of a slice.
struct Piece {
  std::uint32_t tensor = 0;  ///< Index among the version's tensors.
  std::uint64_t count = 0;
  std::uint64_t stride = 0;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;

  std::uint64_t bytes() const { return count * length; }
  bool operator==(const Piece&) const = default;
};

/// The piece of a version's tensor that rank `rank` holds; without bytes if it holds none. REQUIRES: one of
/// whole_tensors().
Piece held_piece(const LaidTensor& tensor, std::uint32_t index, std::uint32_t ranks, std::uint32_t rank);
/// The shape of that piece.
Shape held_shape(const LaidTensor& tensor, std::uint32_t ranks, std::uint32_t rank);

/// A piece that a rank stores, and the offset of its bytes in the piece that the rank holds.
struct StoredPiece {
  Piece piece;
  std::uint64_t offset_in_held = 0;
};
/// All pieces that rank `rank` stores, by tensor; none is empty.
std::vector<StoredPiece> stored_pieces(std::span<const LaidTensor> version_tensors, std::uint32_t ranks,
                                       std::uint32_t rank);

/// Calls `visit(from, to, bytes)` for each run of bytes that lies in both pieces, ascending. Only bytes of
/// `a` in [first, last) are visited. `from` is an offset in `a`'s own bytes. `to` is an offset in `b`'s own bytes.
/// REQUIRES: pieces of one tensor.
void for_each_common_run(const Piece& a, std::uint64_t first, std::uint64_t last, const Piece& b,
                         const std::function<void(std::uint64_t from, std::uint64_t to, std::uint64_t bytes)>& visit);

}  // namespace freshet
