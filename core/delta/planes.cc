// SPDX-License-Identifier: Apache-2.0
#include "core/delta/planes.h"

// For the one parameter that says that literals are to be Huffman coded at high speed too.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::delta {
namespace {

/// How a plane is stored: one byte, then a length of four, then so many bytes.
enum class PlaneForm : std::uint8_t { raw = 0, repeated = 1, zstd = 2 };
constexpr std::size_t kPlaneHeadBytes = 5;

void check_zstd(std::size_t code) { FRESHET_CHECK(ZSTD_isError(code) == 0); }

/// Differences have hardly any repeated strings, so looking for them costs time and wins nothing: what shrinks them is
/// the entropy coder. But a plane that is nearly all zeros has them, and a search that finds them at once is cheap.
ZSTD_CCtx_s* new_compressor() {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  if (context == nullptr) throw std::bad_alloc();
  check_zstd(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1));
  check_zstd(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 18));
  check_zstd(ZSTD_CCtx_setParameter(context, ZSTD_c_targetLength, 64));
  check_zstd(ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman));
  return context;
}

void append_head(PlaneForm form, std::size_t bytes, std::vector<std::byte>& out) {
  out.push_back(static_cast<std::byte>(form));
  append_little_endian(out, static_cast<std::uint32_t>(bytes));
}

bool is_repeated(Bytes plane) { return std::memcmp(plane.data(), plane.data() + 1, plane.size() - 1) == 0; }

}  // namespace

void PlanePacker::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
void PlaneUnpacker::Free::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

void PlanePacker::pack(Bytes plane, std::vector<std::byte>& out) {
  FRESHET_CHECK(!plane.empty() && plane.size() <= kPlaneBytesMax);
  if (is_repeated(plane)) {
    append_head(PlaneForm::repeated, 1, out);
    out.push_back(plane[0]);
    return;
  }
  if (!context_) context_.reset(new_compressor());
  const std::size_t head = out.size();
  out.resize(head + kPlaneHeadBytes + plane.size());
  // One byte less than the plane: what does not fit there is no gain, and an error here.
  const std::size_t bytes =
      ZSTD_compress2(context_.get(), out.data() + head + kPlaneHeadBytes, plane.size() - 1, plane.data(), plane.size());
  const bool is_shorter = ZSTD_isError(bytes) == 0;
  out[head] = static_cast<std::byte>(is_shorter ? PlaneForm::zstd : PlaneForm::raw);
  store_little_endian(out.data() + head + 1, static_cast<std::uint32_t>(is_shorter ? bytes : plane.size()));
  if (!is_shorter) std::copy(plane.begin(), plane.end(), out.data() + head + kPlaneHeadBytes);
  if (is_shorter) out.resize(head + kPlaneHeadBytes + bytes);
}

Status PlaneUnpacker::unpack(Bytes& in, MutableBytes plane) {
  if (in.size() < kPlaneHeadBytes) return fail(Code::corrupt, "a plane is cut off");
  const auto form = static_cast<PlaneForm>(in[0]);
  const auto bytes = load_little_endian<std::uint32_t>(in.data() + 1);
  in = in.subspan(kPlaneHeadBytes);
  if (bytes > in.size()) return fail(Code::corrupt, format("a plane claims {} of {} bytes", bytes, in.size()));
  const Bytes stored = in.first(bytes);
  in = in.subspan(bytes);
  switch (form) {
    case PlaneForm::raw:
      if (stored.size() != plane.size()) break;
      std::copy(stored.begin(), stored.end(), plane.begin());
      return {};
    case PlaneForm::repeated:
      if (stored.size() != 1) break;
      std::fill(plane.begin(), plane.end(), stored[0]);
      return {};
    case PlaneForm::zstd: return decompress(stored, plane);
  }
  return fail(Code::corrupt, format("a plane of {} bytes has form {} and {} bytes stored", plane.size(),
                                    static_cast<int>(form), stored.size()));
}

/// One frame, no more, that says its size and keeps it. It is decoded into the plane itself, so that a frame's own
/// window size, whatever it claims, takes no memory.
Status PlaneUnpacker::decompress(Bytes frame, MutableBytes plane) {
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != plane.size() ||
      ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) {
    return fail(Code::corrupt, format("a zstd frame of {} bytes is not a plane of {}", frame.size(), plane.size()));
  }
  if (!context_) context_.reset(ZSTD_createDCtx());
  if (!context_) throw std::bad_alloc();
  const std::size_t bytes = ZSTD_decompressDCtx(context_.get(), plane.data(), plane.size(), frame.data(), frame.size());
  if (ZSTD_isError(bytes) != 0)
    return fail(Code::corrupt, format("a plane's zstd frame: {}", ZSTD_getErrorName(bytes)));
  if (bytes != plane.size()) return fail(Code::corrupt, format("a plane has {} of {} bytes", bytes, plane.size()));
  return {};
}

}  // namespace freshet::delta
