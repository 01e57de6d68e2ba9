// SPDX-License-Identifier: Apache-2.0
#include "core/model/tensor.h"

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

/// Bits of `shape` elements, or nothing when the bytes do not fit in 63 bits. An extent of zero makes the tensor empty,
/// but must not hide an overflow in the others.
std::optional<unsigned __int128> bit_size(DType dtype, std::span<const std::uint64_t> shape) {
  constexpr unsigned __int128 kBitsMax = static_cast<unsigned __int128>(1) << 66;
  unsigned __int128 product = bits_of(dtype);
  bool empty = false;
  for (const std::uint64_t extent : shape) {
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (extent > (kBitsMax - 1) / product) return std::nullopt;
    product *= extent;
  }
  return empty ? 0 : product;
}

Status check_tensor_size(const TensorSpec& spec, std::string_view what, const Shape& shape) {
  const std::optional<unsigned __int128> bits = bit_size(spec.dtype, shape);
  if (!bits) {
    return fail(Code::invalid_argument,
                format("tensor {}: the size of {}{} overflows", shown(spec.name), what, describe(spec.dtype, shape)));
  }
  if (*bits % 8 == 0) return {};
  return fail(Code::invalid_argument,
              format("tensor {}: the size of {}{} is no whole number of bytes; each element has {} bits",
                     shown(spec.name), what, describe(spec.dtype, shape), bits_of(spec.dtype)));
}

}  // namespace

std::string_view name_of(Role role) {
  switch (role) {
    case Role::weight: return "weight";
    case Role::buffer: return "buffer";
    case Role::optimizer: return "optimizer";
    case Role::opaque: return "opaque";
  }
  return "unknown";
}

std::optional<std::uint64_t> byte_size(DType dtype, std::span<const std::uint64_t> shape) {
  const std::optional<unsigned __int128> bits = bit_size(dtype, shape);
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(*bits / 8);
}

std::optional<Shape> shape_in_words(DType dtype, Shape shape) {
  const std::uint64_t bits = bits_of(dtype);
  if (bits >= 8) return shape;
  if (shape.empty()) return std::nullopt;
  const auto row = static_cast<unsigned __int128>(shape.back()) * bits;
  if (row % 8 != 0) return std::nullopt;
  shape.back() = static_cast<std::uint64_t>(row / 8);
  return shape;
}

std::uint64_t TensorSpec::bytes() const {
  const std::optional<std::uint64_t> size = byte_size(dtype, shape);
  FRESHET_CHECK(size.has_value());
  return *size;
}

Status TensorSpec::check() const {
  if (!name.empty()) FRESHET_TRY(check_label("a tensor's name", name, kTensorNameBytesMax));
  if (shape.size() > kRankMax) {
    return fail(Code::invalid_argument, format("tensor {}: rank {} is over {}", name, shape.size(), kRankMax));
  }
  FRESHET_TRY(check_tensor_size(*this, "", shape));
  if (!slice) return {};
  if (slice->global_shape.size() != shape.size() || slice->offset.size() != shape.size() || slice->parts == 0) {
    return fail(Code::invalid_argument, format("tensor {}: its slice has another rank or no parts", name));
  }
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::uint64_t whole = slice->global_shape[axis];
    if (slice->offset[axis] > whole || shape[axis] > whole - slice->offset[axis]) {
      return fail(Code::invalid_argument,
                  format("tensor {}: its slice leaves the global shape on axis {}", name, axis));
    }
  }
  FRESHET_TRY(check_tensor_size(*this, "the whole ", slice->global_shape));
  const bool has_whole_rows = shape_in_words(dtype, shape) && shape_in_words(dtype, slice->offset) &&
                              shape_in_words(dtype, slice->global_shape);
  if (has_whole_rows || shape == slice->global_shape) return {};
  return fail(Code::invalid_argument,
              format("tensor {}: rows of its slice begin or end inside a byte; each element has {} bits", name,
                     bits_of(dtype)));
}

Status check_readable_by_host(const TensorView& tensor) {
  if (is_readable_by_host(tensor.place.memory)) return {};
  return fail(Code::unsupported,
              format("tensor {}: its bytes are in a GPU's memory: a publisher takes them from there, everything else "
                     "needs a copy in host memory",
                     shown(tensor.spec.name)));
}

std::string describe(DType dtype, std::span<const std::uint64_t> shape) {
  std::string text(name_of(dtype));
  text += '[';
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis != 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  text += ']';
  return text;
}

}  // namespace freshet
