// SPDX-License-Identifier: Apache-2.0
/// Reading everything again, to find what the medium lost.

#include <algorithm>
#include <unordered_set>

#include "core/base/format.h"

#include "repo/audit/record_audit.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

constexpr std::uint64_t kVerifyPieceBytes = std::uint64_t{4} << 20;

/// Digests each segment once, however many versions name it.
class Verifier {
 public:
  /// `known`: what need not be read.
  Verifier(const LocalRepository::Impl& impl, std::uint64_t total, std::unordered_set<SegmentName> known,
           const Progress& progress, VerifyReport& report)
      : impl_(impl),
        backend_(*impl.backend),
        total_(total),
        progress_(progress),
        seen_(std::move(known)),
        told_(seen_),
        report_(report) {}

  void check(const Manifest& manifest, const std::optional<Placed>& placed) {
    for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
      if (placed && is_elsewhere(*placed, tensor)) continue;
      const TensorSpec& spec = manifest.architecture->tensors()[tensor];
      check(manifest.owners[tensor], {.bytes = spec.bytes(), .digest = manifest.digests[tensor]}, manifest.name,
            spec.name);
    }
  }

  void check(const SegmentName& segment, const SegmentRow& row, const VersionName& version, const std::string& tensor) {
    if (!seen_.insert(segment).second) return;
    const std::uint64_t before = report_.checked_bytes;
    Status status = check_segment(segment, row.bytes, row.digest);
    if (status) return;
    // It may have been retired and collected meanwhile, or come back in another form.
    const Result<std::string> record = backend_.get(segment_record_key(segment));
    if (!record && record.error().code() == Code::not_found && is_gone(version)) return;
    report_.checked_bytes = before;
    status = check_segment(segment, row.bytes, row.digest);
    if (!status) tell(segment, version, tensor, status.error());
  }

  /// The segment's bytes need not be read: that much is known.
  void skip(const SegmentName& segment, const VersionName& version, const std::string& tensor, const Error& error) {
    if (seen_.insert(segment).second) tell(segment, version, tensor, error);
  }

  bool has_told(const SegmentName& segment) const { return told_.contains(segment); }

  void add(const VersionName& name, const std::string& tensor, const Error& error) {
    report_.corrupt.push_back({.version = name,
                               .tensor = tensor,
                               .reason = reason_without(name, error.message()),
                               .record = name.number == 0 ? tensor : std::string()});
  }

 private:
  void tell(const SegmentName& segment, const VersionName& version, const std::string& tensor, const Error& error) {
    told_.insert(segment);
    add(version, tensor, error);
  }

  /// True for what is a version no more, and for no version at all.
  bool is_gone(const VersionName& version) const {
    const MutexLock lock(impl_.known.mutex);
    return version.number == 0 || !impl_.known.catalog.find(version);
  }

  Status check_segment(const SegmentName& segment, std::uint64_t bytes, const Digest& digest) {
    if (impl_.segments.base_of(segment)) return check_rebuilt(segment, bytes, digest);
    const std::string key = segment_key(segment);
    stream_.reset();
    piece_.resize(static_cast<std::size_t>(std::min(bytes, kVerifyPieceBytes)));
    for (std::uint64_t offset = 0; offset < bytes || bytes == 0; offset += kVerifyPieceBytes) {
      const MutableBytes piece(piece_.data(), static_cast<std::size_t>(std::min(bytes - offset, kVerifyPieceBytes)));
      FRESHET_TRY(backend_.read_blob(key, offset, piece));
      stream_.update(piece);
      report_.checked_bytes += piece.size();
      if (progress_) progress_(report_.checked_bytes, std::max(total_, report_.checked_bytes));
      if (bytes == 0) break;
    }
    if (stream_.finish() != digest) return fail(Code::corrupt, "its bytes do not match its digest");
    return {};
  }

  /// One that is kept as a delta. Its base is read again, so that what is said of the one holds for the other.
  Status check_rebuilt(const SegmentName& segment, std::uint64_t bytes, const Digest& digest) {
    FRESHET_ASSIGN(const SegmentRow row, impl_.segments.rebuildable(segment));
    if (row.bytes != bytes) return fail(Code::corrupt, "its record is damaged");
    piece_.resize(static_cast<std::size_t>(bytes));
    FRESHET_TRY(impl_.segments.read(segment, piece_));
    report_.checked_bytes += bytes;
    if (progress_) progress_(report_.checked_bytes, std::max(total_, report_.checked_bytes));
    if (digest_of(piece_) != digest) return fail(Code::corrupt, "its bytes do not match its digest");
    return {};
  }

  const LocalRepository::Impl& impl_;
  const Backend& backend_;
  const std::uint64_t total_;
  const Progress& progress_;
  DigestStream stream_;
  std::vector<std::byte> piece_;
  std::unordered_set<SegmentName> seen_;
  std::unordered_set<SegmentName> told_;  ///< Whose damage is in the report.
  VerifyReport& report_;
};

Result<std::vector<MediumDamage>> check_medium(const Backend& backend, std::uint64_t more, const Progress& progress) {
  return backend.find_damage([&](std::uint64_t done, std::uint64_t total) {
    if (progress) progress(done, total + more);
  });
}

