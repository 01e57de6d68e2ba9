// SPDX-License-Identifier: Apache-2.0
#include "core/delta/kernels.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "core/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The bodies are templates that are inlined into one function per vector level, whose target attribute then says for
// which instructions the compiler turns their loops into vector code. Only find() is written with intrinsics: no
// compiler makes a compressing store of it.
#define FRESHET_INLINE inline __attribute__((always_inline))

namespace freshet::delta {
namespace {

template <typename Word>
FRESHET_INLINE Word load(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof(Word));
  return word;
}

template <typename Word>
FRESHET_INLINE Word* words_of(std::array<std::byte, kBatch * kWidthMax>& bytes) {
  return reinterpret_cast<Word*>(bytes.data());
}
template <typename Word>
FRESHET_INLINE const Word* words_of(const std::array<std::byte, kBatch * kWidthMax>& bytes) {
  return reinterpret_cast<const Word*>(bytes.data());
}

/// A float's bits as an integer that grows with its value, so that neighbours differ by one, on both sides of zero too
/// (-0 and +0 are neighbours). Integers stay what they are.
template <typename Word, bool kOrdered>
FRESHET_INLINE Word rank_of(Word bits) {
  if constexpr (!kOrdered) return bits;
  constexpr int kSign = 8 * sizeof(Word) - 1;
  const auto negative = static_cast<Word>(static_cast<std::make_signed_t<Word>>(bits) >> kSign);
  return static_cast<Word>(bits ^ (negative | static_cast<Word>(Word{1} << kSign)));
}

template <typename Word, bool kOrdered>
FRESHET_INLINE Word bits_of(Word rank) {
  if constexpr (!kOrdered) return rank;
  constexpr int kSign = 8 * sizeof(Word) - 1;
  const auto negative = static_cast<Word>(static_cast<std::make_signed_t<Word>>(static_cast<Word>(~rank)) >> kSign);
  return static_cast<Word>(rank ^ (negative | static_cast<Word>(Word{1} << kSign)));
}

/// 0, -1, 1, -2, … as 0, 1, 2, 3, …: small differences of either sign have zeros in all planes but the lowest.
template <typename Word>
FRESHET_INLINE Word zigzag(Word difference) {
  constexpr int kSign = 8 * sizeof(Word) - 1;
  const auto negative = static_cast<Word>(static_cast<std::make_signed_t<Word>>(difference) >> kSign);
  return static_cast<Word>(static_cast<Word>(difference << 1) ^ negative);
}

template <typename Word>
FRESHET_INLINE Word unzigzag(Word word) {
  return static_cast<Word>(static_cast<Word>(word >> 1) ^ static_cast<Word>(Word{0} - (word & Word{1})));
}

template <typename Word, bool kOrdered>
FRESHET_INLINE void difference_body(const std::byte* base, const std::byte* target, const std::uint32_t* places,
                                    std::size_t count, const PlanesOut& planes, ChangeBatch& batch) {
  Word* const old_bits = words_of<Word>(batch.old_bits);
  Word* const new_bits = words_of<Word>(batch.new_bits);
  Word* const differences = words_of<Word>(batch.differences);
  for (std::size_t i = 0; i < count; ++i) {
    old_bits[i] = load<Word>(base + std::size_t{places[i]} * sizeof(Word));
    new_bits[i] = load<Word>(target + std::size_t{places[i]} * sizeof(Word));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Word from = rank_of<Word, kOrdered>(old_bits[i]);
    const Word to = rank_of<Word, kOrdered>(new_bits[i]);
    differences[i] = zigzag<Word>(static_cast<Word>(to - from));
  }
  for (std::size_t plane = 0; plane < sizeof(Word); ++plane) {
    std::byte* const out = planes[plane];
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(differences[i] >> (8 * plane));
  }
}

/// So many places ahead of the one that is read, memory is asked for: a change here is a cache miss as a rule.
constexpr std::size_t kFetchAhead = kPlacesAhead;

template <typename Word, bool kOrdered>
FRESHET_INLINE void change_body(std::byte* memory, const std::uint32_t* places, std::size_t count,
                                const PlanesIn& planes, bool reverse, ChangeBatch& batch) {
  Word* const old_bits = words_of<Word>(batch.old_bits);
  Word* const new_bits = words_of<Word>(batch.new_bits);
  Word* const differences = words_of<Word>(batch.differences);
  for (std::size_t i = 0; i < count; ++i) differences[i] = static_cast<Word>(planes[0][i]);
  for (std::size_t plane = 1; plane < sizeof(Word); ++plane) {
    const std::byte* const in = planes[plane];
    for (std::size_t i = 0; i < count; ++i) {
      differences[i] = static_cast<Word>(differences[i] | static_cast<Word>(static_cast<Word>(in[i]) << (8 * plane)));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    __builtin_prefetch(memory + std::size_t{places[i + kFetchAhead]} * sizeof(Word), 1);
    old_bits[i] = load<Word>(memory + std::size_t{places[i]} * sizeof(Word));
  }
  const Word flip = reverse ? static_cast<Word>(~Word{0}) : Word{0};  // (d ^ -1) - -1 is -d.
  for (std::size_t i = 0; i < count; ++i) {
    const auto step = static_cast<Word>(static_cast<Word>(unzigzag<Word>(differences[i]) ^ flip) - flip);
    new_bits[i] = bits_of<Word, kOrdered>(static_cast<Word>(rank_of<Word, kOrdered>(old_bits[i]) + step));
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(memory + std::size_t{places[i]} * sizeof(Word), &new_bits[i], sizeof(Word));
  }
}

/// Finalisers of SplitMix64 (Steele, Lea, Flood, 2014) and MurmurHash3 (Appleby): bijections in which every bit of the
/// argument turns half of the result's.
FRESHET_INLINE std::uint64_t mix_low(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
FRESHET_INLINE std::uint64_t mix_high(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDULL;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ULL;
  return x ^ (x >> 33);
}

template <typename Word>
FRESHET_INLINE DeltaSum sum_body(DeltaSum key, std::uint64_t first, const std::uint32_t* places, std::size_t count,
                                 const ChangeBatch& batch) {
  const Word* const old_bits = words_of<Word>(batch.old_bits);
  const Word* const new_bits = words_of<Word>(batch.new_bits);
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t index = first + places[i];
    const std::uint64_t low_place = index * 0x9E3779B97F4A7C15ULL + key.low;
    const std::uint64_t high_place = index * 0xD1B54A32D192ED03ULL + key.high;
    low += mix_low(low_place ^ new_bits[i]) - mix_low(low_place ^ old_bits[i]);
    high += mix_high(high_place ^ new_bits[i]) - mix_high(high_place ^ old_bits[i]);
  }
  return {.low = low, .high = high};
}

/// What is left behind the last whole vector.
template <typename Word>
FRESHET_INLINE std::uint32_t* find_rest(const std::byte* base, const std::byte* target, std::size_t from,
                                        std::size_t elements, std::uint32_t first, std::uint32_t* out) {
  for (std::size_t i = from; i < elements; ++i) {
    *out = first + static_cast<std::uint32_t>(i);
    out += load<Word>(base + i * sizeof(Word)) != load<Word>(target + i * sizeof(Word));
  }
  return out;
}

/// The loops over changes, as the compiler makes them of their bodies for a vector level; TARGET is the function's
/// attribute.
#define FRESHET_LOOPS(TARGET)                                                                                          \
  template <typename Word, bool kOrdered>                                                                              \
  TARGET static void difference(const std::byte* base, const std::byte* target, const std::uint32_t* places,           \
                                std::size_t count, const PlanesOut& planes, ChangeBatch& batch) {                      \
    difference_body<Word, kOrdered>(base, target, places, count, planes, batch);                                       \
  }                                                                                                                    \
  template <typename Word, bool kOrdered>                                                                              \
  TARGET static void change(std::byte* memory, const std::uint32_t* places, std::size_t count, const PlanesIn& planes, \
                            bool reverse, ChangeBatch& batch) {                                                        \
    change_body<Word, kOrdered>(memory, places, count, planes, reverse, batch);                                        \
  }                                                                                                                    \
  template <typename Word>                                                                                             \
  TARGET static DeltaSum sum(DeltaSum key, std::uint64_t first, const std::uint32_t* places, std::size_t count,        \
                             const ChangeBatch& batch) {                                                               \
    return sum_body<Word>(key, first, places, count, batch);                                                           \
  }

struct Portable {
  template <typename Word>
  static std::size_t find(const std::byte* base, const std::byte* target, std::size_t elements, std::uint32_t first,
                          std::uint32_t* places) {
    constexpr std::size_t kStep = 64 / sizeof(Word);
    std::uint32_t* out = places;
    std::size_t i = 0;
    for (; i + kStep <= elements; i += kStep) {
      std::uint64_t differ = 0;
      for (std::size_t at = 0; at < 64; at += 8) {
        differ |=
            load<std::uint64_t>(base + i * sizeof(Word) + at) ^ load<std::uint64_t>(target + i * sizeof(Word) + at);
      }
      if (differ != 0) out = find_rest<Word>(base, target, i, i + kStep, first, out);
    }
    return static_cast<std::size_t>(find_rest<Word>(base, target, i, elements, first, out) - places);
  }

  FRESHET_LOOPS()
};

#if defined(__x86_64__)

/// The next page is on its way while this one is compared: the processor's own prefetchers stop at a page's end, and
/// forget the stream while changes are taken from what was scanned. Behind the end of a tensor it faults nothing.
FRESHET_INLINE void fetch_ahead(const std::byte* address) {
  constexpr std::uintptr_t kAhead = 4096;
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(address) + kAhead), _MM_HINT_T0);
}

