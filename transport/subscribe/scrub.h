// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Looks again, a little at a time, whether served bytes still are what was proved: memory can lose bits, and a delta's
/// proof says nothing of elements that it does not touch. Goes round the served version's tensors for ever, once in an
/// interval, and follows when another version is served.
///
/// Owned by the subscriber's loop thread.

#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "transport/subscribe/fetch/version_fetcher.h"

namespace freshet::detail {

class Scrub {
 public:
  static constexpr std::uint64_t kStepBytes = std::uint64_t{4} << 20;

  /// `interval`: of one round over all bytes; zero or less: never.
  explicit Scrub(Duration interval) : interval_(interval) {}

  Time next_step() const { return next_; }
  /// Digests the next few bytes of what is served. A tensor whose bytes are not what they were is distrusted: nothing
  /// starts from it any more, and the next version that names it fetches it anew. Its index is returned.
  std::optional<std::uint32_t> step(const FetchedMemory& served, Time now);
  std::uint64_t rounds() const { return rounds_; }

 private:
  void next_tensor(const FetchedMemory& served);
  Duration pause(const FetchedMemory& served) const;

  const Duration interval_;
  Time next_{};
  std::uint32_t tensor_ = 0;
  std::uint64_t offset_ = 0;             ///< Of the tensor, digested so far,
  std::optional<SegmentIndex> segment_;  ///< out of this segment,
  Content content_;                      ///< which was to hold this: it may have been written anew meanwhile.
  DigestStream digest_;
  std::uint64_t rounds_ = 0;
};

}  // namespace freshet::detail
