// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/scrub.h"

#include <algorithm>

namespace freshet::detail {
namespace {

/// However large the model and short the interval: the loop has other things to do.
constexpr Duration kPauseMin = std::chrono::milliseconds(10);

}  // namespace

Duration Scrub::pause(const FetchedMemory& served) const {
  const double bytes = static_cast<double>(served.version().manifest->architecture->bytes());
  const double steps = std::max(1.0, bytes / static_cast<double>(kStepBytes));
  const double ns = static_cast<double>(interval_.count()) / steps;
  return std::max(kPauseMin, Duration(static_cast<std::int64_t>(ns)));
}

void Scrub::next_tensor(const FetchedMemory& served) {
  segment_.reset();
  offset_ = 0;
  if (++tensor_ < served.version().segments.size()) return;
  tensor_ = 0;
  ++rounds_;
}

std::optional<std::uint32_t> Scrub::step(const FetchedMemory& served, Time now) {
  if (interval_ <= Duration::zero()) {
    next_ = Time::max();
    return std::nullopt;
  }
  if (now < next_) return std::nullopt;
  next_ = now + pause(served);
  const FetchedVersion& version = served.version();
  std::uint64_t left = kStepBytes;
  // Small tensors are many: as many as there are, at most once round.
  for (std::size_t i = 0; i < version.segments.size() && left > 0; ++i) {
    if (tensor_ >= version.segments.size()) tensor_ = 0;  // A smaller architecture.
    const std::uint32_t tensor = tensor_;
    const SegmentIndex segment = version.segments[tensor];
    const Content expected = content_of(*version.manifest, tensor);
    if (segment_ != segment || content_ != expected) {
      segment_ = segment;
      content_ = expected;
      offset_ = 0;
      digest_.reset();
    }
    const Bytes bytes = served.bytes(tensor);
    const std::uint64_t count = std::min<std::uint64_t>(left, bytes.size() - offset_);
    digest_.update(bytes.subspan(offset_, count));
    offset_ += count;
    left -= count;
    if (offset_ < bytes.size()) break;
    const Content* known = served.arena()->content(segment);
    next_tensor(served);
    // Once is enough: what is distrusted already has no content.
    if (known == nullptr || *known != expected || digest_.finish() == expected.digest) continue;
    served.arena()->distrust(segment);
    return tensor;
  }
  return std::nullopt;
}

}  // namespace freshet::detail
