// SPDX-License-Identifier: Apache-2.0
#include "repo/repository.h"

#include <array>

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

// The segments' sums as one line: the state of the records that they are of, how many, their bytes, and a digest of it.
constexpr std::string_view kSumsName = "sums";
constexpr std::uint64_t kSumsBytesMax = 4096;

std::string encode_sums(const std::string& state, const LocalRepository::Impl::SegmentSums& sums) {
  if (state.empty()) return {};
  const std::string line = format("{} {} {}", state, sums.count, sums.bytes);
  return format("{} {}\n", line, to_hex(plain_xxh3_of(bytes_of(line.data(), line.size()))));
}

// Nothing unless they are those of this state.
std::optional<LocalRepository::Impl::SegmentSums> decode_sums(const std::optional<std::string>& text,
                                                              const std::string& state) {
  if (!text || state.empty() || !text->starts_with(state + " ")) return std::nullopt;
  std::string_view rest = std::string_view(*text).substr(state.size() + 1);
  std::array<std::uint64_t, 2> numbers{};
  for (std::uint64_t& number : numbers) {
    const Result<std::uint64_t> parsed = parse_number(rest.substr(0, rest.find(' ')));
    if (!parsed || rest.find(' ') == std::string_view::npos) return std::nullopt;
    number = *parsed;
    rest.remove_prefix(rest.find(' ') + 1);
  }
  const LocalRepository::Impl::SegmentSums sums{numbers[0], numbers[1]};
  if (encode_sums(state, sums) != *text) return std::nullopt;
  return sums;
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
  // An owner's puts and retirements lean on them, and he is to know what cannot be read before he writes.
  if (!backend->read_only()) {
    FRESHET_ASSIGN(Catalog::Segments segments, Catalog::read_segments(*backend));
    loaded.set_segments(std::move(segments));
  }
  unread = loaded.unread();
  if (!backend->read_only() && unread.empty()) {
    Status removed = remove_leftovers(loaded);
    // They wait for gc() then: who opens a repository on a full disk means to make room.
    if (!removed && removed.error().code() != Code::out_of_space) return removed;
    if (!removed) failed = true;
  }
  FRESHET_ASSIGN(const std::uint64_t greatest, greatest_commit(loaded));
  commit = greatest;
  contents.reset();
  const std::vector<StoredVersion> before = stored_versions();
  {
    const MutexLock lock(mutex);
    catalog = std::move(loaded);
  }
  index_again(before);
  return {};
}

LocalRepository::Impl::~Impl() {
  if (backend->read_only() || failed) return;
  const MutexLock lock(mutex);
  if (!catalog.has_segments() || !catalog.unread().empty()) return;
  const std::string sums = encode_sums(backend->state(), {catalog.segments(), catalog.segment_bytes()});
  if (!sums.empty() && backend->derived(kSumsName, kSumsBytesMax) != sums) {
    backend->keep_derived(kSumsName, sums, Backend::Derived::instead);
  }
}

Status LocalRepository::Impl::need_segments() {
  {
    const MutexLock lock(mutex);
    if (catalog.has_segments()) return {};
  }
  // Only who opened it for reading comes here. A folder's records are as they were when he opened it. Those of RADOS
  // and of a bucket follow the owner's log, so there the segments may be of a later time than the versions. That does
  // no harm: a record of a segment is never changed, and who reads a version asks for its segments by name.
  FRESHET_ASSIGN(Catalog::Segments segments, Catalog::read_segments(*backend));
  const MutexLock lock(mutex);
  if (!catalog.has_segments()) catalog.set_segments(std::move(segments));
  return {};
}

Result<LocalRepository::Impl::SegmentSums> LocalRepository::Impl::segment_sums() {
  for (bool was_read = false;; was_read = true) {
    {
      const MutexLock lock(mutex);
      if (catalog.has_segments()) return SegmentSums{catalog.segments(), catalog.segment_bytes()};
    }
    if (const auto kept = decode_sums(backend->derived(kSumsName, kSumsBytesMax), backend->state()); kept && !was_read)
      return *kept;
    FRESHET_TRY(need_segments());
  }
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
  Result<Catalog::Found> found = catalog.find(name);
  // What is found is read from the backend next, which tells.
  return found ? std::move(found) : if_current(std::move(found));
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
  return impl_->if_current(std::move(names));
}

Result<VersionNumber> LocalRepository::latest(const std::string& model) const {
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->catalog.models().find(model);
  const auto newest = found == impl_->catalog.models().end() ? std::nullopt : Catalog::newest(found->second);
  if (newest) return impl_->if_current(*newest);
  return impl_->if_current(Result<VersionNumber>(fail(impl_->catalog.find(VersionName{.model = model}).error())));
}

Result<std::optional<VersionName>> LocalRepository::find(const VersionId& id) const {
  const MutexLock lock(impl_->mutex);
  return impl_->if_current(impl_->catalog.find(id));
}

Result<RepositoryStat> LocalRepository::stat() const {
  FRESHET_ASSIGN(const DiskUse disk, impl_->backend->disk_use());
  FRESHET_ASSIGN(const Impl::SegmentSums segments, impl_->segment_sums());
  const MutexLock lock(impl_->mutex);
  return RepositoryStat{.models = impl_->catalog.live_models(),
                        .versions = impl_->catalog.versions(),
                        .retired_versions = impl_->catalog.retired(),
                        .live_tensors = segments.count,
                        .live_bytes = segments.bytes,
                        .disk_bytes = disk.bytes,
                        .metadata_bytes = disk.metadata_bytes};
}

}  // namespace freshet
