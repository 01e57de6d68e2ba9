// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tensors: a specification, which is part of a model's architecture, and views over bytes that belong to the caller.
/// Dense, row-major, little-endian; the bytes are the elements and nothing else.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "core/model/dtype.h"
#include "core/model/memory_kind.h"

namespace freshet {

/// Extents, outermost first; empty for a scalar.
using Shape = std::vector<std::uint64_t>;

/// The purpose of a tensor. A server takes weights and buffers; a restarted trainer takes all.
enum class Role : std::uint8_t { weight = 0, buffer = 1, optimizer = 2, opaque = 3 };
std::string_view name_of(Role role);
constexpr bool is_served(Role role) { return role == Role::weight || role == Role::buffer; }

/// A tensor that is one part of a larger tensor. The larger tensor is whole when `parts` slices have come.
struct Slice {
  Shape global_shape;
  Shape offset;  ///< Of this part's first element, in elements; same rank as global_shape.
  std::uint32_t parts = 1;

  bool operator==(const Slice&) const = default;
};

struct TensorSpec {
  std::string name;  ///< Unique in its model, e.g. "encoder.0.weight".
  DType dtype = DType::f32;
  Shape shape;
  Role role = Role::weight;
  std::optional<Slice> slice;

  bool operator==(const TensorSpec&) const = default;

  /// Elements times the dtype's bits, in bytes. REQUIRES: the spec passed check().
  std::uint64_t bytes() const;
  /// Of the larger tensor, if this one is a slice; else its own.
  const Shape& global_shape() const { return slice ? slice->global_shape : shape; }

  /// invalid_argument when the name is longer than kTensorNameBytesMax, not UTF-8 or holds control characters, when the
  /// rank is over kRankMax, when the size overflows or is no whole number of bytes, when the slice does not lie inside
  /// its global shape, or when rows of the slice begin or end inside a byte. The empty name is a name.
  Status check() const;
};

/// True: the two tensors have the same dtype, shape and slice. So a program may use the bytes of one as the bytes of
/// the other, as far as the specifications tell. Layers with the same slot id may have tensors of other slices.
inline bool same_form(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.slice == b.slice;
}

inline constexpr std::size_t kTensorNameBytesMax = 4096;
inline constexpr std::size_t kRankMax = 64;

/// The byte size of `shape` elements of `dtype`, or nothing when it does not fit in 63 bits or is no whole number.
std::optional<std::uint64_t> byte_size(DType dtype, std::span<const std::uint64_t> shape);

/// `shape` with the words of `dtype` (word_bytes_of()) for elements: the last extent of a dtype with elements of less
/// than a byte is in bytes. Nothing when a row is no whole number of bytes.
std::optional<Shape> shape_in_words(DType dtype, Shape shape);

/// Where a tensor's bytes lie, and the work that writes them.
struct TensorPlace {
  MemoryKind memory = MemoryKind::host;
  /// Of device and managed memory: the GPU, by the driver's number in this process. PyTorch's "cuda:1" and DLPack's
  /// device_id 1 are 1.
  std::int32_t device = 0;
  /// Of device and managed memory: the stream (a CUstream or cudaStream_t) whose work writes the bytes and frees the
  /// memory. 0, 1 and 2 are the driver's default streams.
  std::uintptr_t stream = 0;

  bool operator==(const TensorPlace&) const = default;
};

/// A tensor in the caller's memory, valid as long as the caller keeps this memory. Immutable value; holds no bytes.
struct TensorView {
  TensorSpec spec;
  Bytes data;              ///< spec.bytes() long. The processor may read the bytes only where `place` says so.
  TensorPlace place = {};  ///< The host's memory, unless the caller says otherwise.
};

/// unsupported, with the tensor's name, when the processor cannot read its bytes.
Status check_readable_by_host(const TensorView& tensor);

/// "f32[64, 1024]", for messages.
std::string describe(DType dtype, std::span<const std::uint64_t> shape);

}  // namespace freshet
