/// Reading versions back: one owner map, then each segment where it lies, however long the lineage is.

#include "core/format.h"
#include "repo/local_repository.h"

namespace freshet {

Result<VersionRecord> LocalRepository::get(const VersionName& name) const {
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  FRESHET_ASSIGN(Manifest manifest, impl_->manifest_of(found.name, *found.row));
  return VersionRecord{.manifest = std::move(manifest),
                       .quality = found.row->quality,
                       .has_weights = found.row->has_weights,
                       .own_bytes = found.row->own_bytes,
                       .inherited_bytes = found.row->inherited_bytes,
                       .placed = found.row->placed};
}

Status LocalRepository::read(const VersionRecord& record, std::span<const TensorRead> reads) const {
  const Manifest& manifest = record.manifest;
  const Architecture& architecture = *manifest.architecture;
  if (!record.has_weights) {
    return fail(Code::failed_precondition, to_string(manifest.name) + " has no weights");
  }
  for (const TensorRead& read : reads) {
    if (read.tensor >= architecture.tensors().size()) {
      return fail(Code::invalid_argument, format("{} has no tensor {}", to_string(manifest.name), read.tensor));
    }
    const std::uint64_t bytes = architecture.tensors()[read.tensor].bytes();
    Status status;
    if (record.placed && is_elsewhere(*record.placed, read.tensor)) {
      status = fail(Code::unavailable, "its bytes rest with another provider");
    } else if (read.out.size() != bytes) {
      status = fail(Code::invalid_argument, format("{} bytes of room for {}", read.out.size(), bytes));
    } else {
      status = impl_->read_segment(manifest.owners[read.tensor], read.out);
      if (status && digest_of(read.out) != manifest.digests[read.tensor]) {
        status = fail(Code::corrupt, "its bytes do not match its digest");
      }
    }
    if (!status)
      return fail(std::move(status).error().with_context(tensor_label(manifest.name, architecture, read.tensor)));
  }
  return {};
}

Status LocalRepository::read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                                   MutableBytes out) const {
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  if (!record.has_weights) {
    return fail(Code::failed_precondition, to_string(manifest.name) + " has no weights");
  }
  if (tensor >= tensors.size() || offset > tensors[tensor].bytes() || out.size() > tensors[tensor].bytes() - offset) {
    return fail(Code::invalid_argument, format("{} has no such bytes", to_string(manifest.name)));
  }
  Status status = impl_->read_part(manifest.owners[tensor], offset, out);
  if (!status && status.error().code() == Code::not_found) status = fail(Code::corrupt, "its bytes are missing");
  if (status) return {};
  return fail(std::move(status).error().with_context(tensor_label(manifest.name, *manifest.architecture, tensor)));
}

Result<std::vector<OwnerRow>> LocalRepository::owners(const VersionName& name) const {
  FRESHET_ASSIGN(const VersionRecord record, get(name));
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  std::vector<OwnerRow> rows;
  rows.reserve(tensors.size());
  const MutexLock lock(impl_->mutex);
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const SegmentName& segment = manifest.owners[tensor];
    rows.push_back({.tensor = tensors[tensor].name,
                    .owner = impl_->catalog.find(segment.writer).value_or(VersionName{}),
                    .segment = segment,
                    .bytes = tensors[tensor].bytes()});
  }
  return rows;
}

}  // namespace freshet
