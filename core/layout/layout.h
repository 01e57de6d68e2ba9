// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How the tensors of one model are cut over the ranks of a job. A version is made of whole tensors; which rank holds
/// which bytes of them is said here, below the version, so that a job of N ranks and one of M write and read the same
/// versions. Pure functions of numbers.
///
/// Two questions about rank r of N:
///   what it *holds*  in its memory while it trains: all of a replicated tensor, its rows of a split one, …
///   what it *stores* of that in a checkpoint: what it holds, but of replicated tensors only an N-th of all their bytes
///   together (DeepFreeze, section IV-B, cuts each along its largest dimension; bytes are even for any shapes).
/// Both are pieces. Over all ranks the stored pieces cover each byte of each whole tensor exactly once.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/tensor.h"

namespace freshet {

inline constexpr std::uint32_t kRanksMax = 4096;

/// `replicated`: each rank holds all of it. `split`: of the d rows of an axis rank r holds [r·c, (r+1)·c) ∩ [0, d) with
/// c = ⌈d/N⌉, which may be none. `on`: one rank holds it. `own`: each rank has one of its own, of the same shape.
enum class Cut : std::uint8_t { replicated = 0, split = 1, on = 2, own = 3 };

struct Layout {
  Cut cut = Cut::replicated;
  std::uint32_t argument = 0;  ///< `split`: the axis. `on`: the rank, modulo N. `own`, in a version: the rank.

  /// "replicated", "split:A", "on:R", "own".
  static Result<Layout> parse(std::string_view text);
  std::string text() const;
  bool operator==(const Layout&) const = default;
};

/// A whole tensor and its cut. For a program's own list, one of `own` stands for each rank's; in a version each has its
/// own entry, "NAME.r<rank>".
struct LaidTensor {
  TensorSpec spec;  ///< The global shape; no slice.
  Layout layout;
  bool operator==(const LaidTensor&) const = default;
};

/// invalid_argument names the tensor: a bad spec, a split axis that it does not have, a name twice (those of `own` for
/// that many ranks included).
Status check_layouts(std::span<const LaidTensor> tensors, std::uint32_t ranks);

/// The version's tensors: those of `own` once for each rank, in the place of theirs. REQUIRES: check_layouts() passes.
std::vector<LaidTensor> whole_tensors(std::span<const LaidTensor> tensors, std::uint32_t ranks);

/// The name of a rank's own tensor in a version.
std::string own_name(std::string_view name, std::uint32_t rank);

/// Some of a whole tensor's row-major bytes: `count` runs of `length` bytes, run i beginning at i·stride + begin. Its
/// own bytes are the runs one after another, which is the row-major order of a slice.
struct Piece {
  std::uint32_t tensor = 0;  ///< Index among the version's tensors.
  std::uint64_t count = 0;
  std::uint64_t stride = 0;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;

  std::uint64_t bytes() const { return count * length; }
  bool operator==(const Piece&) const = default;
};

/// corrupt unless it lies inside of a tensor of so many bytes, without overflow.
Status check_piece(const Piece& piece, std::uint64_t tensor_bytes);

/// What rank `rank` holds of a version's tensor; of no bytes when that is nothing. REQUIRES: one of whole_tensors().
Piece held_piece(const LaidTensor& tensor, std::uint32_t index, std::uint32_t ranks, std::uint32_t rank);
/// The shape of that piece.
Shape held_shape(const LaidTensor& tensor, std::uint32_t ranks, std::uint32_t rank);

/// A piece that a rank stores, and where its bytes begin among those of the piece that it holds.
struct StoredPiece {
  Piece piece;
  std::uint64_t offset_in_held = 0;
};
/// All that rank `rank` stores, by tensor; none is empty.
std::vector<StoredPiece> stored_pieces(std::span<const LaidTensor> version_tensors, std::uint32_t ranks,
                                       std::uint32_t rank);

/// Calls `visit(from, to, bytes)` for each run of bytes that lies in both, ascending: `from` is an offset among `a`'s
/// own bytes, of which those in [first, last) are looked at, `to` one among `b`'s. REQUIRES: pieces of one tensor.
void for_each_common_run(const Piece& a, std::uint64_t first, std::uint64_t last, const Piece& b,
                         const std::function<void(std::uint64_t from, std::uint64_t to, std::uint64_t bytes)>& visit);

}  // namespace freshet
