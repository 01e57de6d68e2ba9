// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/arena/arena.h"
#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::uint64_t kCacheLineBytes = 64;
constexpr std::uint64_t kAlignedBytes = 4096;
constexpr std::uint32_t kNoTensor = 0xFFFFFFFF;

}  // namespace

std::uint64_t segment_alignment(std::uint64_t bytes) {
  return bytes >= kAlignedBytes ? kAlignedBytes : kCacheLineBytes;
}

std::uint64_t segment_span(std::uint64_t bytes) {
  return round_up(std::max<std::uint64_t>(bytes, 1), segment_alignment(bytes));
}

Result<std::uint32_t> SegmentPool::add_slab(std::uint64_t bytes) {
  if (slab_bytes_ > options_.limit_bytes || bytes > options_.limit_bytes - slab_bytes_) {
    return fail(Code::out_of_space, format("the arena has {} of at most {} bytes, {} more do not fit", slab_bytes_,
                                           options_.limit_bytes, bytes));
  }
  slabs_.push_back({.bytes = bytes});
  slab_bytes_ += bytes;
  free_bytes_ += bytes;
  return static_cast<std::uint32_t>(slabs_.size() - 1);
}

std::optional<SegmentIndex> SegmentPool::take(std::uint32_t tensor, std::uint64_t bytes) {
  // Larger than all slabs together: out before a size near 2^64 is rounded up.
  if (bytes > slab_bytes_) return std::nullopt;
  if (auto segment = take_free(tensor, bytes)) return segment;
  return cut_uncut(tensor, bytes);
}

bool SegmentPool::is_free(SegmentIndex segment) const {
  return segment < segments_.size() && segments_[segment].state == State::free;
}

bool SegmentPool::take_this(SegmentIndex segment) {
  if (!is_free(segment)) return false;
  forget_free(segment);
  segments_[segment].state = State::writing;
  free_bytes_ -= segments_[segment].span;
  return true;
}

Result<SegmentIndex> SegmentPool::acquire(std::uint32_t tensor, std::uint64_t bytes) {
  if (auto segment = take(tensor, bytes)) return *segment;
  if (bytes <= free_bytes_) {
    if (auto run = find_run(bytes)) return melt(*run, tensor, bytes);
  }
  return fail(Code::out_of_space,
              format("no room for {} bytes: {} of the arena's {} are free", bytes, free_bytes_, slab_bytes_));
}

std::optional<SegmentIndex> SegmentPool::take_free(std::uint32_t tensor, std::uint64_t bytes) {
  const auto size = free_.find(bytes);
  if (size == free_.end()) return std::nullopt;
  auto& by_tensor = size->second;
  auto found = by_tensor.upper_bound(tensor);
  if (found != by_tensor.begin() && std::prev(found)->first == tensor) {
    --found;
  } else {
    found = by_tensor.begin();
  }
  const SegmentIndex index = found->second;
  by_tensor.erase(found);
  if (by_tensor.empty()) free_.erase(size);
  Segment& segment = segments_[index];
  segment.tensor = tensor;
  segment.state = State::writing;
  free_bytes_ -= segment.span;
  return index;
}

std::optional<SegmentIndex> SegmentPool::cut_uncut(std::uint32_t tensor, std::uint64_t bytes) {
  const std::uint64_t span = segment_span(bytes);
  for (std::uint32_t s = 0; s < slabs_.size(); ++s) {
    SlabRoom& slab = slabs_[s];
    const std::uint64_t offset = round_up(slab.used, segment_alignment(bytes));
    if (offset > slab.bytes || span > slab.bytes - offset) continue;
    if (offset > slab.used) {  // What the alignment skips stays usable, as a free segment.
      const std::uint64_t gap = offset - slab.used;
      slab.cut.push_back(add_segment({.place = {s, slab.used, gap}, .span = gap, .tensor = kNoTensor}));
      release(slab.cut.back());
      free_bytes_ -= gap;  // It was counted as uncut room.
    }
    slab.cut.push_back(add_segment({.place = {s, offset, bytes}, .span = span, .tensor = tensor}));
    slab.used = offset + span;
    free_bytes_ -= span;
    return slab.cut.back();
  }
  return std::nullopt;
}

