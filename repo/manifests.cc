/// Manifests on the disk.

#include "core/format.h"
#include "repo/local_repository.h"

namespace freshet {

Status LocalRepository::Impl::store_manifest(Backend::Batch& batch, const Manifest& manifest, VersionRow& row) const {
  const std::vector<std::byte> encoded = encode(manifest);
  if (encoded.size() > kManifestBytesMax) {
    return fail(Code::invalid_argument,
                format("the manifest has {} bytes, more than {}", encoded.size(), kManifestBytesMax));
  }
  row.manifest = digest_of(encoded);
  batch.push_back(Backend::Put{manifest_key(manifest.name),
                               std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size())});
  return {};
}

Status LocalRepository::Impl::erase_manifest(Backend::Batch& batch, const VersionName& name,
                                             const VersionRow& /*row*/) const {
  batch.push_back(Backend::Erase{manifest_key(name)});
  return {};
}

Result<Manifest> LocalRepository::Impl::manifest_of(const VersionName& name, const VersionRow& row) const {
  const auto in_context = [&](Error error) { return fail(std::move(error).with_context(to_string(name))); };
  const Result<std::string> stored = backend->get(manifest_key(name));
  if (!stored && stored.error().code() == Code::not_found)
    return in_context(Error(Code::corrupt, "its manifest is missing"));
  if (!stored) return in_context(stored.error());
  const Bytes encoded = bytes_of(stored->data(), stored->size());
  if (digest_of(encoded) != row.manifest) return in_context(Error(Code::corrupt, "its manifest is damaged"));
  Result<std::shared_ptr<const Architecture>> architecture = architecture_of(row.architecture);
  if (!architecture) return in_context(std::move(architecture).error());
  Result<Manifest> manifest = decode_manifest(encoded, *architecture);
  if (!manifest) return in_context(std::move(manifest).error());
  if (manifest->id != row.id || manifest->name != name) {
    return in_context(Error(Code::corrupt, "its manifest is that of " + to_string(manifest->name)));
  }
  return manifest;
}

Status LocalRepository::Impl::for_each_manifest(const EachManifest& each) const {
  std::vector<std::pair<VersionName, std::shared_ptr<const VersionRow>>> rows;
  {
    const MutexLock lock(mutex);
    for (const auto& [model, versions] : catalog.models()) {
      for (const auto& [number, entry] : versions) {
        if (entry.row == nullptr || entry.row->retired) continue;
        rows.emplace_back(VersionName{.model = model, .number = number}, entry.row);
      }
    }
  }
  for (const auto& [name, row] : rows) FRESHET_TRY(each(name, *row, manifest_of(name, *row)));
  return {};
}

}  // namespace freshet
