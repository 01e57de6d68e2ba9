// SPDX-License-Identifier: Apache-2.0
#include "transport/file/weight_delta.h"

#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/digest.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::file {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  ///< Stays in the second-level cache between two passes.
constexpr std::size_t kPositionBytes = sizeof(std::uint32_t);

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

/// What a frame may claim of its window, which zstd allocates before a byte has been unpacked: as much as it needs for
/// what it is to hold, and what zstd's ordinary levels use whatever they compress.
int window_log_max(std::uint64_t content_bytes) {
  constexpr int kLeast = 23, kMost = 27;
  return std::clamp(static_cast<int>(std::bit_width(content_bytes)), kLeast, kMost);
}

/// Unpacks a frame piece by piece, in memory that does not grow with what the frame claims.
class Unpacker {
 public:
  Unpacker(Bytes frame, std::uint64_t content_bytes_max)
      : context_(ZSTD_createDCtx()), in_{.src = frame.data(), .size = frame.size(), .pos = 0} {
    if (context_ != nullptr) {
      ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, window_log_max(content_bytes_max));
    }
  }

  /// As many of the next bytes as fit; fewer only at the end.
  Result<std::size_t> read(MutableBytes out) {
    if (context_ == nullptr) return fail(Code::out_of_space, "no memory to unpack it");
    ZSTD_outBuffer to{.dst = out.data(), .size = out.size(), .pos = 0};
    while (to.pos < to.size) {
      const std::size_t before_in = in_.pos, before_out = to.pos;
      const std::size_t left = ZSTD_decompressStream(context_.get(), &to, &in_);
      if (ZSTD_isError(left) != 0) return fail(Code::corrupt, format("unpack: {}", ZSTD_getErrorName(left)));
      if (in_.pos == before_in && to.pos == before_out) break;
    }
    return to.pos;
  }

  Status read_all(MutableBytes out) {
    FRESHET_ASSIGN(const std::size_t bytes, read(out));
    if (bytes != out.size()) return fail(Code::corrupt, "the delta is shorter than its count");
    return {};
  }

  /// Reads `bytes` and forgets them. REQUIRES: `scratch` is not empty.
  Status skip(std::size_t bytes, MutableBytes scratch) {
    while (bytes > 0) {
      const MutableBytes piece = scratch.first(std::min(bytes, scratch.size()));
      FRESHET_TRY(read_all(piece));
      bytes -= piece.size();
    }
    return {};
  }

 private:
  std::unique_ptr<ZSTD_DCtx, FreeContext> context_;
  ZSTD_inBuffer in_;
};

std::uint32_t word_at(const std::byte* from) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < kPositionBytes; ++i) word |= std::to_integer<std::uint32_t>(from[i]) << (8 * i);
  return word;
}

}  // namespace

Result<WeightDelta> WeightDelta::of(const std::string& encoding, const std::string& compression,
                                    const std::string& checksum) {
  const auto unsupported = [](std::string_view what, const std::string& name) {
    return fail(Code::unsupported, format("{} {} is not known to this Freshet", what, shown(name)));
  };
  if (encoding != "xor" && encoding != "overwrite") return unsupported("delta encoding", encoding);
  if (compression != "zstd") return unsupported("compression", compression);
  if (checksum != "xxh3-128") return unsupported("checksum", checksum);
  return WeightDelta(encoding == "overwrite");
}

Status WeightDelta::apply(Bytes frame, const std::string& checksum, MutableBytes memory) const {
  FRESHET_TRY(overwrite_ ? apply_overwrite(frame, memory) : apply_xor(frame, memory));
  if (to_hex(plain_xxh3_of(memory)) == checksum) return {};
  return fail(Code::corrupt, "the checksum of its bytes differs from the delta's");
}

Status WeightDelta::apply_xor(Bytes frame, MutableBytes memory) const {
  Unpacker unpacker(frame, memory.size());
  std::vector<std::byte> piece(std::min(kPieceBytes, memory.size() + 1));
  std::size_t done = 0;
  for (;;) {
    FRESHET_ASSIGN(const std::size_t bytes, unpacker.read(piece));
    if (bytes > memory.size() - done) return fail(Code::corrupt, "the delta is longer than the tensor");
    for (std::size_t i = 0; i < bytes; ++i) memory[done + i] ^= piece[i];
    done += bytes;
    if (bytes < piece.size()) break;
  }
  if (done != memory.size()) {
    return fail(Code::corrupt, format("the delta has {} bytes, the tensor {}", done, memory.size()));
  }
  return {};
}

/// The frame is unpacked twice side by side, once for the positions and once for the values behind them, so that
/// neither list is ever held: a count costs nothing until its bytes are there.
Status WeightDelta::apply_overwrite(Bytes frame, MutableBytes memory) const {
  const std::uint64_t body_bytes_max = kPositionBytes + (kPositionBytes + 1) * std::uint64_t{memory.size()};
  Unpacker positions(frame, body_bytes_max), values(frame, body_bytes_max);
  std::byte head[kPositionBytes];
  FRESHET_ASSIGN(const std::size_t head_bytes, positions.read(head));
  const std::size_t count = head_bytes == kPositionBytes ? word_at(head) : 0;
  // A position for each byte at most.
  if (head_bytes != kPositionBytes || count > memory.size()) return fail(Code::corrupt, "the delta's count is wrong");
  const std::size_t batch = std::clamp<std::size_t>(count, 1, kPieceBytes / kPositionBytes);
  std::vector<std::byte> places(batch * kPositionBytes), bytes(batch);
  FRESHET_TRY(values.skip(kPositionBytes * (count + 1), places));
  for (std::size_t done = 0; done < count;) {
    const std::size_t now = std::min(batch, count - done);
    FRESHET_TRY(positions.read_all(MutableBytes(places).first(now * kPositionBytes)));
    FRESHET_TRY(values.read_all(MutableBytes(bytes).first(now)));
    for (std::size_t i = 0; i < now; ++i) {
      const std::size_t position = word_at(places.data() + i * kPositionBytes);
      if (position >= memory.size()) return fail(Code::corrupt, "the delta writes beyond the tensor");
      memory[position] = bytes[i];
    }
    done += now;
  }
  FRESHET_ASSIGN(const std::size_t behind, values.read(MutableBytes(bytes).first(1)));
  if (behind != 0) return fail(Code::corrupt, "the delta is longer than its count");
  return {};
}

}  // namespace freshet::file