std::optional<SegmentPool::Run> SegmentPool::find_run(std::uint64_t bytes) const {
  const std::uint64_t span = segment_span(bytes);
  for (std::uint32_t s = 0; s < slabs_.size(); ++s) {
    const SlabRoom& slab = slabs_[s];
    std::size_t first = 0;
    for (std::size_t i = 0; i <= slab.cut.size(); ++i) {
      const bool at_end = i == slab.cut.size();
      if (!at_end && segments_[slab.cut[i]].state != State::free) {
        first = i + 1;
        continue;
      }
      const std::uint64_t start = first < slab.cut.size() ? segments_[slab.cut[first]].place.offset : slab.used;
      const std::uint64_t end = at_end ? slab.bytes : segments_[slab.cut[i]].place.offset + segments_[slab.cut[i]].span;
      const std::uint64_t aligned = round_up(start, segment_alignment(bytes));
      if (aligned <= end && span <= end - aligned) return Run{.slab = s, .first = first, .last = at_end ? i : i + 1};
    }
  }
  return std::nullopt;
}

SegmentIndex SegmentPool::melt(const Run& run, std::uint32_t tensor, std::uint64_t bytes) {
  SlabRoom& slab = slabs_[run.slab];
  const auto first = slab.cut.begin() + static_cast<std::ptrdiff_t>(run.first);
  const auto last = slab.cut.begin() + static_cast<std::ptrdiff_t>(run.last);
  const std::uint64_t start = first == slab.cut.end() ? slab.used : segments_[*first].place.offset;
  std::uint64_t end = start;
  for (auto it = first; it != last; ++it) {
    forget_free(*it);
    segments_[*it].state = State::melted;
    end += segments_[*it].span;
  }
  const std::uint64_t offset = round_up(start, segment_alignment(bytes));
  const std::uint64_t span = segment_span(bytes);
  std::vector<SegmentIndex> made;
  const auto add_free = [&](std::uint64_t from, std::uint64_t to) {
    if (from >= to) return;
    made.push_back(add_segment({.place = {run.slab, from, to - from}, .span = to - from, .tensor = kNoTensor}));
    free_bytes_ -= to - from;
    release(made.back());
  };
  add_free(start, offset);
  const SegmentIndex segment = add_segment({.place = {run.slab, offset, bytes}, .span = span, .tensor = tensor});
  made.push_back(segment);
  add_free(offset + span, end);
  free_bytes_ -= span;
  slab.used = std::max(slab.used, offset + span);
  const auto position = slab.cut.erase(first, last);
  slab.cut.insert(position, made.begin(), made.end());
  return segment;
}

SegmentIndex SegmentPool::add_segment(const Segment& segment) {
  segments_.push_back(segment);
  return static_cast<SegmentIndex>(segments_.size() - 1);
}

void SegmentPool::forget_free(SegmentIndex segment) {
  const auto size = free_.find(segments_[segment].place.bytes);
  FRESHET_CHECK(size != free_.end());
  auto& by_tensor = size->second;
  auto [from, to] = by_tensor.equal_range(segments_[segment].tensor);
  while (from != to && from->second != segment) ++from;
  FRESHET_CHECK(from != to);
  by_tensor.erase(from);
  if (by_tensor.empty()) free_.erase(size);
}

void SegmentPool::seal(SegmentIndex segment) {
  FRESHET_CHECK(segment < segments_.size() && segments_[segment].state == State::writing);
  segments_[segment].state = State::live;
}

void SegmentPool::release(SegmentIndex segment) {
  FRESHET_CHECK(segment < segments_.size());
  Segment& released = segments_[segment];
  FRESHET_CHECK(released.state == State::writing || released.state == State::live);
  released.state = State::free;
  free_bytes_ += released.span;
  free_[released.place.bytes].emplace(released.tensor, segment);
}

const SegmentPlace& SegmentPool::place(SegmentIndex segment) const {
  FRESHET_CHECK(segment < segments_.size());
  return segments_[segment].place;
}

}  // namespace freshet
