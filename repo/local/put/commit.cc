// SPDX-License-Identifier: Apache-2.0
/// The last step of a put: one small batch makes versions exist. Puts that come while another's batch is on its way to
/// the medium wait together; the first of them that goes on commits for all, so that many small puts share one sync.
/// Each of them is whole: a crash leaves all of a batch or nothing.

#include <algorithm>
#include <optional>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/local/local_repository.h"
#include "repo/registrar/registrar_records.h"

namespace freshet {
namespace {

/// Versions in one batch.
constexpr std::size_t kGroupMax = 64;
/// New segments of several versions in one batch. So it stays far below what a backend takes at once.
constexpr std::size_t kGroupSegmentsMax = 4096;

std::string text_of(Bytes bytes) { return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

// What a put inherits was there when it began. A retirement may have taken it since.
Status check_inherited(const Backend& backend, PutInProgress& put) {
  const Manifest& manifest = put.manifest;
  std::unordered_set<SegmentName> own;
  for (const NewSegment& segment : put.segments) own.insert(segment.name);
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const SegmentName& name = manifest.owners[tensor];
    if (own.count(name) != 0 || (put.options.placed && is_elsewhere(*put.options.placed, tensor))) continue;
    const SegmentRow row{.bytes = manifest.architecture->tensors()[tensor].bytes(), .digest = manifest.digests[tensor]};
    const Result<std::string> stored = backend.get(segment_record_key(name));
    Status same;
    if (stored) {
      FRESHET_ASSIGN(const SegmentRow there, decode_segment_row(*stored));
      same = check_same(there, row);
    } else if (stored.error().code() == Code::not_found) {
      put.inherited_lost = true;
      same = fail(Code::failed_precondition, "a version that it inherits from was retired during the put");
    } else {
      same = fail(stored.error());
    }
    if (!same)
      return fail(std::move(same).error().with_context(tensor_label(manifest.name, *manifest.architecture, tensor)));
  }
  return {};
}

/// Of those that the puts bring.
std::vector<std::shared_ptr<const Architecture>> architectures_of(const std::vector<PutInProgress*>& puts) {
  std::vector<std::shared_ptr<const Architecture>> architectures;
  for (const PutInProgress* put : puts) {
    if (put->brings_architecture) architectures.push_back(put->manifest.architecture);
  }
  return architectures;
}

}  // namespace

Status LocalRepository::Impl::commit_put(PutInProgress& put) {
  const MutexLock lock(turn);
  queue.push_back(&put);
  while (!put.ended) {
    // Who waits for the turn, and is no put, comes between two batches.
    if (committing || (put_was_last && turns_wanted != 0)) {
      committed.wait(turn);
      continue;
    }
    committing = true;
    commit_queued();
    committing = false;
    put_was_last = true;
    committed.notify_all();
  }
  return std::move(put.status);
}

void LocalRepository::Impl::commit_queued() {
  const auto end = queue.begin() + static_cast<std::ptrdiff_t>(std::min(queue.size(), kGroupMax));
  const std::vector<PutInProgress*> group(queue.begin(), end);
  queue.erase(queue.begin(), end);
  // After a batch whose answer was lost, only the records say which numbers are taken.
  const Status ready = ready_to_write();
  Taken taken{.commit = commit};
  Backend::Batch batch;
  std::vector<PutInProgress*> in_batch;
  std::vector<PutInProgress*> refused;
  std::size_t segments_added = 0;
  for (PutInProgress* put : group) {
    const bool is_full = !in_batch.empty() && segments_added + put->segments.size() > kGroupSegmentsMax;
    // The catalog, which the checks ask, doesn't know an ancestor before its batch is written: this one's is next.
    if (is_full || (put->manifest.ancestor && taken.versions.count(*put->manifest.ancestor) != 0)) {
      queue.push_back(put);
      continue;
    }
    const std::size_t before = batch.size();
    put->status = ready ? add_records(*put, taken, batch) : ready;
    if (!put->status) batch.resize(before);
    (put->status ? in_batch : refused).push_back(put);
    if (put->status) segments_added += put->segments.size();
  }
  if (!in_batch.empty()) {
    batch.push_back(commit_record(taken.commit));
    turn.unlock();
    std::optional<Interruption> for_all;  // The caller that leads must not end the puts of the others.
    if (in_batch.size() > 1) for_all.emplace([] { return false; });
    const Status applied = backend->apply(batch);
    for_all.reset();
    turn.lock();
    if (!applied) failed = true;
    if (applied) commit = taken.commit;
    if (applied) ancestors.keep_graphs_of(architectures_of(in_batch));
    for (PutInProgress* put : in_batch) {
      put->status = applied;
      if (applied) tell_of(*put);
      put->ended = true;
    }
  }
  for (PutInProgress* put : refused) {
    // A version of this identity may be stored by an earlier try, or be stored yet: its blobs have the same names.
    const bool is_known = [&] {
      const MutexLock lock(known.mutex);
      return known.catalog.find(put->manifest.id).has_value();
    }();
    if (ready && !failed && !is_known) forget_blobs(*put);
    put->ended = true;
  }
}

Status LocalRepository::Impl::add_records(PutInProgress& put, Taken& taken, Backend::Batch& batch) {
  Manifest& manifest = put.manifest;
  // What admitted it may have changed while its blobs were written.
  FRESHET_TRY(admit(manifest, put.options));
  if (put.options.has_weights && put.erasures != erasures) {
    FRESHET_TRY(check_bases(put));
    FRESHET_TRY(check_inherited(*backend, put));
  }
  if (put.finished) FRESHET_TRY(put.finished->check_finished());
  const auto [high_water, first] = taken.high_water.try_emplace(manifest.name.model, 0);
  if (first) {
    const MutexLock lock(known.mutex);
    high_water->second = known.catalog.high_water(manifest.name.model);
  }
  if (!put.options.placed) {
    FRESHET_ASSIGN(const VersionNumber next, number_after(manifest.name.model, high_water->second));
    manifest.name.number = std::max(manifest.name.number, next);
  } else if (taken.names.count(manifest.name) != 0) {
    return fail(Code::already_exists, to_string(manifest.name) + " is stored already");
  }
  put.row.commit = taken.commit + 1;
  // Of several providers' commits the later one is that of the later time, as far as their clocks agree.
  if (put.options.placed) {
    put.row.commit = std::max(put.row.commit, static_cast<std::uint64_t>(put.row.stored_unix_ns / 1000));
  }
  FRESHET_TRY(manifests.store(batch, manifest, put.row));
  high_water->second = std::max(high_water->second, manifest.name.number);
  taken.names.insert(manifest.name);
  taken.commit = put.row.commit;
  taken.versions.insert(manifest.id);
  for (const NewSegment& segment : put.segments) {
    const SegmentRow stored{.bytes = segment.bytes,
                            .digest = manifest.digests[segment.tensor],
                            .base = segment.base,
                            .delta_bytes = segment.delta_bytes};
    batch.push_back(Backend::Put{segment_record_key(segment.name), encode(stored)});
  }
  if (put.finished) batch.push_back(Backend::NewBlobs{put.finished.get()});
  batch.push_back(Backend::Put{version_key(manifest.name), encode(put.row)});
  batch.push_back(Backend::Put{high_water_key(manifest.name.model), std::to_string(high_water->second)});
  const std::string architecture = architecture_key(put.row.architecture);
  if (!backend->get(architecture)) {
    batch.push_back(Backend::Put{architecture, text_of(manifest.architecture->encoded())});
    put.brings_architecture = true;
  }
  return {};
}

// The batch is written: readers may know.
void LocalRepository::Impl::tell_of(PutInProgress& put) {
  {
    const MutexLock lock(known.mutex);
    known.catalog.add(put.manifest.name, put.row);
    for (const NewSegment& segment : put.segments) {
      known.catalog.add_segment(segment.bytes);
      known.catalog.set_base(segment.name, segment.base);
    }
  }
  if (references.counts()) {
    references.counts()->add_architecture(put.row.architecture);
    if (put.row.has_weights)
      references.counts()->add_segments(segments.with_bases(distinct_segments(put.manifest.owners)));
  }
  ancestors.add(put.manifest.name, put.row, put.manifest.architecture);
  for (const NewSegment& segment : put.segments) {
    equal_contents.add(put.manifest.digests[segment.tensor], segment.name, !segment.is_brought);
  }
}

// Best effort: what stays is removed as what a crash left is.
void LocalRepository::Impl::forget_blobs(const PutInProgress& put) {
  if (backend->read_only()) return;
  for (const NewSegment& segment : put.segments) {
    if (segment.name.writer != put.manifest.id) continue;  // Not this put's alone.
    if (!backend->erase_blob(blob_key(segment))) return;
  }
}

}  // namespace freshet
