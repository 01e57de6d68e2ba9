// SPDX-License-Identifier: Apache-2.0
#include "core/base/digest.h"

#include <algorithm>
#include <new>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

// Last: it renames the calls above to the ones that look at the processor.
#include <xxh_x86dispatch.h>

#include "core/base/bytes.h"
#include "core/base/format.h"

namespace freshet {

Digest digest_of_parts(const std::vector<Digest>& parts) {
  if (parts.size() == 1) return parts.front();
  std::vector<std::byte> bytes;
  bytes.reserve(parts.size() * sizeof(Digest));
  for (const Digest& part : parts) {
    append_little_endian(bytes, part.low);
    append_little_endian(bytes, part.high);
  }
  return plain_xxh3_of(bytes);
}

std::string to_hex(const Digest& digest) { return format("{:016x}{:016x}", digest.high, digest.low); }

Digest plain_xxh3_of(Bytes bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

Digest digest_of(Bytes bytes) {
  if (bytes.size() <= kDigestPartBytes) return plain_xxh3_of(bytes);
  std::vector<Digest> parts;
  for (std::size_t at = 0; at < bytes.size(); at += kDigestPartBytes) {
    parts.push_back(plain_xxh3_of(bytes.subspan(at, std::min<std::size_t>(bytes.size() - at, kDigestPartBytes))));
  }
  return digest_of_parts(parts);
}

struct PlainXxh3Stream::State {
  XXH3_state_t xxh;  // Needs 64-byte alignment; operator new honours the type's.
};

PlainXxh3Stream::PlainXxh3Stream() : state_(std::make_unique<State>()) { reset(); }
PlainXxh3Stream::~PlainXxh3Stream() = default;
PlainXxh3Stream::PlainXxh3Stream(PlainXxh3Stream&&) noexcept = default;
PlainXxh3Stream& PlainXxh3Stream::operator=(PlainXxh3Stream&&) noexcept = default;

void PlainXxh3Stream::reset() { XXH3_128bits_reset(&state_->xxh); }
void PlainXxh3Stream::update(Bytes bytes) { XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size()); }

Digest PlainXxh3Stream::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {.low = hash.low64, .high = hash.high64};
}

void DigestStream::reset() {
  part_.reset();
  part_bytes_ = 0;
  parts_.clear();
}

void DigestStream::update(Bytes bytes) {
  while (!bytes.empty()) {
    // Not before more comes: a last part that is full is not followed by an empty one.
    if (part_bytes_ == kDigestPartBytes) {
      parts_.push_back(part_.finish());
      part_.reset();
      part_bytes_ = 0;
    }
    const Bytes taken = bytes.first(std::min<std::size_t>(bytes.size(), kDigestPartBytes - part_bytes_));
    part_.update(taken);
    part_bytes_ += taken.size();
    bytes = bytes.subspan(taken.size());
  }
}

Digest DigestStream::finish() const {
  std::vector<Digest> parts = parts_;
  parts.push_back(part_.finish());
  return digest_of_parts(parts);
}

}  // namespace freshet
