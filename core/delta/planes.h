// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Byte planes of a block: each stored as it is, as one repeated byte, or as a zstd frame, whichever is shortest. For
/// core/delta's own source files.

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace freshet::delta {

/// Keeps zstd's working memory between planes. One thread at a time.
class PlanePacker {
 public:
  /// Appends the plane to `out`. Throws std::bad_alloc. REQUIRES: not empty, at most kPlaneBytesMax.
  void pack(Bytes plane, std::vector<std::byte>& out);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
};

/// Keeps zstd's working memory between planes. One thread at a time.
class PlaneUnpacker {
 public:
  /// Fills `plane` from the start of `in` and moves `in` behind what was read. corrupt when that is not a plane of just
  /// this length. Throws std::bad_alloc.
  Status unpack(Bytes& in, MutableBytes plane);

 private:
  Status decompress(Bytes frame, MutableBytes plane);

  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
};

inline constexpr std::size_t kPlaneBytesMax = std::size_t{1} << 18;

}  // namespace freshet::delta
