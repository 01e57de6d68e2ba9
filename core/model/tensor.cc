// SPDX-License-Identifier: Apache-2.0
#include "core/model/tensor.h"

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {

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
  // An extent of zero makes the tensor empty, but must not hide an overflow in the others.
  std::uint64_t product = size_of(dtype);
  bool empty = false;
  for (const std::uint64_t extent : shape) {
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(product, extent, &product) || (product >> 63) != 0) return std::nullopt;
  }
  return empty ? 0 : product;
}

std::uint64_t TensorSpec::bytes() const {
  const std::optional<std::uint64_t> size = byte_size(dtype, shape);
  FRESHET_CHECK(size.has_value());
  return *size;
}

Status TensorSpec::check() const {
  FRESHET_TRY(check_label("a tensor's name", name, kTensorNameBytesMax));
  if (shape.size() > kRankMax) {
    return fail(Code::invalid_argument, format("tensor {}: rank {} is over {}", name, shape.size(), kRankMax));
  }
  if (!byte_size(dtype, shape)) {
    return fail(Code::invalid_argument, format("tensor {}: the size of {} overflows", name, describe(dtype, shape)));
  }
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
  if (!byte_size(dtype, slice->global_shape)) {
    return fail(Code::invalid_argument, format("tensor {}: the size of its global shape overflows", name));
  }
  return {};
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
