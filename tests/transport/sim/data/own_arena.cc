// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/data/own_arena.h"

#include <algorithm>

namespace freshet::sim {

OwnArena::OwnArena(Host& host, std::uint64_t copies)
    : host_(host), pool_({.limit_bytes = copies * host.architecture->bytes()}) {}

Result<OwnArena::Plan> OwnArena::plan(const Manifest& manifest) {
  const Kept* base = kept_.empty() ? nullptr : &kept_.rbegin()->second;
  Plan plan;
  plan.segments = base == nullptr ? std::vector<SegmentIndex>(manifest.digests.size()) : base->segments;
  for (const std::uint32_t tensor :
       manifest.owners.changed_since(base == nullptr ? OwnerMap() : base->manifest->owners)) {
    const std::uint64_t bytes = host_.architecture->tensors()[tensor].bytes();
    auto segment = pool_.acquire(tensor, bytes);
    const std::uint64_t slab = host_.architecture->bytes();
    if (!segment && pool_.add_slab(slab)) {
      memory_->slabs.emplace_back(slab);
      segment = pool_.acquire(tensor, bytes);
    }
    if (!segment) {
      abandon(plan);
      return tl::unexpected(segment.error());
    }
    plan.segments[tensor] = *segment;
    plan.missing.push_back(tensor);
  }
  return plan;
}

void OwnArena::write(const Plan& plan, std::uint32_t tensor, std::uint64_t offset, Bytes bytes) {
  SegmentPlace place = pool_.place(plan.segments.at(tensor));
  if (offset + bytes.size() > place.bytes) host_.world.violated("more bytes came than were asked for");
  place.offset += offset;
  place.bytes = bytes.size();
  host_.check_write(*memory_, place, tensor);
  std::copy(bytes.begin(), bytes.end(), memory_->at(place).begin());
}

void OwnArena::abandon(const Plan& plan) {
  for (const std::uint32_t tensor : plan.missing) {
    const SegmentIndex segment = plan.segments[tensor];
    if (!shown_.contains(segment)) pool_.release(segment);
  }
}

std::uint64_t OwnArena::keep(std::shared_ptr<const Manifest> manifest, const Plan& plan) {
  for (const std::uint32_t tensor : plan.missing) pool_.seal(plan.segments[tensor]);
  kept_[++last_kept_] = {.manifest = std::move(manifest), .segments = plan.segments};
  return last_kept_;
}

bool OwnArena::is_kept(SegmentIndex segment) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const auto& kept) {
    const auto& segments = kept.second.segments;
    return std::find(segments.begin(), segments.end(), segment) != segments.end();
  });
}

void OwnArena::let_go(std::uint64_t kept) {
  const std::vector<SegmentIndex> segments = kept_.at(kept).segments;
  kept_.erase(kept);
  for (const SegmentIndex segment : segments) release_unless_used(segment);
}

void OwnArena::give_back(std::span<const SegmentIndex> segments) {
  for (const SegmentIndex segment : segments) {
    lent_.erase(segment);
    release_unless_used(segment);
  }
}

void OwnArena::show(std::span<const SegmentIndex> segments) {
  if (host_.sabotage != Sabotage::reuse_what_is_passed_on) shown_.insert(segments.begin(), segments.end());
}

void OwnArena::unshow(std::span<const SegmentIndex> segments) {
  for (const SegmentIndex segment : segments) {
    const auto at = shown_.find(segment);
    if (at == shown_.end()) continue;  // A rule was broken on purpose.
    shown_.erase(at);
    release_unless_used(segment);
  }
}

void OwnArena::release_unless_used(SegmentIndex segment) {
  if (is_kept(segment) || lent_.contains(segment) || shown_.contains(segment) || pool_.is_free(segment)) return;
  pool_.release(segment);
}

}  // namespace freshet::sim
