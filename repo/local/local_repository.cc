// SPDX-License-Identifier: Apache-2.0
#include "repo/repository.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/model/format_version.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

// Writes the format's number into a new repository, and refuses one of another number.
Status check_format(Backend& backend) {
  const Result<std::string> stored = backend.get(kFormatKey);
  if (!stored && stored.error().code() != Code::not_found) return fail(stored.error());
  if (!stored) {
    if (backend.read_only()) return {};
    return backend.apply({Backend::Put{std::string(kFormatKey), std::to_string(kFormatVersion)}});
  }
  return check_format_number(*stored);
}

// The greatest commit number that the records have; at least those of the catalog's rows.
Result<std::uint64_t> greatest_commit(const Backend& backend, const Catalog& loaded) {
  std::uint64_t greatest = 0;
  if (const Result<std::string> stored = backend.get(kCommitKey)) {
    FRESHET_ASSIGN(greatest, parse_number(*stored));
  } else if (stored.error().code() != Code::not_found) {
    return fail(stored.error());
  }
  return std::max(greatest, loaded.greatest_commit());
}

}  // namespace

std::string tensor_label(const VersionName& name, const Architecture& architecture, std::uint32_t tensor) {
  return format("{} {}", to_string(name), architecture.tensors()[tensor].name);
}

Status LocalRepository::Impl::load() {
  FRESHET_TRY(check_format(*backend));
  FRESHET_ASSIGN(Catalog loaded, Catalog::load(*backend));
  // An owner's puts and retirements lean on them, and he is to know what cannot be read before he writes.
  if (!backend->read_only()) {
    FRESHET_ASSIGN(Catalog::Segments stored, Catalog::read_segments(*backend));
    loaded.set_segments(std::move(stored));
  }
  unread = loaded.unread();
  if (!backend->read_only() && unread.empty()) {
    Status removed = remove_leftovers(loaded);
    // They wait for gc() then: who opens a repository on a full disk means to make room.
    if (!removed && removed.error().code() != Code::out_of_space) return removed;
    if (!removed) failed = true;
  }
  FRESHET_ASSIGN(const std::uint64_t greatest, greatest_commit(*backend, loaded));
  commit = greatest;
  equal_contents.forget();
  const std::vector<AncestorIndex::StoredVersion> before = ancestors.stored_versions();
  {
    const MutexLock lock(known.mutex);
    known.catalog = std::move(loaded);
  }
  ancestors.catch_up(commit, before);
  return {};
}

Backend::Put commit_record(std::uint64_t number) { return {std::string(kCommitKey), std::to_string(number)}; }

LocalRepository::Impl::~Impl() {
  if (!backend->read_only() && !failed) segments.keep_sums();
}

Status LocalRepository::Impl::recovered() {
  if (backend->read_only()) return fail(Code::failed_precondition, "the repository is opened for reading only");
  if (!failed) return {};
  // Whether the batch that failed is there or not, only the backend's records say.
  FRESHET_TRY(backend->recover());
  references.forget();
  failed = false;
  Status loaded = load();
  if (!loaded) failed = true;
  return loaded;
}

Status LocalRepository::Impl::ready_to_write() {
  FRESHET_TRY(recovered());
  return check_readable();
}

Status LocalRepository::Impl::check_readable() const {
  if (unread.empty()) return {};
  return fail(Code::corrupt, format("nothing can be changed here, because some records cannot be read; copy the "
                                    "readable versions to another repository ({})",
                                    unread));
}

Status LocalRepository::Impl::remove_leftovers(const Catalog& loaded) {
  const std::unordered_set<SegmentName>* const in_flight = &segments_in_flight;
  return remove_leftover_blobs(*backend, loaded, [this, in_flight](std::string_view key) {
    const std::optional<SegmentName> segment = segment_of_blob(key);
    return segment && (in_flight->count(*segment) != 0 || readable->holds(*segment));
  });
}

