// SPDX-License-Identifier: Apache-2.0
#include "core/model/sealed_buffer.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kAlignment = 8;

}  // namespace

std::vector<std::byte> seal(Bytes content) {
  std::vector<std::byte> sealed(content.size() + kSealBytes);
  std::copy(content.begin(), content.end(), sealed.begin());
  const Digest digest = digest_of(content);
  store_little_endian(sealed.data() + content.size(), digest.low);
  store_little_endian(sealed.data() + content.size() + 8, digest.high);
  return sealed;
}

std::vector<std::byte> seal(const flatbuffers::FlatBufferBuilder& builder) {
  return seal(bytes_of(builder.GetBufferPointer(), builder.GetSize()));
}

Result<OpenedBuffer> OpenedBuffer::open(std::string_view what, Bytes sealed, std::size_t bytes_max) {
  if (sealed.size() > bytes_max) {
    return fail(Code::corrupt, format("{} of {} bytes is over the limit of {}", what, sealed.size(), bytes_max));
  }
  if (sealed.size() < kSealBytes + 8) {
    return fail(Code::corrupt, format("{} is truncated: {} bytes", what, sealed.size()));
  }
  OpenedBuffer opened;
  opened.content_ = sealed.first(sealed.size() - kSealBytes);
  const std::byte* trailer = sealed.data() + opened.content_.size();
  const Digest digest{.low = load_little_endian<std::uint64_t>(trailer),
                      .high = load_little_endian<std::uint64_t>(trailer + 8)};
  if (digest_of(opened.content_) != digest) {
    return fail(Code::corrupt, format("{} of {} bytes does not match its own digest", what, sealed.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(sealed.data()) % kAlignment != 0) {
    opened.aligned_.assign(opened.content_.begin(), opened.content_.end());
    opened.content_ = opened.aligned_;
  }
  return opened;
}

tl::unexpected<Error> OpenedBuffer::malformed(std::string_view what) {
  return fail(Code::corrupt, format("{} is not a well-formed buffer", what));
}

tl::unexpected<Error> OpenedBuffer::other_format(std::string_view what, std::uint16_t format_version) {
  return fail(Code::corrupt,
              format("{} was written by {} Freshet (format {}); this Freshet reads format {}", what,
                     format_version < kFormatVersion ? "an older" : "a newer", format_version, kFormatVersion));
}

Error as_corrupt(Error error, std::string_view what) {
  return Error(Code::corrupt, format("{}: {}", what, error.message()));
}

}  // namespace freshet
