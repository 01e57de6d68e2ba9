/// Storing a version, in this order (repo/FORMAT.md, "The order of a put"):
///   1. The manifest is checked against what is stored: its identity is new, inherited segments have the same digests.
///   2. The bytes of segments that are not stored are asked for, proved against their digests, and written aside.
///   3. The blobs are committed: durable, and named by nobody.
///   4. One batch makes the version, and its segments, exist.
/// A crash before 4 leaves blobs that load() removes; after it, a whole version.

#include <algorithm>
#include <unordered_map>

#include "core/format.h"
#include "repo/local_repository.h"

namespace freshet {
namespace {

constexpr VersionNumber kVersionNumberMax = VersionNumber{1} << 62;

// A segment that is stored, or comes twice in one manifest, must be the same bytes wherever it is named.
Status check_same(const SegmentRow& stored, const SegmentRow& named) {
  if (stored == named) return {};
  return fail(Code::corrupt, format("inherits {} bytes with digest {}, but {} bytes with digest {} are stored",
                                    named.bytes, to_hex(named.digest), stored.bytes, to_hex(stored.digest)));
}

// The segments of the owner map that are not stored yet, in their order.
Result<std::vector<NewSegment>> segments_to_store(const Backend& backend, const Manifest& manifest,
                                                  const std::optional<Placed>& placed) {
  std::vector<NewSegment> missing;
  std::unordered_map<SegmentName, SegmentRow> seen;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    if (placed && is_elsewhere(*placed, tensor)) continue;
    const SegmentName& name = manifest.owners[tensor];
    const SegmentRow row{.bytes = manifest.architecture->tensors()[tensor].bytes(), .digest = manifest.digests[tensor]};
    const auto [before, first] = seen.try_emplace(name, row);
    Status same;
    if (!first) {
      same = check_same(before->second, row);
    } else if (const Result<std::string> stored = backend.get(segment_record_key(name))) {
      FRESHET_ASSIGN(const SegmentRow there, decode_segment_row(*stored));
      same = check_same(there, row);
    } else if (stored.error().code() == Code::not_found) {
      missing.push_back({.name = name, .tensor = tensor, .bytes = row.bytes});
    } else {
      same = fail(stored.error());
    }
    if (!same)
      return fail(std::move(same).error().with_context(tensor_label(manifest.name, *manifest.architecture, tensor)));
  }
  std::sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return missing;
}

Status prove(Bytes bytes, const NewSegment& segment, const Manifest& manifest) {
  if (bytes.size() != segment.bytes) {
    return fail(Code::corrupt, format("{} bytes were given for {}", bytes.size(), segment.bytes));
  }
  if (digest_of(bytes) != manifest.digests[segment.tensor]) {
    return fail(Code::corrupt, "its bytes do not match its digest");
  }
  return {};
}

std::string text_of(Bytes bytes) { return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

void add_segments(Backend::Batch& batch, const Manifest& manifest, const std::vector<NewSegment>& segments) {
  for (const NewSegment& segment : segments) {
    const SegmentRow stored{.bytes = segment.bytes, .digest = manifest.digests[segment.tensor]};
    batch.push_back(Backend::Put{segment_record_key(segment.name), encode(stored)});
  }
}

VersionRow row_of(const Manifest& manifest, const Repository::PutOptions& options, const Clock& clock) {
  VersionRow row{.id = manifest.id,
                 .ancestor = manifest.ancestor,
                 .ancestor_name = manifest.ancestor_name,
                 .architecture = manifest.architecture->digest(),
                 .quality = options.quality,
                 .has_weights = options.has_weights,
                 .stored_unix_ns = clock.unix_ns(),
                 .placed = options.placed};
  for (const auto& [key, value] : manifest.tags) row.tags.push_back(tag_digest(key, value));
  if (!options.has_weights) return row;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const std::uint64_t bytes = manifest.architecture->tensors()[tensor].bytes();
    (manifest.owners[tensor].writer == manifest.id ? row.own_bytes : row.inherited_bytes) += bytes;
  }
  return row;
}

}  // namespace

