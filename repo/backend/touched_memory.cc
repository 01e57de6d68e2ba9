// SPDX-License-Identifier: Apache-2.0
#include "repo/backend/touched_memory.h"

#include <new>

#include "core/base/check.h"

namespace freshet {

TouchedMemory::TouchedMemory(Slab slab) : pool_({.limit_bytes = slab.bytes()}), slab_(std::move(slab)) {
  FRESHET_CHECK(pool_.add_slab(slab_.bytes()).has_value());
}

Result<std::shared_ptr<TouchedMemory>> TouchedMemory::create(std::uint64_t bytes) {
  FRESHET_ASSIGN(Slab slab, Slab::create("repository", {.bytes = bytes, .lock = false}));
  return std::shared_ptr<TouchedMemory>(new TouchedMemory(std::move(slab)));
}

std::optional<TouchedMemory::Piece> TouchedMemory::take(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (pool_.free_bytes() < bytes) return std::nullopt;  // Saves a walk over all pieces.
  const Result<SegmentIndex> segment = pool_.acquire(0, bytes);
  if (!segment) return std::nullopt;
  const SegmentPlace& place = pool_.place(*segment);
  return Piece{.segment = *segment, .memory = slab_.memory().subspan(place.offset, bytes)};
}

void TouchedMemory::give_back(SegmentIndex segment) {
  const MutexLock lock(mutex_);
  pool_.release(segment);
}

Result<std::shared_ptr<BlobMemory>> BlobMemory::take(const std::shared_ptr<TouchedMemory>& touched,
                                                     std::uint64_t bytes) {
  std::shared_ptr<BlobMemory> blob(new BlobMemory);
  if (touched != nullptr && bytes != 0) {
    if (const auto piece = touched->take(bytes)) {
      blob->touched_ = touched;
      blob->segment_ = piece->segment;
      blob->memory_ = piece->memory;
      return blob;
    }
  }
  blob->heap_.reset(new (std::nothrow) std::byte[bytes]);
  if (blob->heap_ == nullptr) return fail(Code::out_of_space, "no memory for a blob");
  blob->memory_ = MutableBytes(blob->heap_.get(), bytes);
  return blob;
}

BlobMemory::~BlobMemory() {
  if (touched_ != nullptr) touched_->give_back(segment_);
}

}  // namespace freshet