#define FRESHET_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define FRESHET_AVX512 __attribute__((target("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl")))

struct Avx2 {
  /// A bit at the first byte of each element of 32 bytes that is the same on both sides.
  template <typename Word>
  FRESHET_AVX2 static inline std::uint32_t equal_bits(const std::byte* base, const std::byte* target) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(target));
    __m256i equal;
    if constexpr (sizeof(Word) == 1) equal = _mm256_cmpeq_epi8(a, b);
    if constexpr (sizeof(Word) == 2) equal = _mm256_cmpeq_epi16(a, b);
    if constexpr (sizeof(Word) == 4) equal = _mm256_cmpeq_epi32(a, b);
    if constexpr (sizeof(Word) == 8) equal = _mm256_cmpeq_epi64(a, b);
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(equal));
  }

  template <typename Word>
  FRESHET_AVX2 static std::size_t find(const std::byte* base, const std::byte* target, std::size_t elements,
                                       std::uint32_t first, std::uint32_t* places) {
    constexpr std::size_t kStep = 64 / sizeof(Word);
    // One bit of each element: every bit, every second, every fourth, every eighth.
    constexpr std::uint64_t kFirstBytes = ~std::uint64_t{0} / ((std::uint64_t{1} << (sizeof(Word) - 1)) * 2 - 1);
    std::uint32_t* out = places;
    std::size_t i = 0;
    for (; i + kStep <= elements; i += kStep) {
      const std::byte* const a = base + i * sizeof(Word);
      const std::byte* const b = target + i * sizeof(Word);
      fetch_ahead(a);
      fetch_ahead(b);
      const std::uint64_t equal = equal_bits<Word>(a, b) | std::uint64_t{equal_bits<Word>(a + 32, b + 32)} << 32;
      const std::uint32_t here = first + static_cast<std::uint32_t>(i);
      for (std::uint64_t differ = ~equal & kFirstBytes; differ != 0; differ &= differ - 1) {
        *out++ = here + static_cast<std::uint32_t>(std::countr_zero(differ)) / sizeof(Word);
      }
    }
    return static_cast<std::size_t>(find_rest<Word>(base, target, i, elements, first, out) - places);
  }

  FRESHET_LOOPS(FRESHET_AVX2)
};

