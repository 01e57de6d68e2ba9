// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The outer form of what core encodes: a FlatBuffer, then the 16 bytes of its digest (low half, then high half,
/// little-endian). Any bit that flips and any byte that is missing is noticed before the content is looked at. The
/// digest keeps out faults, not forgers: the content is verified all the same. For core's own source files.

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/format_version.h"
#include "core/model/tensor.h"

namespace freshet {

inline constexpr std::size_t kSealBytes = 16;

/// The content with its digest behind it.
std::vector<std::byte> seal(Bytes content);
/// REQUIRES: a finished builder.
std::vector<std::byte> seal(const flatbuffers::FlatBufferBuilder& builder);

/// The content of a sealed buffer whose digest is right, aligned so that it can be read in place.
class OpenedBuffer {
 public:
  /// corrupt, naming `what`, when the buffer is too short, longer than `bytes_max`, or not what was sealed.
  static Result<OpenedBuffer> open(std::string_view what, Bytes sealed, std::size_t bytes_max);

  Bytes content() const { return content_; }

  /// The root table, once every offset, length and string in it has been verified and the format version is ours.
  template <typename Table>
  Result<const Table*> root(std::string_view what, const char* identifier, std::uint32_t tables_max) const {
    flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(content_.data()), content_.size(), kDepthMax,
                                   tables_max);
    if (!verifier.VerifyBuffer<Table>(identifier)) return malformed(what);
    const auto* table = flatbuffers::GetRoot<Table>(content_.data());
    if (table->format() != kFormatVersion) return other_format(what, table->format());
    return table;
  }

 private:
  static constexpr std::uint32_t kDepthMax = 16;
  static tl::unexpected<Error> malformed(std::string_view what);
  static tl::unexpected<Error> other_format(std::string_view what, std::uint16_t format_version);

  std::vector<std::byte> aligned_;  ///< A copy, when the caller's bytes are not aligned.
  Bytes content_;                   ///< Into aligned_ or the caller's bytes.
};

/// Limits the number of bytes that decoding may copy: not more than were received. A well-formed buffer says everything
/// once; a hostile one can name the same long string from many places.
class DecodeBudget {
 public:
  explicit DecodeBudget(std::size_t bytes) : bytes_(bytes) {}
  bool spend(std::size_t bytes) {
    if (bytes > bytes_) return false;
    bytes_ -= bytes;
    return true;
  }

 private:
  std::size_t bytes_;
};

/// FlatBuffers 2.0.8 verifies that a vector lies inside the buffer, not that its elements lie where the processor may
/// read them. True for absent and empty vectors. REQUIRES: the buffer itself is aligned, as an OpenedBuffer's content
/// is.
template <typename Vector>
bool has_aligned_elements(const Vector* vector, std::size_t alignment = 8) {
  return vector == nullptr || vector->size() == 0 || reinterpret_cast<std::uintptr_t>(vector->Data()) % alignment == 0;
}

/// The same error, as found in bytes from elsewhere: corrupt.
Error as_corrupt(Error error, std::string_view what);

}  // namespace freshet
