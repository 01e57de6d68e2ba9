// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Equal tensors that came without lineage: found by the digest and the size of what is stored, and inherited. Private
/// to this room.

#include <optional>
#include <unordered_map>

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
  /// of all segments. If another process may have brought a segment's bytes, they are read and proved once before.
  Status inherit(Manifest& manifest);
  /// The segment is stored from now on. `is_proved`: this process had its bytes.
  void add(const Digest& digest, const SegmentName& segment, bool is_proved);
  /// The records may be others from now on.
  void forget() { known_.reset(); }

 private:
  Status need();

  const Backend& backend_;
  const StoredSegments& segments_;
  /// Of each content one segment; it may have been retired. Nothing before a put first asks for it.
  struct Known {
    SegmentName segment;
    bool is_proved = false;
  };
  std::optional<std::unordered_map<Digest, Known>> known_;
};

}  // namespace freshet