struct Avx512 {
  /// A bit for each element of 64 bytes that differs.
  template <typename Word>
  FRESHET_AVX512 static inline std::uint64_t differing(const std::byte* base, const std::byte* target) {
    const __m512i a = _mm512_loadu_si512(base);
    const __m512i b = _mm512_loadu_si512(target);
    if constexpr (sizeof(Word) == 1) return _mm512_cmpneq_epi8_mask(a, b);
    if constexpr (sizeof(Word) == 2) return _mm512_cmpneq_epi16_mask(a, b);
    if constexpr (sizeof(Word) == 4) return _mm512_cmpneq_epi32_mask(a, b);
    return _mm512_cmpneq_epi64_mask(a, b);
  }

  template <typename Word>
  FRESHET_AVX512 static std::size_t find(const std::byte* base, const std::byte* target, std::size_t elements,
                                         std::uint32_t first, std::uint32_t* places) {
    constexpr std::size_t kStep = 64 / sizeof(Word);
    constexpr std::size_t kGroup = kStep < 16 ? kStep : 16;
    const __m512i ascending = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i here = _mm512_add_epi32(ascending, _mm512_set1_epi32(static_cast<int>(first)));
    std::uint32_t* out = places;
    std::size_t i = 0;
    for (; i + kStep <= elements; i += kStep) {
      const std::byte* const a = base + i * sizeof(Word);
      const std::byte* const b = target + i * sizeof(Word);
      fetch_ahead(a);
      fetch_ahead(b);
      const std::uint64_t differ = differing<Word>(a, b);
      for (std::size_t group = 0; group < kStep / kGroup; ++group) {
        const auto bits = static_cast<__mmask16>(differ >> (16 * group));
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(bits, here));
        out += _mm_popcnt_u32(bits);
        here = _mm512_add_epi32(here, _mm512_set1_epi32(static_cast<int>(kGroup)));
      }
    }
    return static_cast<std::size_t>(find_rest<Word>(base, target, i, elements, first, out) - places);
  }

  FRESHET_LOOPS(FRESHET_AVX512)
};

