#include "core/sealed_buffer.h"

#include <algorithm>

#include "core/format.h"

namespace freshet {
namespace {

constexpr std::size_t kAlignment = 8;

void store_little_endian(std::byte* to, std::uint64_t value) {
  for (std::size_t i = 0; i < 8; ++i) to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

std::uint64_t load_little_endian(const std::byte* from) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

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
  const Digest digest{.low = load_little_endian(trailer), .high = load_little_endian(trailer + 8)};
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
              format("{} has format version {}; this build reads {}", what, format_version, kFormatVersion));
}

Error as_corrupt(Error error, std::string_view what) {
  return Error(Code::corrupt, format("{}: {}", what, error.message()));
}

}  // namespace freshet
