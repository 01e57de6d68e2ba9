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
    return fail(Code::corrupt, format("the grant lacks architecture {}", to_hex(digest)));
  }
  FRESHET_ASSIGN(auto architecture, decode_architecture(grant.architecture));
  if (architecture->digest() != digest) {
    return fail(Code::corrupt, "the grant's architecture is not that of its manifest");
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

Status check_sizes(const Slabs& slabs, const std::vector<std::uint64_t>& granted) {
  for (std::size_t slab = 0; slab < std::min(slabs.size(), granted.size()); ++slab) {
    if (slabs[slab] == nullptr || granted[slab] == slabs[slab]->bytes()) continue;
    return fail(Code::corrupt, format("slab {} has another size than in the grant", slab));
  }
  return {};
}

/// Where the version lies in the GPU's memory too.
Status take_device_places(const protocol::Grant& grant, const DeviceSlabs& on_device, ServedVersion& version) {
  if (grant.device_places.empty() || !on_device.device) return {};
  const std::span<const TensorSpec> specs = version.manifest->architecture->tensors();
  if (grant.device_places.size() != specs.size()) {
    return fail(Code::corrupt, format("the grant has {} places in device memory for {} tensors",
                                      grant.device_places.size(), specs.size()));
  }
  FRESHET_TRY(check_sizes(on_device.slabs, grant.device_slab_bytes));
  version.device_tensors.resize(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const SegmentPlace& place = grant.device_places[i];
    const bool is_unmapped = place.slab < on_device.slabs.size() && on_device.slabs[place.slab] == nullptr;
    if (place.bytes == 0 || is_unmapped) continue;
    auto bytes = bytes_at(place, specs[i], on_device.slabs);
    if (!bytes) return fail(std::move(bytes.error()).with_context("in device memory"));
    version.device_tensors[i] = *bytes;
  }
  if (std::ranges::all_of(version.device_tensors, [](const auto& bytes) { return bytes.empty(); })) {
    version.device_tensors.clear();
    return {};
  }
  version.device_slabs = on_device.slabs;
  version.device = on_device.device;
  return {};
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
                format("the grant of {1}@{2} has the manifest of {0}", to_string(manifest.name), model, grant.number));
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
                                                           const Slabs& slabs, ArchitectureCache& architectures,
                                                           const DeviceSlabs& on_device) {
  FRESHET_ASSIGN(auto manifest, manifest_of(model, grant, architectures));
  const auto& architecture = manifest->architecture;
  if (grant.places.size() != architecture->tensors().size()) {
    return fail(Code::corrupt,
                format("the grant has {} places for {} tensors", grant.places.size(), architecture->tensors().size()));
  }
  FRESHET_TRY(check_sizes(slabs, grant.slab_bytes));
  auto version = std::make_unique<ServedVersion>();
  version->tensors.reserve(grant.places.size());
  for (std::size_t i = 0; i < grant.places.size(); ++i) {
    FRESHET_ASSIGN(const Bytes bytes, bytes_at(grant.places[i], architecture->tensors()[i], slabs));
    version->tensors.push_back(bytes);
  }
  version->manifest = std::move(manifest);
  FRESHET_TRY(take_device_places(grant, on_device, *version));
  version->slabs = slabs;
  version->session = grant.session;
  return version;
}

void leave_unserved(ServedVersion& version) {
  const std::span<const TensorSpec> specs = version.manifest->architecture->tensors();
  for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
    if (is_served(specs[tensor].role)) continue;
    version.tensors[tensor] = {};
    if (!version.device_tensors.empty()) version.device_tensors[tensor] = {};
  }
}

}  // namespace freshet::detail