/// The scan compares bytes and words and wants the compressing moves' masks: more than AVX-512's foundation.
bool has_wide_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

#endif

template <typename Level, typename Word, bool kOrdered>
constexpr Kernels kKernels = {.find = Level::template find<Word>,
                              .difference = Level::template difference<Word, kOrdered>,
                              .change = Level::template change<Word, kOrdered>,
                              .sum = Level::template sum<Word>};

template <typename Level>
const Kernels& kernels_at(DType dtype) {
  switch (dtype) {
    case DType::f64: return kKernels<Level, std::uint64_t, true>;
    case DType::f32: return kKernels<Level, std::uint32_t, true>;
    case DType::f16:
    case DType::bf16: return kKernels<Level, std::uint16_t, true>;
    default: break;
  }
  switch (word_bytes_of(dtype)) {
    case 8: return kKernels<Level, std::uint64_t, false>;
    case 4: return kKernels<Level, std::uint32_t, false>;
    case 2: return kKernels<Level, std::uint16_t, false>;
    default: return kKernels<Level, std::uint8_t, false>;
  }
}

}  // namespace

const Kernels& kernels_of(DType dtype, VectorLevel level) {
  FRESHET_CHECK(is_supported(level));
#if defined(__x86_64__)
  static const bool wide_avx512 = has_wide_avx512();
  if (level == VectorLevel::avx512 && wide_avx512) return kernels_at<Avx512>(dtype);
  if (level != VectorLevel::portable && __builtin_cpu_supports("bmi2")) return kernels_at<Avx2>(dtype);
#endif
  return kernels_at<Portable>(dtype);
}

}  // namespace freshet::delta
