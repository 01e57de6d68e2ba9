/// Reading everything again, to find what the medium lost.

#include <algorithm>
#include <unordered_set>

#include "repo/local_repository.h"

namespace freshet {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

/// Digests each segment once, however many versions name it.
class Verifier {
 public:
  Verifier(const LocalRepository::Impl& impl, std::uint64_t total,
           const std::function<void(std::uint64_t, std::uint64_t)>& progress)
      : impl_(impl), backend_(*impl.backend), total_(total), progress_(progress) {}

  void check(const Manifest& manifest, const std::optional<Placed>& placed) {
    for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
      if (placed && is_elsewhere(*placed, tensor)) continue;
      if (!seen_.insert(manifest.owners[tensor]).second) continue;
      const TensorSpec& spec = manifest.architecture->tensors()[tensor];
      const Status status = check_segment(manifest.owners[tensor], spec.bytes(), manifest.digests[tensor]);
      if (!status) add(manifest.name, spec.name, status.error());
    }
  }

  /// A segment that no version here names: those of other providers do.
  void check(const SegmentName& segment, const SegmentRow& row, const VersionName& writer) {
    if (!seen_.insert(segment).second) return;
    const Status status = check_segment(segment, row.bytes, row.digest);
    if (!status) add(writer, "segment " + to_string(segment), status.error());
  }

  void add(const VersionName& name, const std::string& tensor, const Error& error) {
    report_.corrupt.push_back({.version = name, .tensor = tensor, .reason = error.message()});
  }

  VerifyReport take() { return std::move(report_); }

 private:
  Status check_segment(const SegmentName& segment, std::uint64_t bytes, const Digest& digest) {
    if (impl_.base_of(segment)) return check_rebuilt(segment, bytes, digest);
    const std::string key = segment_key(segment);
    stream_.reset();
    piece_.resize(static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
    for (std::uint64_t offset = 0; offset < bytes || bytes == 0; offset += kPieceBytes) {
      const MutableBytes piece(piece_.data(), static_cast<std::size_t>(std::min(bytes - offset, kPieceBytes)));
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
    piece_.resize(static_cast<std::size_t>(bytes));
    FRESHET_TRY(impl_.read_segment(segment, piece_));
    report_.checked_bytes += bytes;
    if (progress_) progress_(report_.checked_bytes, std::max(total_, report_.checked_bytes));
    if (digest_of(piece_) != digest) return fail(Code::corrupt, "its bytes do not match its digest");
    return {};
  }

  const LocalRepository::Impl& impl_;
  const Backend& backend_;
  const std::uint64_t total_;
  const std::function<void(std::uint64_t, std::uint64_t)>& progress_;
  DigestStream stream_;
  std::vector<std::byte> piece_;
  std::unordered_set<SegmentName> seen_;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> LocalRepository::verify(const std::optional<VersionName>& name, const Progress& progress) const {
  std::vector<std::pair<VersionName, std::shared_ptr<const VersionRow>>> rows;
  std::uint64_t total = 0;
  if (name) {
    FRESHET_ASSIGN(Catalog::Found found, impl_->find(*name));
    total = found.row->own_bytes + found.row->inherited_bytes;
    rows.emplace_back(std::move(found.name), std::move(found.row));
  } else {
    const MutexLock lock(impl_->mutex);
    total = impl_->catalog.segment_bytes();
    for (const auto& [model, versions] : impl_->catalog.models()) {
      for (const auto& [number, entry] : versions) {
        if (entry.row != nullptr && entry.row->retired) continue;
        rows.emplace_back(VersionName{.model = model, .number = number}, entry.row);
      }
    }
  }

  Verifier verifier(*impl_, total, progress);
  for (const auto& [version, row] : rows) {
    if (row == nullptr) {
      verifier.add(version, "", Error(Code::corrupt, "its record is damaged"));
      continue;
    }
    const Result<Manifest> manifest = impl_->manifest_of(version, *row);
    if (!manifest) {
      verifier.add(version, "", manifest.error());
    } else if (row->has_weights) {
      verifier.check(*manifest, row->placed);
    }
  }
  if (name) return verifier.take();
  FRESHET_TRY(impl_->backend->scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const auto segment = parse_segment_key(key.substr(kSegmentPrefix.size()));
    const auto row = decode_segment_row(value);
    if (!segment) return true;
    VersionName writer;
    {
      const MutexLock lock(impl_->mutex);
      writer = impl_->catalog.find(segment->writer).value_or(VersionName{});
    }
    if (row) {
      verifier.check(*segment, *row, writer);
    } else {
      verifier.add(writer, "segment " + to_string(*segment), row.error());
    }
    return true;
  }));
  return verifier.take();
}

}  // namespace freshet
