// SPDX-License-Identifier: Apache-2.0
#include "repo/local/stored/segments.h"

#include <algorithm>
#include <cstring>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/delta/element_delta.h"

namespace freshet {

Status check_same(const SegmentRow& stored, const SegmentRow& named) {
  if (stored.bytes == named.bytes && stored.digest == named.digest) return {};
  return fail(Code::corrupt, format("inherits {} bytes with digest {}, but {} bytes with digest {} are stored",
                                    named.bytes, to_hex(named.digest), stored.bytes, to_hex(stored.digest)));
}

Status StoredSegments::read(const SegmentName& segment, MutableBytes out) const {
  Status status = backend_.read_blob(segment_key(segment), 0, out);
  if (status || status.error().code() != Code::not_found) return status;
  return rebuild(segment, out);
}

Result<SegmentRow> StoredSegments::rebuildable(const SegmentName& segment) const {
  const std::optional<SegmentName> base = base_of(segment);
  if (!base) return fail(Code::corrupt, "its bytes are missing");
  FRESHET_ASSIGN(SegmentRow stored, row(segment));
  if (stored.base != base || stored.delta_bytes > stored.bytes) return fail(Code::corrupt, "its record is damaged");
  std::byte last{};
  const Status is_there =
      stored.bytes == 0 ? Status() : backend_.read_blob(segment_key(*base), stored.bytes - 1, {&last, 1});
  if (is_there) return stored;
  return fail(Code::corrupt, format("its record has {} bytes, but its base has another size ({})", stored.bytes,
                                    is_there.error().message()));
}

Status StoredSegments::rebuild(const SegmentName& segment, MutableBytes out) const {
  const std::optional<SegmentName> base = base_of(segment);
  if (!base) return fail(Code::corrupt, "its bytes are missing");
  FRESHET_ASSIGN(const SegmentRow stored, row(segment));
  if (stored.base != base || stored.bytes != out.size() || stored.delta_bytes > stored.bytes) {
    return fail(Code::corrupt, "its record is damaged");
  }
  std::vector<std::byte> delta(stored.delta_bytes);
  Status read = backend_.read_blob(delta_key(segment), 0, delta);
  if (read) read = backend_.read_blob(segment_key(*base), 0, out);
  if (!read && read.error().code() == Code::not_found) return fail(Code::corrupt, "its bytes are missing");
  FRESHET_TRY(read);
  FRESHET_ASSIGN(const DeltaInfo info, read_delta_info(delta));
  const auto applied = apply_delta({.dtype = info.dtype, .base = *base, .target = segment}, delta, out);
  if (!applied) return fail(Code::corrupt, "its delta does not fit: " + applied.error().message());
  return {};
}

Status StoredSegments::read_part(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const {
  Status status = backend_.read_blob(segment_key(segment), offset, out);
  if (status || status.error().code() != Code::not_found || !base_of(segment)) return status;
  std::shared_ptr<const Rebuilt> whole;
  {
    const MutexLock lock(rebuilt_mutex_);
    if (rebuilt_ != nullptr && rebuilt_->segment == segment) whole = rebuilt_;
  }
  if (whole == nullptr) {
    FRESHET_ASSIGN(const SegmentRow stored, rebuildable(segment));
    auto made = std::make_shared<Rebuilt>(Rebuilt{.segment = segment, .bytes = std::vector<std::byte>(stored.bytes)});
    FRESHET_TRY(rebuild(segment, made->bytes));
    whole = std::move(made);
    const MutexLock lock(rebuilt_mutex_);
    rebuilt_ = whole;
  }
  if (offset > whole->bytes.size() || out.size() > whole->bytes.size() - offset) {
    return fail(Code::corrupt, format("the segment has {} bytes, not {}", whole->bytes.size(), offset + out.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), whole->bytes.data() + offset, out.size());
  return {};
}

Result<bool> StoredSegments::is_whole(const SegmentName& segment, std::uint64_t bytes, const Digest& digest) const {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  const std::string key = segment_key(segment);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
  DigestStream stream;
  std::uint64_t offset = 0;
  do {
    FRESHET_TRY(Interruption::check());
    const MutableBytes part(piece.data(), static_cast<std::size_t>(std::min(bytes - offset, kPieceBytes)));
    const Status read = backend_.read_blob(key, offset, part);
    if (!read && (read.error().code() == Code::not_found || read.error().code() == Code::corrupt)) return false;
    FRESHET_TRY(read);
    stream.update(part);
    offset += part.size();
  } while (offset < bytes);
  return stream.finish() == digest;
}

Result<SegmentRow> StoredSegments::row(const SegmentName& segment) const {
  const Result<std::string> stored = backend_.get(segment_record_key(segment));
  if (!stored && stored.error().code() == Code::not_found) return fail(Code::corrupt, "its bytes are missing");
  if (!stored) return fail(stored.error());
  return decode_segment_row(*stored);
}

std::optional<SegmentName> StoredSegments::base_of(const SegmentName& segment) const {
  {
    const MutexLock lock(known_.mutex);
    if (known_.catalog.has_segments()) return known_.catalog.base_of(segment);
  }
  const Result<SegmentRow> stored = row(segment);
  return stored ? stored->base : std::nullopt;
}

std::vector<SegmentName> StoredSegments::with_bases(std::vector<SegmentName> segments) const {
  for (std::size_t i = segments.size(); i > 0; --i) {
    if (auto base = base_of(segments[i - 1])) segments.push_back(*base);
  }
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  return segments;
}

Status StoredSegments::read_proved(const SegmentName& segment, const Digest& digest, MutableBytes out) const {
  Result<Digest> found = backend_.read_and_digest(segment_key(segment), out);
  if (!found && found.error().code() == Code::not_found) {
    FRESHET_TRY(rebuild(segment, out));
    found = digest_of(out);
  }
  if (!found) return fail(found.error());
  return *found == digest ? Status() : fail(Code::corrupt, "its bytes do not match its digest");
}

Result<std::optional<std::uint64_t>> StoredSegments::bytes_of_record(const std::string& key) const {
  const Result<std::string> stored = backend_.get(key);
  if (!stored && stored.error().code() == Code::not_found) return std::optional<std::uint64_t>();
  if (!stored) return fail(stored.error());
  // A damaged record counts as nothing, as it did when the catalog was loaded.
  const Result<SegmentRow> row = decode_segment_row(*stored);
  return std::optional(row ? row->bytes : 0);
}

}  // namespace freshet
