// SPDX-License-Identifier: Apache-2.0
/// Siblings that were fine-tuned everywhere differ from their ancestor in every tensor, and yet by little. Their
/// tensors are kept as element deltas (core/delta/element_delta.h), one hop from a segment that is kept as it is: the
/// ancestor's, or what the ancestor's is a delta onto.

#include <algorithm>
#include <new>

#include "core/delta/element_delta.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

/// Below this a delta's own head would be most of it.
constexpr std::uint64_t kTensorBytesMin = 4096;
/// A quarter saved is worth a second read.
constexpr std::uint64_t longest_worth(std::uint64_t bytes) { return bytes / 4 * 3; }
/// Of a large tensor a few pieces are tried first.
constexpr std::uint64_t kDeltaPieceBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kPieces = 4;

/// A vector that says so when there is no memory.
std::optional<std::vector<std::byte>> room_for(std::uint64_t bytes) {
  try {
    return std::vector<std::byte>(bytes);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

/// Whether a delta of the whole is likely to be short enough, by those of a few pieces.
bool looks_worth(const Backend& backend, const DeltaSpec& spec, Bytes bytes) {
  if (bytes.size() <= kPieces * kDeltaPieceBytes) return true;
  std::vector<std::byte> base(kDeltaPieceBytes);
  std::uint64_t delta_bytes = 0;
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    const std::uint64_t offset =
        (bytes.size() - kDeltaPieceBytes) / (kPieces - 1) * i / kDeltaPieceBytes * kDeltaPieceBytes;
    if (!backend.read_blob(segment_key(spec.base), offset, base)) return false;
    const auto delta = encode_delta(spec, base, bytes.subspan(offset, kDeltaPieceBytes), kDeltaPieceBytes);
    delta_bytes += delta ? delta->size() : kDeltaPieceBytes;
  }
  return delta_bytes <= longest_worth(kPieces * kDeltaPieceBytes);
}

}  // namespace

void LocalRepository::Impl::choose_bases(PutInProgress& put) const {
  const Manifest& manifest = put.manifest;
  if (!manifest.ancestor || put.options.placed || put.segments.empty()) return;
  Catalog::Found found;
  {
    const MutexLock lock(known.mutex);
    found.row = known.catalog.row_of(*manifest.ancestor);
    if (found.row == nullptr || found.row->retired || !found.row->has_weights) return;
    if (auto name = known.catalog.find(*manifest.ancestor)) found.name = *std::move(name);
  }
  // Without it, there is nothing to save; the put is none the worse.
  const Result<Manifest> ancestor = manifests.get(found.name, *found.row);
  if (!ancestor) return;
  for (NewSegment& segment : put.segments) {
    const TensorSpec& spec = manifest.architecture->tensors()[segment.tensor];
    const auto same = ancestor->architecture->tensor_named(spec.name);
    if (segment.bytes < kTensorBytesMin || !same || ancestor->architecture->tensors()[*same] != spec) continue;
    const SegmentName& owner = ancestor->owners[*same];
    segment.base = segments.base_of(owner).value_or(owner);
  }
}

std::optional<std::vector<std::byte>> LocalRepository::Impl::delta_for(const NewSegment& segment,
                                                                       const Manifest& manifest, Bytes bytes) const {
  const DeltaSpec spec{
      .dtype = manifest.architecture->tensors()[segment.tensor].dtype, .base = *segment.base, .target = segment.name};
  const Result<SegmentRow> row = segments.row(spec.base);
  if (!row || row->base || row->bytes != bytes.size() || !looks_worth(*backend, spec, bytes)) return std::nullopt;
  auto base = room_for(row->bytes);
  if (!base || !backend->read_blob(segment_key(spec.base), 0, *base) || digest_of(*base) != row->digest) {
    return std::nullopt;
  }
  return encode_delta(spec, *base, bytes, longest_worth(bytes.size()));
}

Status LocalRepository::Impl::check_bases(PutInProgress& put) const {
  for (const NewSegment& segment : put.segments) {
    if (!segment.base) continue;
    const Result<SegmentRow> row = segments.row(*segment.base);
    if (row && !row->base) continue;
    put.base_lost = true;
    return fail(Code::failed_precondition, "the base of its differences was retired during the put");
  }
  return {};
}

}  // namespace freshet
