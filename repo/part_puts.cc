// SPDX-License-Identifier: Apache-2.0
#include "repo/part_puts.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/words/number.h"
#include "repo/provider_repository.h"
#include "repo/records/placement.h"

namespace freshet {
namespace {

constexpr std::size_t kTokenDigits = 32;

Error bad_part(const TensorSpec& tensor, const std::string& why) {
  return Error(Code::invalid_argument, format("a part of tensor {}: {}", tensor.name, why));
}

bool is_id_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

/// Whether the runs lie one after another inside of `bytes` bytes, without overflow.
bool lies_inside(const TensorPart& part, std::uint64_t bytes) {
  if (part.count == 0 || part.length == 0 || part.length > bytes || part.offset > bytes - part.length) return false;
  if (part.count == 1) return true;
  return part.stride >= part.length && part.count - 1 <= (bytes - part.length - part.offset) / part.stride;
}

/// The slice's runs: `count` of them at equal distances for each index of the axes before.
struct SliceRuns {
  std::size_t outer_axes = 0;
  std::uint64_t count = 1;
  std::uint64_t stride = 0;
  std::uint64_t length = 0;
};

SliceRuns runs_of(const Shape& shape, const Shape& extent, std::uint64_t element_bytes) {
  SliceRuns runs{.length = element_bytes};
  std::size_t axis = shape.size();
  std::uint64_t inner = element_bytes;  // Bytes of one step on the axis before `axis`.
  bool is_full = true;
  while (axis > 0 && is_full) {
    --axis;
    runs.length = inner * extent[axis];
    inner *= shape[axis];
    is_full = extent[axis] == shape[axis];
  }
  if (axis > 0) {
    runs.count = extent[--axis];
    runs.stride = inner;
    for (; axis > 0 && extent[axis] == shape[axis]; --axis) runs.count *= extent[axis - 1];
  }
  runs.outer_axes = axis;
  return runs;
}

}  // namespace

Result<PutToken> ProviderRepository::begin_put_for(const std::string&, const std::string& model, const VersionId& id,
                                                   std::shared_ptr<const Architecture> architecture) {
  return part_puts().begin_put(model, id, std::move(architecture));
}

Result<std::shared_ptr<const void>> ProviderRepository::keep_open(const PutToken&) {
  return std::shared_ptr<const void>();
}

std::string to_string(const PutToken& token) {
  std::string text = to_hex(Digest{.low = token.low, .high = token.high});
  if (!token.provider.empty()) text += "@" + token.provider;
  return text;
}

Result<PutToken> parse_put_token(std::string_view text) {
  const auto refused = [&] {
    return fail(Code::invalid_argument,
                "a put's token is 32 hexadecimal digits, and @PROVIDER if the repository has several providers");
  };
  PutToken token;
  if (!read_hex(text.substr(0, kTokenDigits), token.high, token.low)) return refused();
  text.remove_prefix(kTokenDigits);
  if (text.empty()) return token;
  if (text.front() != '@') return refused();
  token.provider = std::string(text.substr(1));
  const bool is_id = !token.provider.empty() && token.provider.size() <= kProviderIdBytesMax &&
                     std::ranges::all_of(token.provider, is_id_character);
  if (!is_id) return refused();
  return token;
}

Status check_part(const TensorPart& part, const Architecture& architecture) {
  const auto tensors = architecture.tensors();
  if (part.tensor >= tensors.size()) {
    return fail(Code::invalid_argument,
                format("a part of tensor {}: the architecture has only {} tensors", part.tensor, tensors.size()));
  }
  const TensorSpec& tensor = tensors[part.tensor];
  if (!lies_inside(part, tensor.bytes())) {
    return fail(bad_part(tensor, format("{} runs of {} bytes, {} bytes apart, from byte {} on, are not inside of its "
                                        "{} bytes",
                                        part.count, part.length, part.stride, part.offset, tensor.bytes())));
  }
  if (part.bytes.size() != part.count * part.length) {
    return fail(bad_part(tensor, format("{} bytes were given for {}", part.bytes.size(), part.count * part.length)));
  }
  return {};
}

TensorPart whole_part(const Architecture& architecture, std::uint32_t tensor, Bytes bytes) {
  return {.tensor = tensor, .length = architecture.tensors()[tensor].bytes(), .bytes = bytes};
}

Result<std::vector<TensorPart>> slice_parts(const Architecture& architecture, std::uint32_t tensor, const Shape& from,
                                            const Shape& size, Bytes bytes) {
  const auto tensors = architecture.tensors();
  if (tensor >= tensors.size()) {
    return fail(Code::invalid_argument,
                format("a slice of tensor {}: the architecture has only {} tensors", tensor, tensors.size()));
  }
  const TensorSpec& spec = tensors[tensor];
  bool is_inside = from.size() == spec.shape.size() && size.size() == spec.shape.size();
  for (std::size_t axis = 0; is_inside && axis < spec.shape.size(); ++axis) {
    is_inside = from[axis] <= spec.shape[axis] && size[axis] <= spec.shape[axis] - from[axis];
  }
  if (!is_inside) return fail(bad_part(spec, "the slice is not inside of " + describe(spec.dtype, spec.shape)));
  const auto words = shape_in_words(spec.dtype, spec.shape);
  const auto first = shape_in_words(spec.dtype, from);
  const auto counts = shape_in_words(spec.dtype, size);
  const bool is_whole = size == spec.shape;
  if (!is_whole && (!words || !first || !counts)) {
    return fail(bad_part(spec, format("rows of the slice begin or end inside a byte; each element of {} has {} bits",
                                      describe(spec.dtype, spec.shape), bits_of(spec.dtype))));
  }
  const std::uint64_t slice_bytes = byte_size(spec.dtype, size).value_or(0);
  if (bytes.size() != slice_bytes) {
    return fail(bad_part(spec, format("{} bytes were given for {}", bytes.size(), slice_bytes)));
  }
  std::vector<TensorPart> parts;
  if (slice_bytes == 0) return parts;
  if (is_whole) return std::vector{whole_part(architecture, tensor, bytes)};

  const Shape& shape = *words;
  const Shape& offset = *first;
  const Shape& extent = *counts;
  const SliceRuns runs = runs_of(shape, extent, word_bytes_of(spec.dtype));
  Shape steps(shape.size());  // Bytes of one step on each axis.
  std::uint64_t step = word_bytes_of(spec.dtype);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    steps[axis] = step;
    step *= shape[axis];
  }
  Shape at = offset;
  while (true) {
    TensorPart part{.tensor = tensor, .count = runs.count, .stride = runs.stride, .length = runs.length};
    for (std::size_t axis = 0; axis < shape.size(); ++axis) part.offset += at[axis] * steps[axis];
    part.bytes = bytes.first(part.count * part.length);
    bytes = bytes.subspan(part.bytes.size());
    parts.push_back(part);
    // The next index of the axes before the runs, the last of them first.
    std::size_t axis = runs.outer_axes;
    for (; axis > 0; --axis) {
      if (++at[axis - 1] < offset[axis - 1] + extent[axis - 1]) break;
      at[axis - 1] = offset[axis - 1];
    }
    if (axis == 0) return parts;
  }
}

}  // namespace freshet
