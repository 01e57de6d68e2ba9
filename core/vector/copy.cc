// SPDX-License-Identifier: Apache-2.0
#include "core/vector/copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace freshet {
namespace {

/// Measured best among 2 to 64 KiB: with source, buffer and digest state it fits a first level cache of 32 KiB.
constexpr std::size_t kPieceBytes = 4096;

/// Copies `bytes` from `from` to `to` and to `near`; `near` is a buffer of kPieceBytes, on a cache line of its own.
using CopyTwice = void (*)(std::byte* to, std::byte* near, const std::byte* from, std::size_t bytes);

void copy_twice_portable(std::byte* to, std::byte* near, const std::byte* from, std::size_t bytes) {
  std::memcpy(near, from, bytes);
  // Else a compiler may copy the second time from where the first time was copied from.
  __asm__ __volatile__("" : "+r"(near) : : "memory");
  std::memcpy(to, near, bytes);
}

#if defined(__x86_64__)

/// The next piece comes in while this one is digested. Past the end it reads nothing and faults nothing.
inline void prefetch(const std::byte* address) { _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0); }

/// The digest reads `near`, so what doesn't fill a vector goes through `near` too: the source is read once.
void copy_rest(std::byte* to, std::byte* near, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) copy_twice_portable(to, near, from, bytes);
}

__attribute__((target("avx2"))) void copy_twice_avx2(std::byte* to, std::byte* near, const std::byte* from,
                                                     std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 128 <= bytes; i += 128) {
    prefetch(from + i + kPieceBytes);
    prefetch(from + i + kPieceBytes + 64);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
    _mm256_store_si256(reinterpret_cast<__m256i*>(near + i), a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(near + i + 32), b);
    _mm256_store_si256(reinterpret_cast<__m256i*>(near + i + 64), c);
    _mm256_store_si256(reinterpret_cast<__m256i*>(near + i + 96), d);
  }
  copy_rest(to + i, near + i, from + i, bytes - i);
}

__attribute__((target("avx512f"))) void copy_twice_avx512(std::byte* to, std::byte* near, const std::byte* from,
                                                          std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 128 <= bytes; i += 128) {
    prefetch(from + i + kPieceBytes);
    prefetch(from + i + kPieceBytes + 64);
    const __m512i a = _mm512_loadu_si512(from + i);
    const __m512i b = _mm512_loadu_si512(from + i + 64);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_store_si512(near + i, a);
    _mm512_store_si512(near + i + 64, b);
  }
  copy_rest(to + i, near + i, from + i, bytes - i);
}

#endif

CopyTwice copy_twice_of(VectorLevel level) {
#if defined(__x86_64__)
  if (level == VectorLevel::avx512) return copy_twice_avx512;
  if (level == VectorLevel::avx2) return copy_twice_avx2;
#endif
  FRESHET_CHECK(level == VectorLevel::portable);
  return copy_twice_portable;
}

/// Streaming stores are ordered with nothing; this orders them before every later store.
void fence_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// How far the next cache line is; streaming stores fill whole ones.
std::size_t to_cache_line(const std::byte* address) { return -reinterpret_cast<std::uintptr_t>(address) % 64; }

}  // namespace

Digest copy_and_digest(MutableBytes to, Bytes from) { return copy_and_digest(to, from, vector_level()); }

Digest copy_and_digest(MutableBytes to, Bytes from, VectorLevel level) {
  FRESHET_CHECK(to.size() == from.size());
  if (from.empty()) return digest_of(from);  // It may lie nowhere.
  if (from.size() <= kPieceBytes) {
    alignas(64) std::array<std::byte, kPieceBytes> near;
    const bool is_aligned = to_cache_line(to.data()) == 0;
    (is_aligned ? copy_twice_of(level) : copy_twice_portable)(to.data(), near.data(), from.data(), from.size());
    fence_streams();
    return digest_of(Bytes(near.data(), from.size()));
  }
  DigestStream digest;
  copy_and_digest(to, from, digest, level);
  return digest.finish();
}

void copy_and_digest(MutableBytes to, Bytes from, DigestStream& digest, VectorLevel level) {
  FRESHET_CHECK(to.size() == from.size());
  if (from.empty()) return;  // It may lie nowhere.
  const CopyTwice copy_twice = copy_twice_of(level);
  alignas(64) std::array<std::byte, kPieceBytes> near;
  const std::size_t head = std::min(to_cache_line(to.data()), from.size());
  if (head != 0) {
    copy_twice_portable(to.data(), near.data(), from.data(), head);
    digest.update(Bytes(near.data(), head));
  }
  for (std::size_t at = head; at < from.size(); at += kPieceBytes) {
    const std::size_t bytes = std::min(kPieceBytes, from.size() - at);
    copy_twice(to.data() + at, near.data(), from.data() + at, bytes);
    digest.update(Bytes(near.data(), bytes));
  }
  fence_streams();
}

}  // namespace freshet
