// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/fetch/fetch_arena.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace freshet::detail {
FetchArena::FetchArena(Options options)
    : options_(std::move(options)),
      arena_({.name = options_.name, .lock_memory = options_.lock_memory, .huge_pages = options_.huge_pages}) {}

std::uint64_t FetchArena::bytes_of(const Architecture& architecture) const {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : architecture.tensors()) bytes += bytes_of(spec);
  return bytes;
}

Status FetchArena::prepare(const Architecture& architecture) {
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& spec : architecture.tensors()) sizes.push_back(bytes_of(spec));
  return arena_.prepare(sizes, {.limit_bytes = options_.limit_bytes, .copies = options_.copies});
}

FetchArena::Row& FetchArena::row(SegmentIndex segment) {
  if (segment >= rows_.size()) rows_.resize(segment + std::size_t{1});
  return rows_[segment];
}

std::optional<SegmentIndex> FetchArena::find(const Content& content) const {
  std::optional<SegmentIndex> found;
  for (SegmentIndex at = names_.first(content.name); at != SegmentNames::kNone; at = names_.next(at)) {
    const Row& row = rows_[at];
    if (row.content != content) continue;
    if (row.sealed) return at;
    // Neither acquired to be written, nor melted into another: there as it was.
    if (row.references == 0 && arena_.is_free(at)) found = at;
  }
  return found;
}

const Content* FetchArena::content(SegmentIndex segment) const {
  return segment < rows_.size() && rows_[segment].content ? &*rows_[segment].content : nullptr;
}

void FetchArena::refer(SegmentIndex segment) {
  Row& referred = row(segment);
  FRESHET_CHECK(referred.content.has_value());
  if (referred.references++ > 0) {
    FRESHET_CHECK(referred.sealed);
    return;
  }
  FRESHET_CHECK(arena_.take_this(segment));
  arena_.seal({&segment, 1});
  referred.sealed = true;
}

void FetchArena::refer_unproved(SegmentIndex segment) {
  Row& referred = row(segment);
  FRESHET_CHECK(referred.references > 0 && !referred.sealed);
  ++referred.references;
}

Status FetchArena::acquire(std::span<Want> wants) {
  std::vector<bool> had;
  for (const Want& want : wants) had.push_back(want.segment.has_value());
  Status status;
  if (arena_.acquire(wants) > 0) status = arena_.grow(wants);
  for (std::size_t i = 0; i < wants.size(); ++i) {
    if (had[i] || !wants[i].segment) continue;
    Row& acquired = row(*wants[i].segment);
    acquired.references = 1;
    acquired.sealed = false;
  }
  return status;
}

void FetchArena::strike_out(SegmentIndex segment) {
  Row& known = row(segment);
  if (!known.content) return;
  names_.take(segment);
  known.content.reset();
}

MutableBytes FetchArena::write(SegmentIndex segment) {
  FRESHET_CHECK(row(segment).references == 1 && !row(segment).sealed);
  strike_out(segment);
  return arena_.memory(arena_.place(segment));
}

void FetchArena::prove(SegmentIndex segment, const Content& content) {
  Row& proved = row(segment);
  FRESHET_CHECK(proved.references > 0 && !proved.sealed);
  strike_out(segment);
  proved.content = content;
  proved.sealed = true;
  names_.give(segment, content.name);
  arena_.seal({&segment, 1});
}

void FetchArena::distrust(SegmentIndex segment) { strike_out(segment); }

void FetchArena::let_go(SegmentIndex segment) {
  Row& left = row(segment);
  FRESHET_CHECK(left.references > 0);
  if (--left.references > 0) return;
  left.sealed = false;
  arena_.release({&segment, 1});
}

void FetchArena::let_go(std::span<const SegmentIndex> segments) {
  for (const SegmentIndex segment : segments) let_go(segment);
}

}  // namespace freshet::detail