Status LocalRepository::Impl::apply(const Backend::Batch& batch) {
  for (const auto& change : batch) {
    const auto* erase = std::get_if<Backend::Erase>(&change);
    if (erase == nullptr || !erase->key.starts_with(kSegmentPrefix)) continue;
    ++erasures;
    break;
  }
  Status status = backend->apply(batch);
  if (!status) failed = true;
  return status;
}

Result<Catalog::Found> LocalRepository::Impl::find(const VersionName& name) const {
  Result<Catalog::Found> found = known.find(name);
  // What is found is read from the backend next, which tells.
  return found ? std::move(found) : if_current(std::move(found));
}

LocalRepository::LocalRepository(std::unique_ptr<Backend> backend, const Clock& clock, std::uint64_t part_bytes_max)
    : impl_(std::make_unique<Impl>(std::move(backend), clock)), parts_(*this, clock, part_bytes_max) {}
LocalRepository::~LocalRepository() = default;

Status LocalRepository::load() {
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->load());
  impl_->pins.begin_leases();
  return {};
}

Result<std::unique_ptr<Repository>> Repository::open(std::unique_ptr<Backend> backend, Options options) {
  return ProviderRepository::open(std::move(backend), options);
}

Result<std::unique_ptr<ProviderRepository>> ProviderRepository::open(std::unique_ptr<Backend> backend,
                                                                     Options options) {
  const Clock& clock = options.clock != nullptr ? *options.clock : system_clock();
  auto repository = std::make_unique<LocalRepository>(std::move(backend), clock, options.part_bytes_max);
  FRESHET_TRY(repository->load());
  return repository;
}

Result<std::vector<std::string>> VersionCatalog::models() const {
  FRESHET_ASSIGN(std::vector<ModelRow> rows, model_rows());
  std::vector<std::string> names;
  names.reserve(rows.size());
  for (ModelRow& row : rows) names.push_back(std::move(row.model));
  return names;
}

Result<std::vector<ModelRow>> LocalRepository::model_rows() const {
  const MutexLock lock(impl_->known.mutex);
  std::vector<ModelRow> rows;
  rows.reserve(impl_->known.catalog.models().size());
  for (const auto& [model, versions] : impl_->known.catalog.models()) {
    ModelRow row;
    for (const auto& [number, entry] : versions) {
      if (entry.row == nullptr || !entry.row->retired) row.add(number, entry.row ? entry.row->quality : std::nullopt);
    }
    if (row.versions == 0) continue;
    row.model = model;
    rows.push_back(std::move(row));
  }
  return impl_->if_current(std::move(rows));
}

Result<VersionNumber> LocalRepository::latest(const std::string& model) const {
  const MutexLock lock(impl_->known.mutex);
  const auto found = impl_->known.catalog.models().find(model);
  const auto newest = found == impl_->known.catalog.models().end() ? std::nullopt : Catalog::newest(found->second);
  if (newest) return impl_->if_current(*newest);
  return impl_->if_current(Result<VersionNumber>(fail(impl_->known.catalog.find(VersionName{.model = model}).error())));
}

Result<std::optional<VersionName>> LocalRepository::find(const VersionId& id) const {
  const MutexLock lock(impl_->known.mutex);
  return impl_->if_current(impl_->known.catalog.find(id));
}

Result<RepositoryStat> LocalRepository::stat() const {
  FRESHET_ASSIGN(const DiskUse disk, impl_->backend->disk_use());
  FRESHET_ASSIGN(const StoredSegments::Sums segments, impl_->segments.sums());
  const MutexLock lock(impl_->known.mutex);
  return RepositoryStat{.models = impl_->known.catalog.live_models(),
                        .versions = impl_->known.catalog.versions(),
                        .retired_versions = impl_->known.catalog.retired(),
                        .live_tensors = segments.count,
                        .live_bytes = segments.bytes,
                        .disk_bytes = disk.bytes,
                        .metadata_bytes = disk.metadata_bytes};
}

}  // namespace freshet
