// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Equal tensors that came without lineage: found by the digest and the size of what is stored, and inherited. Private
/// to this room.

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/manifest.h"
#include "repo/backend/backend.h"
#include "repo/local/stored/segments.h"

namespace freshet {

/// One thread at a time: the holder of the writers' turn.
class EqualContents {
 public:
  EqualContents(const Backend& backend, const StoredSegments& segments) : backend_(backend), segments_(segments) {}

  /// Names stored segments of equal content in the place of those that are not stored. The first call reads the records
  /// of all segments. A segment whose bytes another process may have brought counts only after it was proved.
  Status inherit(Manifest& manifest);
  struct Doubted {
    SegmentName segment;
    std::uint64_t bytes = 0;
    Digest digest;
  };
  /// Segments that inherit() would name if they were proved: to be read without the turn.
  Result<std::vector<Doubted>> doubted(const Manifest& manifest);
  /// The segment has the bytes of this digest, or not.
  void prove(const Doubted& one, bool is_same);
  /// The segment is stored from now on. `is_proved`: this process had its bytes.
  void add(const Digest& digest, const SegmentName& segment, bool is_proved);
  /// The records may be others from now on.
  void forget() { known_.reset(); }

 private:
  struct Known {
    SegmentName segment;
    bool is_proved = false;
  };
  Status need();
  /// Calls `each` with the known content of each tensor that is not stored, and that content's record.
  Status for_each_equal(const Manifest& manifest,
                        const std::function<void(std::uint32_t tensor, Known& known, const SegmentRow& row)>& each);

  const Backend& backend_;
  const StoredSegments& segments_;
  /// One segment for each content; it may have been retired. Nothing before a put first asks for it.
  std::optional<std::unordered_map<Digest, Known>> known_;
};

}  // namespace freshet
