// SPDX-License-Identifier: Apache-2.0
/// Erasing what nobody needs: first the records of segments that no version names (a retire takes them along, but for
/// what damage made it leave), then every blob without a record. Each step can be cut short; the next gc() goes on.

#include <algorithm>
#include <map>
#include <unordered_set>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/local/catalog/kept_blobs.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

constexpr std::size_t kErasedPerBatch = 4096;

struct Garbage {
  std::vector<SegmentName> unnamed;  ///< Records that nobody names.
  std::uint64_t unnamed_bytes = 0;
  std::vector<std::pair<std::string, std::uint64_t>> blobs;  ///< To be erased: key and size, in their order.
  std::vector<std::string> notes;                            ///< What could not be read, and so stays.
};

// What cannot be read stays, and is told.
Status noted(Status read, std::string_view what, std::vector<std::string>& notes) {
  if (read || read.error().code() != Code::corrupt) return read;
  notes.push_back(format("{}: {}", what, read.error().message()));
  return {};
}

/// Sums up by writer; one object for what goes, one for what stays.
class GarbageRows {
 public:
  explicit GarbageRows(const Catalog& catalog) : catalog_(catalog) {}

  GcRow& at(const VersionId& writer) {
    const auto [found, is_new] = rows_.try_emplace(writer);
    if (is_new) {
      found->second.writer = writer;
      found->second.version = catalog_.find(writer).value_or(VersionName{});
    }
    return found->second;
  }
  std::vector<GcRow> take() {
    std::vector<GcRow> rows;
    for (auto& [writer, row] : rows_) rows.push_back(std::move(row));
    return rows;
  }

 private:
  const Catalog& catalog_;
  std::map<VersionId, GcRow> rows_;
};

bool is_retired(const Catalog& catalog, const VersionId& writer) {
  const auto row = catalog.row_of(writer);
  return row != nullptr && row->retired;
}

// Records and blobs come in the order of the same keys, so one pass over both finds the blobs that go. Those of puts in
// flight have no record yet.
Result<Garbage> find_garbage(const Backend& backend, const References& references,
                             const std::unordered_set<SegmentName>& in_flight) {
  Garbage garbage;
  KeptBlobs kept;
  Status scanned = backend.scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    key.remove_prefix(kSegmentPrefix.size());
    const auto segment = parse_segment_key(key);
    if (!segment || references.unknown() != 0 || references.of(*segment) != 0) {
      kept.add(key, value);
      return true;
    }
    const Result<SegmentRow> row = decode_segment_row(value);
    garbage.unnamed.push_back(*segment);
    garbage.unnamed_bytes += row ? row->bytes : 0;
    return true;
  });
  const bool all_known = scanned.has_value();
  FRESHET_TRY(
      noted(std::move(scanned), "no blobs are erased, because some of their records cannot be read", garbage.notes));
  if (!all_known) return garbage;
  Status listed = backend.list_blobs([&](std::string_view key, std::uint64_t bytes) {
    if (kept.keeps(key)) return true;
    const auto segment = segment_of_blob(key);
    if (!segment || in_flight.count(*segment) == 0) garbage.blobs.emplace_back(key, bytes);
    return true;
  });
  FRESHET_TRY(noted(std::move(listed), "some blobs stay, needed or not, because they cannot be listed", garbage.notes));
  return garbage;
}

std::vector<GcRow> rows_of(const Garbage& garbage, const Catalog& catalog) {
  GarbageRows rows(catalog);
  for (const auto& [key, bytes] : garbage.blobs) {
    const VersionId writer = segment_of_blob(key).value_or(SegmentName{}).writer;
    GcRow& row = rows.at(writer);
    row.reason = is_retired(catalog, writer) ? GcReason::retired : GcReason::unfinished;
    ++row.tensors;
    row.bytes += bytes;
  }
  return rows.take();
}

}  // namespace

