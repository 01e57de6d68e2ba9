// SPDX-License-Identifier: Apache-2.0
#include "core/model/manifest.h"

#include "core/base/check.h"
#include "core/model/sealed_buffer.h"
#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {
namespace {

std::shared_ptr<const Architecture> architecture() {
  static const std::shared_ptr<const Architecture> kArchitecture =
      *Architecture::guess_chain({{.name = "a.w", .shape = {4, 2}}, {.name = "a.b", .shape = {2}}, {.name = "c.w"}});
  return kArchitecture;
}

/// What was accepted must survive a round trip.
void decode_and_encode(Bytes bytes) {
  (void)architecture_digest_of(bytes);
  const Result<Manifest> manifest = decode_manifest(bytes, architecture());
  if (!manifest) return;
  const Result<Manifest> again = decode_manifest(encode(*manifest), architecture());
  FRESHET_CHECK(again.has_value());
  FRESHET_CHECK(again->owners == manifest->owners && again->digests == manifest->digests);
  FRESHET_CHECK(again->tags == manifest->tags && again->name == manifest->name);
}

}  // namespace

std::vector<Input> seeds() {
  const VersionId first{.run = {1, 2}, .incarnation = 1, .sequence = 1};
  const VersionId second{.run = {1, 2}, .incarnation = 1, .sequence = 2};
  Manifest manifest{.name = {"demo", 1},
                    .id = first,
                    .metrics = {{"loss", 0.5}},
                    .tags = {{"key", "value"}},
                    .architecture = architecture(),
                    .owners = OwnerMap::all_written_by(first, 3),
                    .digests = {{1, 2}, {3, 4}, {5, 6}}};
  std::vector<Input> seeds = {encode(manifest)};
  const std::uint32_t changed[] = {1};
  manifest.name.number = 2;
  manifest.id = second;
  manifest.ancestor = first;
  manifest.ancestor_name = {"demo", 1};
  manifest.owners = manifest.owners.with_written(second, changed);
  seeds.push_back(encode(manifest));
  for (Input& seed : seeds) seed.resize(seed.size() - kSealBytes);
  return seeds;
}

}  // namespace freshet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const freshet::Bytes bytes = freshet::fuzz::bytes_of_input(data, size);
  freshet::fuzz::decode_and_encode(bytes);
  freshet::fuzz::decode_and_encode(freshet::seal(bytes));
  return 0;
}
