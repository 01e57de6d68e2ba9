// SPDX-License-Identifier: Apache-2.0
#include "transport/arena/slab_arena.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
/// An arena grows by a slab of at least this, and of this part of its limit: every reader keeps a descriptor per slab.
constexpr std::uint64_t kGrowthBytesMin = std::uint64_t{4} << 20;
constexpr std::uint64_t kGrowthsMax = 64;
constexpr double kCopiesMax = 64;
constexpr double kDefaultLimitCopies = 4;
constexpr std::uint64_t kDefaultLimitExtraBytes = std::uint64_t{64} << 20;

/// Where a segment of `bytes` ends that starts at `offset` or the next boundary behind it.
std::uint64_t end_of_segment(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t alignment = segment_alignment(bytes);
  return round_up(offset, alignment) + segment_span(bytes);
}

/// As many tensors as fit, copy after copy; the last copy may be a part of one.
std::vector<SlabArena::Want> wants_within(std::span<const std::uint64_t> tensor_bytes, std::uint64_t bytes) {
  std::vector<SlabArena::Want> wants;
  for (bool fits = !tensor_bytes.empty(); fits;) {
    for (std::uint32_t tensor = 0; tensor < tensor_bytes.size(); ++tensor) {
      const std::uint64_t span = segment_span(tensor_bytes[tensor]);
      fits = fits && span <= bytes;
      if (span > bytes) continue;
      wants.push_back({.tensor = tensor, .bytes = tensor_bytes[tensor]});
      bytes -= span;
    }
  }
  return wants;
}

}  // namespace

std::uint64_t span_of_copy(std::span<const std::uint64_t> tensor_bytes) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t tensor : tensor_bytes) bytes += segment_span(tensor);
  return bytes;
}

Status SlabArena::use_device(const std::shared_ptr<gpu::Device>& device) {
  MutexLock lock(mutex_);
  if (device_ == nullptr) device_ = device;
  if (device_->info().uuid == device->info().uuid) return {};
  return fail(Code::failed_precondition,
              format("its slabs lie on device {}, not on {}", device_->info().uuid.text(), device->info().uuid.text()));
}

std::string SlabArena::device() const {
  MutexLock lock(mutex_);
  return device_ == nullptr ? std::string() : device_->info().uuid.text();
}

void SlabArena::raise_limit(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  pool_.raise_limit(bytes);
}

Status SlabArena::prepare(std::span<const std::uint64_t> tensor_bytes, const Room& room) {
  const std::uint64_t model_bytes = std::accumulate(tensor_bytes.begin(), tensor_bytes.end(), std::uint64_t{0});
  const double limit_copies =
      kDefaultLimitCopies + static_cast<double>(std::max<std::size_t>(room.kept_versions, 1) - 1);
  raise_limit(room.limit_bytes != 0 ? room.limit_bytes
                                    : static_cast<std::uint64_t>(limit_copies * static_cast<double>(model_bytes)) +
                                          kDefaultLimitExtraBytes);
  const std::uint64_t copy_bytes = span_of_copy(tensor_bytes);
  const double copies = std::clamp(room.copies, 1.0, kCopiesMax);
  std::vector<Want> wants =
      wants_within(tensor_bytes, static_cast<std::uint64_t>(copies * static_cast<double>(copy_bytes)));
  Status status;
  if (acquire(wants) > 0) status = grow(wants);
  const bool one_copy = std::ranges::all_of(std::span(wants).first(tensor_bytes.size()),
                                            [](const Want& want) { return want.segment.has_value(); });
  abandon(wants);
  if (!one_copy) return fail(std::move(status.error()).with_context("prepare memory for the model"));
  return {};
}

void SlabArena::touch_ahead(std::span<const std::uint64_t> tensor_bytes, std::uint64_t bytes) {
  const std::uint64_t present = slab_bytes();
  if (bytes <= present) return;
  std::vector<Want> wants = wants_within(tensor_bytes, bytes - present);
  // Where there is no room for all of it, the next version takes what it needs, or is told.
  (void)grow(wants);
  abandon(wants);
}

std::uint64_t SlabArena::slab_bytes() const {
  MutexLock lock(mutex_);
  return pool_.slab_bytes();
}

std::uint64_t SlabArena::acquire(std::span<Want> wants) {
  MutexLock lock(mutex_);
  for (Want& want : wants) {
    if (want.segment) continue;
    if (const auto taken = pool_.take(want.tensor, want.bytes)) want.segment = *taken | tag_;
  }
  std::uint64_t missing = 0;
  // Where a size finds no room, larger ones do not either; asking again for each would walk the whole pool every time.
  std::uint64_t refused_bytes = ~std::uint64_t{0};
  for (Want& want : wants) {
    if (want.segment) continue;
    if (want.bytes < refused_bytes) {
      if (auto segment = pool_.acquire(want.tensor, want.bytes)) {
        want.segment = *segment | tag_;
        continue;
      }
      refused_bytes = want.bytes;
    }
    missing += std::max<std::uint64_t>(want.bytes, 1);
  }
  return missing;
}

Status SlabArena::grow(std::span<Want> wants) {
  std::size_t first = 0;
  while (first < wants.size()) {
    std::uint64_t bytes = 0;
    std::size_t last = first;
    for (; last < wants.size(); ++last) {
      if (wants[last].segment) continue;
      const std::uint64_t end = end_of_segment(bytes, wants[last].bytes);
      if (end > options_.slab_bytes && bytes > 0) break;
      bytes = end;
    }
    if (bytes == 0) break;
    FRESHET_TRY(add_slab(growth_for(round_up(bytes, kPageBytes))));
    // A slab may be larger than those that it was made for: what comes behind them gets the rest.
    (void)acquire(wants.subspan(first));
    const auto has_room = [](const Want& want) { return want.segment.has_value(); };
    if (!std::ranges::all_of(wants.subspan(first, last - first), has_room)) {
      return fail(Code::out_of_space,
                  format("a new slab of {} bytes is too small for the segment that it was made for", bytes));
    }
    first = last;
  }
  return {};
}