// What stays though its writer was retired, and for whose sake.
Result<std::vector<GcRow>> LocalRepository::Impl::inherited_rows() const {
  std::map<VersionId, VersionName> retired;
  {
    const MutexLock lock(known.mutex);
    for (const auto& [model, versions] : known.catalog.models()) {
      for (const auto& [number, entry] : versions) {
        if (entry.row != nullptr && entry.row->retired) retired.emplace(entry.row->id, VersionName{model, number});
      }
    }
  }
  std::map<VersionId, GcRow> rows;
  if (retired.empty()) return std::vector<GcRow>();
  const auto* const counts = &*references.counts();
  FRESHET_TRY(backend->scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const auto segment = parse_segment_key(key.substr(kSegmentPrefix.size()));
    const auto writer = segment ? retired.find(segment->writer) : retired.end();
    if (writer == retired.end() || counts->of(*segment) == 0) return true;
    GcRow& row = rows[writer->first];
    row.reason = GcReason::inherited;
    row.writer = writer->first;
    row.version = writer->second;
    ++row.tensors;
    const Result<SegmentRow> stored = decode_segment_row(value);
    row.bytes += stored ? stored->bytes : 0;
    return true;
  }));
  const auto name_all = [&](const std::vector<SegmentName>& named, const VersionName* by) {
    const VersionId* last = nullptr;  // Segments ascend, so those of one writer stand together.
    for (const SegmentName& segment : named) {
      if (last != nullptr && *last == segment.writer) continue;
      last = &segment.writer;
      const auto row = rows.find(segment.writer);
      if (row == rows.end()) continue;
      ++row->second.named_by_count;
      if (by != nullptr && row->second.named_by.size() < kGcNamesMax) row->second.named_by.push_back(*by);
    }
  };
  if (!rows.empty()) {
    FRESHET_TRY(
        manifests.for_each([&](const VersionName& name, const VersionRow& row, const Result<Manifest>& manifest) {
          if (row.has_weights && manifest) name_all(segments.with_bases(distinct_segments(manifest->owners)), &name);
          return Status();
        }));
    FRESHET_TRY(
        references.scan_referrers([&](const ExternalReferrer& referrer) { name_all(referrer.segments, nullptr); }));
  }
  std::vector<GcRow> list;
  for (auto& [writer, row] : rows) list.push_back(std::move(row));
  return list;
}

Status LocalRepository::Impl::drop_unnamed(const std::vector<SegmentName>& unnamed) {
  for (std::size_t begin = 0; begin < unnamed.size(); begin += kErasedPerBatch) {
    Backend::Batch batch;
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = begin; i < std::min(unnamed.size(), begin + kErasedPerBatch); ++i) {
      const std::string key = segment_record_key(unnamed[i]);
      FRESHET_ASSIGN(const std::optional<std::uint64_t> bytes, segments.bytes_of_record(key));
      sizes.push_back(bytes.value_or(0));
      batch.push_back(Backend::Erase{key});
    }
    FRESHET_TRY(apply(batch));
    const MutexLock lock(known.mutex);
    for (const std::uint64_t bytes : sizes) known.catalog.drop_segment(bytes);
  }
  return {};
}

// An identity that is stored, or was, takes no other put: nobody has to remember which of them were given up.
Status LocalRepository::Impl::drop_given_up() {
  Backend::Batch batch;
  const Status scanned = backend->scan(kGivenUpPrefix, [&](std::string_view key, std::string_view) {
    const auto given_up = parse_given_up_key(key);
    const MutexLock lock(known.mutex);
    if (given_up && known.catalog.find(given_up->first)) batch.push_back(Backend::Erase{std::string(key)});
    return batch.size() < kErasedPerBatch;  // The next gc() goes on.
  });
  if (!scanned && scanned.error().code() != Code::corrupt) return scanned;
  return batch.empty() ? Status() : apply(batch);
}

