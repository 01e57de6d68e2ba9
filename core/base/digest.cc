// SPDX-License-Identifier: Apache-2.0
#include "core/base/digest.h"

#include <new>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

// Last: it renames the calls above to the ones that look at the processor.
#include <xxh_x86dispatch.h>

#include "core/base/format.h"

namespace freshet {

std::string to_hex(const Digest& digest) { return format("{:016x}{:016x}", digest.high, digest.low); }

Digest digest_of(Bytes bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

struct DigestStream::State {
  XXH3_state_t xxh;  // Needs 64-byte alignment; operator new honours the type's.
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) { reset(); }
DigestStream::~DigestStream() = default;
DigestStream::DigestStream(DigestStream&&) noexcept = default;
DigestStream& DigestStream::operator=(DigestStream&&) noexcept = default;

void DigestStream::reset() { XXH3_128bits_reset(&state_->xxh); }
void DigestStream::update(Bytes bytes) { XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size()); }

Digest DigestStream::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace freshet
