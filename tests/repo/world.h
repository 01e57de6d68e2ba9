// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Versions for tests: a model of a few tensors, whose every version has bytes of its own choosing.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/model/manifest.h"
#include "repo/provider_repository.h"
#include "tests/support/seeded_bytes.h"

namespace freshet {

/// A version as the tests know it: its manifest, and all its bytes.
struct TestVersion {
  Manifest manifest;
  std::vector<std::vector<std::byte>> bytes;

  std::function<Result<Bytes>(std::uint32_t)> bytes_of() const {
    return [this](std::uint32_t tensor) -> Result<Bytes> { return Bytes(bytes[tensor]); };
  }
};

inline std::shared_ptr<const Architecture> test_architecture(const std::vector<std::uint64_t>& elements) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    tensors.push_back({.name = "layer" + std::to_string(i) + ".kernel", .dtype = DType::u8, .shape = {elements[i]}});
  }
  auto built = Architecture::guess_chain(std::move(tensors));
  FRESHET_CHECK(built.has_value());
  return *built;
}

inline VersionId test_id(std::uint64_t sequence, std::uint64_t run = 1, std::uint64_t incarnation = 1) {
  return {.run = {.high = run, .low = ~run}, .incarnation = incarnation, .sequence = sequence};
}

inline std::vector<std::byte> random_bytes(std::size_t count, std::mt19937_64& random) {
  return test::seeded_bytes(count, random());
}

/// A version in which `changed` tensors have new random bytes and the others those of `base`; all of them without a
/// base.
inline TestVersion make_version(const std::string& model, const VersionId& id,
                                std::shared_ptr<const Architecture> architecture, const TestVersion* base,
                                const std::vector<std::uint32_t>& changed, std::mt19937_64& random) {
  TestVersion version;
  Manifest& manifest = version.manifest;
  manifest.name = {.model = model};
  manifest.id = id;
  manifest.architecture = std::move(architecture);
  const auto tensors = manifest.architecture->tensors();
  if (base != nullptr) {
    manifest.ancestor = base->manifest.id;
    if (base->manifest.name.number != 0) manifest.ancestor_name = base->manifest.name;
    manifest.owners = base->manifest.owners.with_written(id, changed);
    manifest.digests = base->manifest.digests;
    version.bytes = base->bytes;
    for (const std::uint32_t tensor : changed) version.bytes[tensor] = random_bytes(tensors[tensor].bytes(), random);
  } else {
    manifest.owners = OwnerMap::all_written_by(id, tensors.size());
    manifest.digests.resize(tensors.size());
    for (const TensorSpec& tensor : tensors) version.bytes.push_back(random_bytes(tensor.bytes(), random));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) manifest.digests[i] = digest_of(version.bytes[i]);
  return version;
}

inline Result<VersionName> put(Repository& repository, const TestVersion& version,
                               Repository::PutOptions options = {}) {
  return repository.put(version.manifest, version.bytes_of(), options);
}

/// All of a stored version's bytes, each checked by the repository.
inline Result<std::vector<std::vector<std::byte>>> read_all(const Repository& repository, const VersionName& name) {
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Repository::TensorRead> reads;
  for (const TensorSpec& tensor : record.manifest.architecture->tensors()) bytes.emplace_back(tensor.bytes());
  for (std::uint32_t i = 0; i < bytes.size(); ++i) reads.push_back({.tensor = i, .out = bytes[i]});
  FRESHET_TRY(repository.read(record, reads));
  return bytes;
}

inline std::unique_ptr<ProviderRepository> open_or_die(std::unique_ptr<Backend> backend) {
  auto repository = ProviderRepository::open(std::move(backend), {});
  FRESHET_CHECK(repository.has_value());
  return std::move(*repository);
}

}  // namespace freshet