// Damage of a tensor was told as such. The rest is told by its place.
void tell_of_medium(const Backend& backend, const std::vector<MediumDamage>& found, const Verifier& verifier,
                    VerifyReport& report) {
  for (const MediumDamage& damage : found) {
    bool is_told = false;
    bool is_needed = false;
    for (const std::string& blob : damage.blobs) {
      const auto segment = segment_of_blob(blob);
      if (!segment) continue;
      is_told = is_told || verifier.has_told(*segment);
      is_needed = is_needed || backend.get(segment_record_key(*segment)).has_value();
    }
    if (is_told) continue;
    const char* of_whom = damage.in_records ? "records that lay there are lost"
                          : is_needed       ? "the bytes that versions need there can still be read"
                                            : "in bytes that no version needs; gc erases them";
    VerifyReport::Corrupt& one = report.corrupt.emplace_back();
    one.record = damage.where;
    one.reason = format("{}: {}", of_whom, damage.reason);
  }
}

// Its record and manifest, and the records of its segments; payloads are read afterwards.
Result<std::optional<Manifest>> check_one(const LocalRepository::Impl& impl, const Catalog::Found& found,
                                          Verifier& verifier) {
  const Result<std::string> stored = impl.backend->get(version_key(found.name));
  if (!stored && stored.error().code() != Code::not_found) return fail(stored.error());
  const auto row = stored ? decode_version_row(*stored) : Result<VersionRow>(fail(Code::corrupt, ""));
  if (!row || *row != *found.row) verifier.add(found.name, "", Error(Code::corrupt, "its record is damaged"));
  Result<Manifest> manifest = impl.manifests.get(found.name, *found.row);
  if (!manifest && manifest.error().code() != Code::corrupt) return fail(std::move(manifest).error());
  if (!manifest) {
    verifier.add(found.name, "", manifest.error());
    return std::optional<Manifest>();
  }
  for (std::uint32_t tensor = 0; found.row->has_weights && tensor < manifest->owners.size(); ++tensor) {
    if (found.row->placed && is_elsewhere(*found.row->placed, tensor)) continue;
    const TensorSpec& spec = manifest->architecture->tensors()[tensor];
    const Result<SegmentRow> segment = impl.segments.row(manifest->owners[tensor]);
    Status same = segment ? Status() : Status(fail(segment.error()));
    if (segment) same = check_same(*segment, {.bytes = spec.bytes(), .digest = manifest->digests[tensor]});
    if (!same) verifier.skip(manifest->owners[tensor], found.name, spec.name, same.error());
  }
  return std::optional(*std::move(manifest));
}

}  // namespace

Result<VerifyReport> LocalRepository::verify(const std::optional<VersionName>& name, const Progress& progress) const {
  VerifyReport report;
  if (name) {
    FRESHET_ASSIGN(const Catalog::Found found, impl_->find(*name));
    Verifier verifier(*impl_, found.row->own_bytes + found.row->inherited_bytes, {}, progress, report);
    FRESHET_ASSIGN(const std::optional<Manifest> manifest, check_one(*impl_, found, verifier));
    if (manifest && found.row->has_weights) verifier.check(*manifest, found.row->placed);
    return report;
  }

  std::uint64_t total = 0;
  FRESHET_TRY(impl_->segments.need_records());
  {
    const MutexLock lock(impl_->known.mutex);
    total = impl_->known.catalog.segment_bytes();
  }
  FRESHET_ASSIGN(const std::vector<MediumDamage> found, check_medium(*impl_->backend, total, progress));
  std::unordered_set<SegmentName> known;
  std::string unread;
  {
    const WritersTurn turn(*impl_);
    // After a write that failed, what is in memory may not be what is stored.
    if (!impl_->backend->read_only()) FRESHET_TRY(impl_->recovered());
    RecordAudit audit(*impl_, {impl_->references.counts(), impl_->segments_in_flight, impl_->commit}, report);
    FRESHET_TRY(audit.run());
    known = audit.take_told();
    unread = audit.unread();
  }
  Verifier verifier(*impl_, total, std::move(known), progress, report);
  FRESHET_TRY(
      impl_->manifests.for_each([&](const VersionName&, const VersionRow& row, const Result<Manifest>& manifest) {
        if (manifest && row.has_weights) verifier.check(*manifest, row.placed);  // The audit told of the others.
        return Status();
      }));
  Status scanned = impl_->backend->scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const auto segment = parse_segment_key(key.substr(kSegmentPrefix.size()));
    const auto row = decode_segment_row(value);
    if (!segment || !row) return true;
    VersionName writer;
    {
      const MutexLock lock(impl_->known.mutex);
      writer = impl_->known.catalog.find(segment->writer).value_or(VersionName{});
    }
    verifier.check(*segment, *row, writer, "segment " + to_string(*segment));
    return true;
  });
  if (!scanned && scanned.error().code() != Code::corrupt) return fail(std::move(scanned).error());
  if (!scanned) unread = scanned.error().message();
  tell_of_medium(*impl_->backend, found, verifier, report);
  // Whose tensors or records the medium lost was said above, if it lost any that a version needs.
  if (!unread.empty() && report.corrupt.empty()) {
    VerifyReport::Corrupt& one = report.corrupt.emplace_back();
    one.record = "the store";
    one.reason = unread;
  }
  return report;
}

}  // namespace freshet
