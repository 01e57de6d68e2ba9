// SPDX-License-Identifier: Apache-2.0
#include "repo/repository.h"

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

}  // namespace

std::shared_ptr<const Architecture> ArchitectureCache::find(const Digest& digest) const {
  const MutexLock lock(mutex_);
  for (const auto& architecture : recent_) {
    if (architecture->digest() == digest) return architecture;
  }
  return nullptr;
}

void ArchitectureCache::add(std::shared_ptr<const Architecture> architecture) {
  const MutexLock lock(mutex_);
  if (recent_.size() < kKept) {
    recent_.push_back(std::move(architecture));
  } else {
    recent_[next_++ % kKept] = std::move(architecture);
  }
}

std::shared_ptr<const MatchGraph> GraphCache::find(const Digest& architecture) const {
  const MutexLock lock(mutex_);
  for (const auto& [digest, graph] : recent_) {
    if (digest == architecture) return graph;
  }
  return nullptr;
}

void GraphCache::add(const Digest& architecture, std::shared_ptr<const MatchGraph> graph) {
  const MutexLock lock(mutex_);
  if (recent_.size() < kKept) {
    recent_.emplace_back(architecture, std::move(graph));
  } else {
    recent_[next_++ % kKept] = {architecture, std::move(graph)};
  }
}

std::string tensor_label(const VersionName& name, const Architecture& architecture, std::uint32_t tensor) {
  return format("{} {}", to_string(name), architecture.tensors()[tensor].name);
}

Status LocalRepository::Impl::load() {
  FRESHET_TRY(check_format(*backend));
  FRESHET_ASSIGN(Catalog loaded, Catalog::load(*backend));
  unread = loaded.unread();
  if (!backend->read_only() && unread.empty()) {
    Status removed = remove_leftovers(loaded);
    // They wait for gc() then: who opens a repository on a full disk means to make room.
    if (!removed && removed.error().code() != Code::out_of_space) return removed;
    if (!removed) failed = true;
  }
  FRESHET_TRY(index_catalog(loaded));
  contents.reset();
  const MutexLock lock(mutex);
  catalog = std::move(loaded);
  return {};
}

Status LocalRepository::Impl::recovered() {
  if (backend->read_only()) return fail(Code::failed_precondition, "the repository is opened for reading only");
  if (!failed) return {};
  // Whether the batch that failed is there or not, only the backend's records say.
  FRESHET_TRY(backend->recover());
  references.reset();
  failed = false;
  Status loaded = load();
  if (!loaded) failed = true;
  return loaded;
}

Status LocalRepository::Impl::ready_to_write() {
  FRESHET_TRY(recovered());
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
  const MutexLock lock(mutex);
  return catalog.find(name);
}

Result<std::shared_ptr<const Architecture>> LocalRepository::Impl::architecture_of(const Digest& digest) const {
  if (auto known = architectures.find(digest)) return known;
  const Result<std::string> stored = backend->get(architecture_key(digest));
  if (!stored && stored.error().code() == Code::not_found) return fail(Code::corrupt, "its architecture is missing");
  if (!stored) return fail(stored.error());
  FRESHET_ASSIGN(std::shared_ptr<const Architecture> architecture,
                 decode_architecture(bytes_of(stored->data(), stored->size())));
  if (architecture->digest() != digest) return fail(Code::corrupt, "its architecture is another one");
  architectures.add(architecture);
  return architecture;
}

LocalRepository::LocalRepository(std::unique_ptr<Backend> backend, const Clock& clock, std::uint64_t part_bytes_max)
    : impl_(std::make_unique<Impl>(std::move(backend), clock)), parts_(*this, clock, part_bytes_max) {}
LocalRepository::~LocalRepository() = default;

Status LocalRepository::load() {
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->load());
  // While a large one is read, nobody can renew.
  const MutexLock lock(impl_->mutex);
  impl_->leases.set_opened(impl_->clock.now());
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

Result<std::vector<std::string>> LocalRepository::models() const {
  const MutexLock lock(impl_->mutex);
  std::vector<std::string> names;
  for (const auto& [model, versions] : impl_->catalog.models()) {
    if (Catalog::newest(versions)) names.push_back(model);
  }
  return names;
}

Result<VersionNumber> LocalRepository::latest(const std::string& model) const {
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->catalog.models().find(model);
  const auto newest = found == impl_->catalog.models().end() ? std::nullopt : Catalog::newest(found->second);
  if (newest) return *newest;
  return fail(impl_->catalog.find(VersionName{.model = model}).error());
}

Result<std::optional<VersionName>> LocalRepository::find(const VersionId& id) const {
  const MutexLock lock(impl_->mutex);
  return impl_->catalog.find(id);
}

Result<RepositoryStat> LocalRepository::stat() const {
  FRESHET_ASSIGN(const DiskUse disk, impl_->backend->disk_use());
  const MutexLock lock(impl_->mutex);
  return RepositoryStat{.models = impl_->catalog.live_models(),
                        .versions = impl_->catalog.versions(),
                        .retired_versions = impl_->catalog.retired(),
                        .live_tensors = impl_->catalog.segments(),
                        .live_bytes = impl_->catalog.segment_bytes(),
                        .disk_bytes = disk.bytes,
                        .metadata_bytes = disk.metadata_bytes};
}

}  // namespace freshet