Status LocalRepository::Impl::admit(Manifest& manifest, const PutOptions& options) const {
  if (manifest.name.number > kVersionNumberMax)
    return fail(Code::invalid_argument, "the version's number is too large");
  if (manifest.ancestor == manifest.id) return fail(Code::invalid_argument, "the version is its own ancestor");
  {
    const MutexLock lock(mutex);
    if (const auto stored = catalog.find(manifest.id)) {
      return fail(Code::already_exists,
                  format("version {} is stored as {}", to_string(manifest.id), to_string(*stored)));
    }
    if (manifest.ancestor && catalog.forest()->closes_circle(manifest.id, *manifest.ancestor)) {
      return fail(Code::invalid_argument, "the version would descend from itself");
    }
    if (options.placed && catalog.has_name(manifest.name)) {
      return fail(Code::already_exists, to_string(manifest.name) + " is stored");
    }
    const VersionNumber high_water = catalog.high_water(manifest.name.model);
    if (manifest.name.number <= high_water && !options.placed) manifest.name.number = high_water + 1;
  }
  return check(manifest);
}

Status LocalRepository::Impl::store_blobs(const Manifest& manifest, const std::vector<NewSegment>& segments,
                                          const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of_tensor) {
  if (segments.empty()) return {};
  FRESHET_ASSIGN(const std::unique_ptr<BlobWriter> writer, backend->write_blobs());
  for (const NewSegment& segment : segments) {
    const auto in_context = [&](Error error) {
      return fail(std::move(error).with_context(tensor_label(manifest.name, *manifest.architecture, segment.tensor)));
    };
    Result<Bytes> bytes = bytes_of_tensor(segment.tensor);
    if (!bytes) return in_context(std::move(bytes).error());
    if (Status proved = prove(*bytes, segment, manifest); !proved) return in_context(std::move(proved).error());
    if (Status written = writer->write(segment_key(segment.name), *bytes); !written) {
      failed = true;
      return in_context(std::move(written).error());
    }
  }
  Status committed = writer->commit();
  if (!committed) failed = true;
  return committed;
}

Status LocalRepository::Impl::store_records(const Manifest& manifest, const std::vector<NewSegment>& segments,
                                            VersionRow& row) {
  row.commit = commit + 1;
  Backend::Batch batch;
  add_segments(batch, manifest, segments);
  FRESHET_TRY(store_manifest(batch, manifest, row));
  batch.push_back(Backend::Put{version_key(manifest.name), encode(row)});
  batch.push_back(Backend::Put{high_water_key(manifest.name.model), std::to_string(manifest.name.number)});
  batch.push_back(commit_record(row.commit));
  const std::string architecture = architecture_key(row.architecture);
  if (!backend->get(architecture))
    batch.push_back(Backend::Put{architecture, text_of(manifest.architecture->encoded())});
  FRESHET_TRY(apply(batch));
  commit = row.commit;
  return {};
}

Result<VersionName> LocalRepository::put(const Manifest& given,
                                         const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                         PutOptions options) {
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  Manifest manifest = given;
  if (options.placed) FRESHET_TRY(impl_->admit_placed(manifest, *options.placed));
  FRESHET_TRY(impl_->admit(manifest, options));
  std::vector<NewSegment> segments;
  if (options.has_weights) {
    FRESHET_ASSIGN(segments, segments_to_store(*impl_->backend, manifest, options.placed));
  }
  VersionRow row = row_of(manifest, options, impl_->clock);
  Status stored = impl_->store_blobs(manifest, segments, bytes_of);
  if (stored) stored = impl_->store_records(manifest, segments, row);
  if (!stored) return fail(std::move(stored).error().with_context("put " + to_string(manifest.name)));

  {
    const MutexLock lock(impl_->mutex);
    impl_->catalog.add(manifest.name, row);
    for (const NewSegment& segment : segments) impl_->catalog.add_segment(segment.bytes);
  }
  impl_->index_version(manifest.name, row, *manifest.architecture);
  return manifest.name;
}

Result<std::vector<std::uint32_t>> LocalRepository::wanted(const Manifest& given, const PutOptions& options) const {
  Manifest manifest = given;
  if (options.placed) FRESHET_TRY(impl_->admit_placed(manifest, *options.placed));
  FRESHET_TRY(impl_->admit(manifest, options));
  std::vector<std::uint32_t> tensors;
  if (!options.has_weights) return tensors;
  FRESHET_ASSIGN(const std::vector<NewSegment> segments, segments_to_store(*impl_->backend, manifest, options.placed));
  for (const NewSegment& segment : segments) tensors.push_back(segment.tensor);
  std::sort(tensors.begin(), tensors.end());
  return tensors;
}

}  // namespace freshet
