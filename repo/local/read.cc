// SPDX-License-Identifier: Apache-2.0
/// Reading versions back: one owner map, then each segment where it lies, however long the lineage is.

#include <algorithm>
#include <numeric>
#include <thread>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/local/local_repository.h"
#include "repo/local/side_by_side.h"
#include "repo/local/tensor_reads.h"

namespace freshet {
namespace {

/// Reads of more are shared by several threads.
constexpr std::uint64_t kParallelBytesMin = std::uint64_t{8} << 20;
/// Memory is read as fast as processors ask for it.
constexpr unsigned kMemoryReadersMax = 4;

std::size_t readers(std::uint64_t bytes, const Backend& backend) {
  if (bytes < kParallelBytesMin) return 1;
  // Who reads a medium waits: while some threads do, another one digests what came, and the medium has several
  // requests.
  if (backend.durable()) return backend.readers_max();
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMemoryReadersMax);
}

}  // namespace

Result<VersionRecord> LocalRepository::get(const VersionName& name) const {
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  Result<Manifest> read = impl_->manifests.get(found.name, *found.row);
  if (!read && read.error().code() == Code::corrupt) {
    // One batch takes the manifest and leaves a tombstone; what is in memory is told afterwards. So the record says
    // whether the manifest is damaged or gone. Readers do not wait for writers.
    const Result<std::string> stored = impl_->backend->get(version_key(found.name));
    const auto row = stored ? decode_version_row(*stored) : Result<VersionRow>(fail(stored.error()));
    if (row && row->retired) return fail(Code::not_found, to_string(found.name) + " was retired");
  }
  FRESHET_ASSIGN(Manifest manifest, std::move(read));
  manifest.tags = with_later_tags(std::move(manifest.tags), *found.row);
  return VersionRecord{.manifest = std::move(manifest),
                       .quality = found.row->quality,
                       .has_weights = found.row->has_weights,
                       .own_bytes = found.row->own_bytes,
                       .inherited_bytes = found.row->inherited_bytes,
                       .placed = found.row->placed};
}

Status LocalRepository::read(const VersionRecord& record, std::span<const TensorRead> reads) const {
  FRESHET_TRY(check_reads(record, reads));
  const Manifest& manifest = record.manifest;
  const Architecture& architecture = *manifest.architecture;
  std::uint64_t bytes = 0;
  for (const TensorRead& read : reads) {
    bytes += read.out.size();
    if (!record.placed || !is_elsewhere(*record.placed, read.tensor)) continue;
    return fail(Error(Code::unavailable, "its bytes are at another provider")
                    .with_context(tensor_label(manifest.name, architecture, read.tensor)));
  }
  // In the order in which they lie on the disk.
  std::vector<std::uint32_t> order(reads.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return manifest.owners[reads[a].tensor] < manifest.owners[reads[b].tensor];
  });
  std::vector<Backend::WholeRead> whole;
  for (const std::uint32_t at : order) {
    whole.push_back({.key = segment_key(manifest.owners[reads[at].tensor]), .out = reads[at].out});
  }
  FRESHET_ASSIGN(const auto came, impl_->backend->read_neighbours(whole));
  const auto read_one = [&](std::size_t at) -> Status {
    if (came[at] == manifest.digests[reads[order[at]].tensor]) return {};
    FRESHET_TRY(Interruption::check());  // In force for this thread's pieces; the first that ends so ends all.
    const TensorRead& read = reads[order[at]];
    Status status = impl_->segments.read_proved(manifest.owners[read.tensor], manifest.digests[read.tensor], read.out);
    if (status) return status;
    return fail(std::move(status).error().with_context(tensor_label(manifest.name, architecture, read.tensor)));
  };
  return run_side_by_side(order.size(), readers(bytes, *impl_->backend), read_one);
}

Status LocalRepository::read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                                   MutableBytes out) const {
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  if (!record.has_weights) {
    return fail(Code::failed_precondition, to_string(manifest.name) + " has no weights");
  }
  if (tensor >= tensors.size() || offset > tensors[tensor].bytes() || out.size() > tensors[tensor].bytes() - offset) {
    return fail(Code::invalid_argument, format("read {}: {} bytes from {} on are outside of its tensor {}",
                                               to_string(manifest.name), out.size(), offset, tensor));
  }
  Status status = impl_->segments.read_part(manifest.owners[tensor], offset, out);
  if (!status && status.error().code() == Code::not_found) status = fail(Code::corrupt, "its bytes are missing");
  if (status) return {};
  return fail(std::move(status).error().with_context(tensor_label(manifest.name, *manifest.architecture, tensor)));
}

Result<std::vector<std::vector<SignedPart>>> ProviderRepository::sign_reads(const VersionRecord&,
                                                                            std::span<const std::uint32_t>,
                                                                            Duration) const {
  return fail(Code::unsupported, "the repository's medium signs no requests");
}

Result<std::vector<std::vector<SignedPart>>> LocalRepository::sign_reads(const VersionRecord& record,
                                                                         std::span<const std::uint32_t> tensors,
                                                                         Duration life) const {
  const Manifest& manifest = record.manifest;
  std::vector<std::vector<SignedPart>> all;
  for (const std::uint32_t tensor : tensors) {
    if (!record.has_weights || tensor >= manifest.architecture->tensors().size()) {
      return fail(Code::invalid_argument,
                  format("{} has no weights, or no tensor {}", to_string(manifest.name), tensor));
    }
    Result<std::vector<SignedPart>> parts = impl_->backend->sign_blob(segment_key(manifest.owners[tensor]), life);
    // Kept as a difference, or gone, or at another provider: who asks for its bytes is told.
    if (!parts && parts.error().code() != Code::not_found) return fail(std::move(parts).error());
    all.push_back(parts ? std::move(*parts) : std::vector<SignedPart>());
  }
  return all;
}

Result<std::vector<OwnerRow>> LocalRepository::owners(const VersionName& name) const {
  FRESHET_ASSIGN(const VersionRecord record, get(name));
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  std::vector<OwnerRow> rows;
  rows.reserve(tensors.size());
  const MutexLock lock(impl_->known.mutex);
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const SegmentName& segment = manifest.owners[tensor];
    rows.push_back({.tensor = tensors[tensor].name,
                    .owner = impl_->known.catalog.find(segment.writer).value_or(VersionName{}),
                    .segment = segment,
                    .bytes = tensors[tensor].bytes()});
  }
  return rows;
}

}  // namespace freshet
