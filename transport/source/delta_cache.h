// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Element deltas that were asked for, made once. Several subscribers ask for the same difference within moments, and a
/// group that goes back asks for the inverse of what it had: so each is kept, up to a number of bytes, and so is the
/// knowledge that one turned out too long. Whether to make one at all is core/delta/choose_encoding.h's to say, from a
/// sample of the changes, the link as the receiver measured it, and what encoding really takes here. A delta leads from
/// any segment to any other of the same tensor, so whoever is k versions behind gets one folded difference, made from
/// the two ends.
///
/// Any thread. A thread that asks for a delta that another thread is making waits for it.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/delta/choose_encoding.h"
#include "core/delta/element_delta.h"
#include "core/model/tensor.h"

namespace freshet::source {

class DeltaCache {
 public:
  explicit DeltaCache(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  using Payload = std::shared_ptr<const std::vector<std::byte>>;
  /// The delta from `base` to `target`, or nothing when it is not worth its while on that link. The bytes are those of
  /// the segments that `spec` names, lie in the host's memory, and stay until this returns.
  Payload get(const DeltaSpec& spec, Bytes base, Bytes target, std::uint64_t link_bytes_per_second)
      FRESHET_EXCLUDES(mutex_);

  /// One that was made elsewhere.
  void put(const DeltaSpec& spec, Payload payload) FRESHET_EXCLUDES(mutex_);

  struct Stat {
    std::uint64_t made = 0;
    std::uint64_t found = 0;
    std::uint64_t not_worth = 0;
    std::uint64_t bytes = 0;
  };
  Stat stat() const FRESHET_EXCLUDES(mutex_);

 private:
  using Key = std::pair<SegmentName, SegmentName>;
  /// What there is, or that there is nothing to be had; no value when it would have to be made.
  std::optional<Payload> find(const Key& key, std::uint64_t bytes, std::uint64_t longest) FRESHET_REQUIRES(mutex_);
  struct Entry {
    bool making = false;
    Payload payload;
    std::uint64_t larger_than = 0;  ///< Without a payload: the delta has more bytes than this.
    std::list<Key>::iterator recency;
  };
  void make_room() FRESHET_REQUIRES(mutex_);
  void measured(EncodingQuestion question, double took_ns) FRESHET_REQUIRES(mutex_);

  const std::uint64_t bytes_max_;
  mutable Mutex mutex_;
  CondVar made_;
  std::map<Key, Entry> entries_ FRESHET_GUARDED_BY(mutex_);
  std::list<Key> recent_ FRESHET_GUARDED_BY(mutex_);  ///< The latest first.
  double slowness_ FRESHET_GUARDED_BY(mutex_) = 1;    ///< Of encoding, against EncodingCosts; measured as it goes.
  Stat stat_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::source