std::uint64_t SlabArena::growth_for(std::uint64_t bytes) const {
  MutexLock lock(mutex_);
  // The first slabs hold just what they were asked for: how much is ready beforehand is the caller's choice.
  if (slabs_.empty() || bytes > pool_.limit_bytes()) return bytes;
  const std::uint64_t left = pool_.limit_bytes() - std::min(pool_.slab_bytes(), pool_.limit_bytes());
  const std::uint64_t usual = std::max(kGrowthBytesMin, round_up(pool_.limit_bytes() / kGrowthsMax, kPageBytes));
  return std::max(bytes, std::min(usual, left / kPageBytes * kPageBytes));
}

Status SlabArena::add_slab(std::uint64_t bytes) {
  std::size_t count = 0;
  std::shared_ptr<gpu::Device> device;
  {
    MutexLock lock(mutex_);
    if (bytes > pool_.limit_bytes() || pool_.slab_bytes() > pool_.limit_bytes() - bytes) {
      return fail(Code::out_of_space, format("the arena has {} of at most {} bytes, {} more do not fit",
                                             pool_.slab_bytes(), pool_.limit_bytes(), bytes));
    }
    count = slabs_.size();
    device = device_;
  }
  FRESHET_CHECK((device != nullptr) == (options_.memory == MemoryKind::device));
  auto slab =
      Slab::create(format("freshet-{}-{}", options_.name, count),
                   {.bytes = bytes, .device = device, .lock = options_.lock_memory, .huge_pages = options_.huge_pages});
  if (!slab) return fail(std::move(slab).error());
  auto kept = std::make_shared<Slab>(std::move(*slab));
  if (options_.on_slab) options_.on_slab(kept);
  MutexLock lock(mutex_);
  pool_.raise_limit(pool_.slab_bytes() + kept->bytes());  // Huge pages round up, and so do devices.
  FRESHET_CHECK(pool_.add_slab(kept->bytes()).has_value());
  slabs_.push_back(std::move(kept));
  return {};
}

std::vector<Bytes> SlabArena::slab_memory() const {
  std::vector<Bytes> memory;
  MutexLock lock(mutex_);
  for (const auto& slab : slabs_) memory.push_back(slab->memory());
  return memory;
}

bool SlabArena::take_this(SegmentIndex segment) {
  MutexLock lock(mutex_);
  return pool_.take_this(segment);
}

bool SlabArena::is_free(SegmentIndex segment) const {
  MutexLock lock(mutex_);
  return pool_.is_free(segment);
}

void SlabArena::seal(std::span<const SegmentIndex> segments) {
  MutexLock lock(mutex_);
  for (const SegmentIndex segment : segments) {
    if (is_ours(segment)) pool_.seal(in_pool(segment));
  }
}

void SlabArena::release(std::span<const SegmentIndex> segments) {
  MutexLock lock(mutex_);
  for (const SegmentIndex segment : segments) {
    if (is_ours(segment)) pool_.release(in_pool(segment));
  }
}

void SlabArena::abandon(std::span<Want> wants) {
  MutexLock lock(mutex_);
  for (Want& want : wants) {
    if (want.segment) pool_.release(in_pool(*want.segment));
    want.segment.reset();
  }
}

SegmentPlace SlabArena::place(SegmentIndex segment) const {
  MutexLock lock(mutex_);
  return pool_.place(in_pool(segment));
}

std::vector<SegmentPlace> SlabArena::places(std::span<const SegmentIndex> segments) const {
  std::vector<SegmentPlace> places;
  places.reserve(segments.size());
  MutexLock lock(mutex_);
  for (const SegmentIndex segment : segments) places.push_back(pool_.place(in_pool(segment)));
  return places;
}

MutableBytes SlabArena::memory(const SegmentPlace& place) {
  MutexLock lock(mutex_);
  return slabs_.at(place.slab)->memory().subspan(place.offset, place.bytes);
}

Bytes SlabArena::bytes(const SegmentPlace& place) const {
  MutexLock lock(mutex_);
  return slabs_.at(place.slab)->memory().subspan(place.offset, place.bytes);
}

std::vector<Bytes> SlabArena::bytes_of(std::span<const SegmentIndex> segments) const {
  std::vector<Bytes> memory;
  memory.reserve(segments.size());
  MutexLock lock(mutex_);
  for (const SegmentIndex segment : segments) {
    const SegmentPlace& place = pool_.place(in_pool(segment));
    memory.push_back(slabs_.at(place.slab)->memory().subspan(place.offset, place.bytes));
  }
  return memory;
}

std::vector<SlabReference> SlabArena::slabs() const {
  std::vector<SlabReference> references;
  MutexLock lock(mutex_);
  for (const auto& slab : slabs_) {
    references.push_back({.descriptor = slab->descriptor(), .bytes = slab->bytes(), .memory = slab->memory_kind()});
  }
  return references;
}

SlabArena::Stat SlabArena::stat() const {
  MutexLock lock(mutex_);
  Stat stat{.arena_bytes = pool_.slab_bytes(),
            .arena_free_bytes = pool_.free_bytes(),
            .arena_limit_bytes = pool_.limit_bytes()};
  for (const auto& slab : slabs_) stat.locked_bytes += slab->locked_bytes();
  return stat;
}

}  // namespace freshet
