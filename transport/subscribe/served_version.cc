// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/served_version.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::detail {
namespace {

/// As many as a Want can name, so that none is named and forgotten.
constexpr std::size_t kArchitecturesMax = protocol::kKnownArchitecturesMax;

Result<std::shared_ptr<const Architecture>> architecture_of(const protocol::Grant& grant, ArchitectureCache& cache) {
  FRESHET_ASSIGN(const Digest digest, architecture_digest_of(grant.manifest));
  if (auto known = cache.find(digest)) return known;
  if (grant.architecture.empty()) {
    return fail(Code::corrupt, format("architecture {} was not sent along", to_hex(digest)));
  }
  FRESHET_ASSIGN(auto architecture, decode_architecture(grant.architecture));
  if (architecture->digest() != digest) {
    return fail(Code::corrupt, "the architecture that was sent along is not the manifest's");
  }
  cache.add(architecture);
  return architecture;
}

Result<Bytes> bytes_at(const SegmentPlace& place, const TensorSpec& spec, const Slabs& slabs) {
  const auto bad = [&](std::string_view what) { return fail(Code::corrupt, format("tensor {} {}", spec.name, what)); };
  if (place.bytes != spec.bytes()) return bad("has another size than its place");
  if (place.bytes == 0) return Bytes();
  if (place.slab >= slabs.size()) return bad("lies in a slab that does not exist");
  const Bytes memory = slabs[place.slab]->memory();
  if (place.offset > memory.size() || place.bytes > memory.size() - place.offset) return bad("lies outside its slab");
  if (place.offset % segment_alignment(1) != 0) return bad("is not aligned");
  return memory.subspan(place.offset, place.bytes);
}

}  // namespace

void ArchitectureCache::add(std::shared_ptr<const Architecture> architecture) {
  if (architectures_.size() == kArchitecturesMax) architectures_.erase(architectures_.begin());
  architectures_.push_back(std::move(architecture));
}

std::shared_ptr<const Architecture> ArchitectureCache::find(const Digest& digest) const {
  const auto at = std::find_if(architectures_.begin(), architectures_.end(),
                               [&](const auto& architecture) { return architecture->digest() == digest; });
  return at == architectures_.end() ? nullptr : *at;
}

Result<std::shared_ptr<const Manifest>> manifest_of(const std::string& model, const protocol::Grant& grant,
                                                    ArchitectureCache& architectures) {
  FRESHET_ASSIGN(auto architecture, architecture_of(grant, architectures));
  FRESHET_ASSIGN(Manifest manifest, decode_manifest(grant.manifest, architecture));
  if (manifest.name.model != model || manifest.name.number != grant.number) {
    return fail(Code::corrupt,
                format("a manifest of {} was granted as {}@{}", to_string(manifest.name), model, grant.number));
  }
  return std::make_shared<const Manifest>(std::move(manifest));
}

std::unique_ptr<ServedVersion> make_served_version(std::shared_ptr<const FetchedMemory> fetched) {
  auto version = std::make_unique<ServedVersion>();
  version->manifest = fetched->version().manifest;
  for (std::uint32_t tensor = 0; tensor < fetched->version().segments.size(); ++tensor) {
    version->tensors.push_back(fetched->bytes(tensor));
  }
  version->fetched = std::move(fetched);
  return version;
}

Result<std::unique_ptr<ServedVersion>> make_served_version(const std::string& model, const protocol::Grant& grant,
                                                           const Slabs& slabs, ArchitectureCache& architectures) {
  FRESHET_ASSIGN(auto manifest, manifest_of(model, grant, architectures));
  const auto& architecture = manifest->architecture;
  if (grant.places.size() != architecture->tensors().size()) {
    return fail(Code::corrupt, format("{} places for {} tensors", grant.places.size(), architecture->tensors().size()));
  }
  for (std::size_t slab = 0; slab < std::min(slabs.size(), grant.slab_bytes.size()); ++slab) {
    if (grant.slab_bytes[slab] != slabs[slab]->bytes()) {
      return fail(Code::corrupt, format("slab {} has another size than in the grant", slab));
    }
  }
  auto version = std::make_unique<ServedVersion>();
  version->tensors.reserve(grant.places.size());
  for (std::size_t i = 0; i < grant.places.size(); ++i) {
    FRESHET_ASSIGN(const Bytes bytes, bytes_at(grant.places[i], architecture->tensors()[i], slabs));
    version->tensors.push_back(bytes);
  }
  version->manifest = std::move(manifest);
  version->slabs = slabs;
  version->session = grant.session;
  return version;
}

void leave_unserved(ServedVersion& version) {
  const std::span<const TensorSpec> specs = version.manifest->architecture->tensors();
  for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
    if (!is_served(specs[tensor].role)) version.tensors[tensor] = {};
  }
}

}  // namespace freshet::detail