Result<bool> LocalRepository::Impl::erase_garbage(const GcOptions& options, const Progress& progress,
                                                  GcReport& report) {
  FRESHET_TRY(references.need());
  FRESHET_ASSIGN(Garbage garbage, find_garbage(*backend, *references.counts(), segments_in_flight));
  std::move(garbage.notes.begin(), garbage.notes.end(), std::back_inserter(report.notes));
  if (references.counts()->unknown() != 0) {
    report.notes.push_back(
        format("bytes of retired versions stay, because {} records that may name them cannot be read",
               references.counts()->unknown()));
  }
  {
    const MutexLock lock(known.mutex);
    report.rows = rows_of(garbage, known.catalog);
    report.live_bytes = known.catalog.segment_bytes() - garbage.unnamed_bytes;
  }
  std::uint64_t total = 0;
  for (const auto& [key, bytes] : garbage.blobs) total += bytes;
  if (options.dry_run) {
    report.freed_bytes = total;
    Result<std::vector<GcRow>> inherited = inherited_rows();
    if (!inherited) {
      FRESHET_TRY(
          noted(fail(std::move(inherited).error()), "the list of inherited segments is not complete", report.notes));
      return false;
    }
    std::move(inherited->begin(), inherited->end(), std::back_inserter(report.rows));
    std::stable_sort(report.rows.begin(), report.rows.end(),
                     [](const GcRow& a, const GcRow& b) { return a.writer < b.writer; });
    return false;
  }
  FRESHET_TRY(drop_unnamed(garbage.unnamed));
  FRESHET_TRY(drop_given_up());
  for (const auto& [key, bytes] : garbage.blobs) {
    FRESHET_TRY(Interruption::check());  // What is left no record names any more: the next gc() takes it.
    const auto segment = segment_of_blob(key);
    if (segment && readable->holds(*segment)) continue;  // The next gc() takes it.
    if (Status erased = backend->erase_blob(key); !erased) {
      failed = true;
      return fail(std::move(erased).error().with_context("collect garbage"));
    }
    report.freed_bytes += bytes;
    if (progress) progress(report.freed_bytes, total);
  }
  return true;
}

Result<GcReport> LocalRepository::gc(const GcOptions& options, const Progress& progress) {
  const StopInterrupts stops(options.stop);
  GcReport report;
  {
    const WritersTurn turn(*impl_);
    if (!options.dry_run) FRESHET_TRY(impl_->recovered());
    FRESHET_TRY(impl_->segments.need_records());
    if (impl_->unread.empty()) {
      const MutexLock lock(impl_->known.mutex);
      impl_->unread = impl_->known.catalog.unread();
    }
    if (!impl_->unread.empty()) {
      const MutexLock lock(impl_->known.mutex);
      report.live_bytes = impl_->known.catalog.segment_bytes();
      report.notes.push_back("nothing is erased, because some records cannot be read: " + impl_->unread);
      return report;
    }
    FRESHET_ASSIGN(const bool goes_on, impl_->erase_garbage(options, progress, report));
    if (!goes_on) return report;
  }
  // Giving the space back may move much of what stays. Nobody has to wait for that.
  if (Status reclaimed = impl_->backend->reclaim(); !reclaimed) {
    const WritersTurn turn(*impl_);
    impl_->failed = true;
    return fail(std::move(reclaimed).error().with_context("collect garbage"));
  }
  std::vector<std::string> left = impl_->backend->left_by_reclaim();
  std::move(left.begin(), left.end(), std::back_inserter(report.notes));
  return report;
}

std::string why(const GcRow& row) {
  const std::string writer = row.version.number == 0 ? "version " + to_string(row.writer) : to_string(row.version);
  switch (row.reason) {
    case GcReason::retired: return format("written by {}, which was retired; no version needs it", writer);
    case GcReason::unfinished: return format("written for {}, and left by an unfinished put or erasure", writer);
    case GcReason::inherited: break;
  }
  std::string names;
  for (const VersionName& name : row.named_by) names += (names.empty() ? "" : ", ") + to_string(name);
  const std::uint64_t more = row.named_by_count - row.named_by.size();
  if (more != 0) names += names.empty() ? format("{} elsewhere", more) : format(" and {} more", more);
  return format("written by {}, which was retired; named by {}", writer, names);
}

}  // namespace freshet
