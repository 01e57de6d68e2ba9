// SPDX-License-Identifier: Apache-2.0
/// Segments on the disk: as they are, or as a lossless delta onto one that is kept as it is.

#include <algorithm>
#include <cstring>

#include "core/base/format.h"
#include "core/delta/element_delta.h"
#include "repo/local/local_repository.h"

namespace freshet {

std::string blob_key(const NewSegment& segment) {
  return segment.base ? delta_key(segment.name) : segment_key(segment.name);
}

Status LocalRepository::Impl::read_segment(const SegmentName& segment, MutableBytes out) const {
  Status status = backend->read_blob(segment_key(segment), 0, out);
  if (status || status.error().code() != Code::not_found) return status;
  return rebuild(segment, out);
}

Result<SegmentRow> LocalRepository::Impl::rebuildable(const SegmentName& segment) const {
  const std::optional<SegmentName> base = base_of(segment);
  if (!base) return fail(Code::corrupt, "its bytes are missing");
  FRESHET_ASSIGN(SegmentRow row, segment_row(segment));
  if (row.base != base || row.delta_bytes > row.bytes) return fail(Code::corrupt, "its record is damaged");
  std::byte last{};
  const Status is_there = row.bytes == 0 ? Status() : backend->read_blob(segment_key(*base), row.bytes - 1, {&last, 1});
  if (is_there) return row;
  return fail(Code::corrupt, format("its record has {} bytes, but its base has another size ({})", row.bytes,
                                    is_there.error().message()));
}

Status LocalRepository::Impl::rebuild(const SegmentName& segment, MutableBytes out) const {
  const std::optional<SegmentName> base = base_of(segment);
  if (!base) return fail(Code::corrupt, "its bytes are missing");
  FRESHET_ASSIGN(const SegmentRow row, segment_row(segment));
  if (row.base != base || row.bytes != out.size() || row.delta_bytes > row.bytes) {
    return fail(Code::corrupt, "its record is damaged");
  }
  std::vector<std::byte> delta(row.delta_bytes);
  Status read = backend->read_blob(delta_key(segment), 0, delta);
  if (read) read = backend->read_blob(segment_key(*base), 0, out);
  if (!read && read.error().code() == Code::not_found) return fail(Code::corrupt, "its bytes are missing");
  FRESHET_TRY(read);
  FRESHET_ASSIGN(const DeltaInfo info, read_delta_info(delta));
  const auto applied = apply_delta({.dtype = info.dtype, .base = *base, .target = segment}, delta, out);
  if (!applied) return fail(Code::corrupt, "its delta does not fit: " + applied.error().message());
  return {};
}

Status LocalRepository::Impl::read_part(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const {
  Status status = backend->read_blob(segment_key(segment), offset, out);
  if (status || status.error().code() != Code::not_found || !base_of(segment)) return status;
  std::shared_ptr<const Rebuilt> whole;
  {
    const MutexLock lock(rebuilt_mutex);
    if (rebuilt != nullptr && rebuilt->segment == segment) whole = rebuilt;
  }
  if (whole == nullptr) {
    FRESHET_ASSIGN(const SegmentRow row, rebuildable(segment));
    auto made = std::make_shared<Rebuilt>(Rebuilt{.segment = segment, .bytes = std::vector<std::byte>(row.bytes)});
    FRESHET_TRY(rebuild(segment, made->bytes));
    whole = std::move(made);
    const MutexLock lock(rebuilt_mutex);
    rebuilt = whole;
  }
  if (offset > whole->bytes.size() || out.size() > whole->bytes.size() - offset) {
    return fail(Code::corrupt, format("the segment has {} bytes, not {}", whole->bytes.size(), offset + out.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), whole->bytes.data() + offset, out.size());
  return {};
}

Result<SegmentRow> LocalRepository::Impl::segment_row(const SegmentName& segment) const {
  const Result<std::string> stored = backend->get(segment_record_key(segment));
  if (!stored && stored.error().code() == Code::not_found) return fail(Code::corrupt, "its bytes are missing");
  if (!stored) return fail(stored.error());
  return decode_segment_row(*stored);
}

std::optional<SegmentName> LocalRepository::Impl::base_of(const SegmentName& segment) const {
  {
    const MutexLock lock(mutex);
    if (catalog.has_segments()) return catalog.base_of(segment);
  }
  const Result<SegmentRow> row = segment_row(segment);
  return row ? row->base : std::nullopt;
}

std::vector<SegmentName> LocalRepository::Impl::with_bases(std::vector<SegmentName> segments) const {
  for (std::size_t i = segments.size(); i > 0; --i) {
    if (auto base = base_of(segments[i - 1])) segments.push_back(*base);
  }
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  return segments;
}

Status LocalRepository::Impl::read_proved(const SegmentName& segment, const Digest& digest, MutableBytes out) const {
  Result<Digest> found = backend->read_and_digest(segment_key(segment), out);
  if (!found && found.error().code() == Code::not_found) {
    FRESHET_TRY(rebuild(segment, out));
    found = digest_of(out);
  }
  if (!found) return fail(found.error());
  return *found == digest ? Status() : fail(Code::corrupt, "its bytes do not match its digest");
}

}  // namespace freshet
