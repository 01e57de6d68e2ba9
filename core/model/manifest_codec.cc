// SPDX-License-Identifier: Apache-2.0
#include <flatbuffers/flatbuffers.h>

#include <unordered_map>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/model/manifest.h"
#include "core/model/manifest_generated.h"
#include "core/model/proved_forms.h"
#include "core/model/sealed_buffer.h"

namespace freshet {
namespace {

constexpr char kManifestIdentifier[] = "FRMF";
constexpr std::string_view kManifestWhat = "an encoded manifest";
constexpr std::uint32_t kManifestTablesMax = 16384;  ///< Metrics and tags.

tl::unexpected<Error> corrupt_manifest(std::string reason) {
  return fail(Code::corrupt, format("{}: {}", kManifestWhat, reason));
}

fbs::VersionId to_struct(const VersionId& id) {
  return fbs::VersionId(id.run.high, id.run.low, id.incarnation, id.sequence);
}
VersionId from_struct(const fbs::VersionId& id) {
  return {
      .run = {.high = id.run_high(), .low = id.run_low()}, .incarnation = id.incarnation(), .sequence = id.sequence()};
}
fbs::Digest to_struct(const Digest& digest) { return fbs::Digest(digest.low, digest.high); }
Digest from_struct(const fbs::Digest& digest) { return {.low = digest.low(), .high = digest.high()}; }

struct OwnerTable {
  std::vector<fbs::VersionId> writers;
  std::vector<fbs::Owner> owners;
};

OwnerTable tabulate(const OwnerMap& map) {
  OwnerTable table;
  table.owners.reserve(map.size());
  std::unordered_map<VersionId, std::uint32_t> index_of;
  const VersionId* last_writer = nullptr;  // Runs of one writer are the rule: no look-up for those.
  std::uint32_t last_index = 0;
  for (const SegmentName& owner : map.owners()) {
    if (last_writer == nullptr || *last_writer != owner.writer) {
      const auto [entry, is_new] = index_of.emplace(owner.writer, static_cast<std::uint32_t>(table.writers.size()));
      if (is_new) table.writers.push_back(to_struct(owner.writer));
      last_writer = &entry->first;
      last_index = entry->second;
    }
    table.owners.emplace_back(last_index, owner.tensor);
  }
  return table;
}

Result<OwnerMap> owners_of(const fbs::Manifest& table, std::size_t tensors) {
  const std::size_t writer_count = table.writers() ? table.writers()->size() : 0;
  const std::size_t owner_count = table.owners() ? table.owners()->size() : 0;
  if (owner_count != tensors) return corrupt_manifest(format("{} owners for {} tensors", owner_count, tensors));
  if (!has_aligned_elements(table.writers())) return corrupt_manifest("its writers are not aligned");
  if (writer_count > tensors) return corrupt_manifest(format("{} writers for {} tensors", writer_count, tensors));
  std::vector<VersionId> writers;
  writers.reserve(writer_count);
  std::unordered_map<VersionId, std::size_t> seen;
  for (std::size_t i = 0; i < writer_count; ++i) {
    writers.push_back(from_struct(*table.writers()->Get(static_cast<std::uint32_t>(i))));
    if (!seen.emplace(writers.back(), i).second)
      return corrupt_manifest(format("writer {} stands twice", to_string(writers.back())));
  }
  std::vector<SegmentName> owners(owner_count);
  for (std::size_t i = 0; i < owner_count; ++i) {
    const fbs::Owner& owner = *table.owners()->Get(static_cast<std::uint32_t>(i));
    if (owner.writer() >= writer_count) {
      return corrupt_manifest(format("tensor {}: writer {} of {}", i, owner.writer(), writer_count));
    }
    owners[i] = {.writer = writers[owner.writer()], .tensor = owner.tensor()};
  }
  return OwnerMap(std::move(owners));
}

Status read_metrics_and_tags(const fbs::Manifest& table, DecodeBudget& budget, Manifest& manifest) {
  if (table.metrics() != nullptr) {
    for (const fbs::Metric* metric : *table.metrics()) {
      if (!budget.spend(metric->name()->size())) return corrupt_manifest("its fields share bytes");
      if (!metric->value()) return corrupt_manifest("a metric has no value");
      manifest.metrics.emplace_back(metric->name()->str(), *metric->value());
    }
  }
  if (table.tags() != nullptr) {
    for (const fbs::Tag* tag : *table.tags()) {
      if (!budget.spend(tag->key()->size() + tag->value()->size())) return corrupt_manifest("its fields share bytes");
      manifest.tags.emplace_back(tag->key()->str(), tag->value()->str());
    }
  }
  return {};
}

Result<const fbs::Manifest*> root_of(const OpenedBuffer& opened) {
  return opened.root<fbs::Manifest>(kManifestWhat, kManifestIdentifier, kManifestTablesMax);
}

}  // namespace

std::vector<std::byte> encode(const Manifest& manifest) {
  FRESHET_CHECK(check(manifest).has_value());
  return encode_unchecked(manifest, manifest.architecture->digest());
}

std::vector<std::byte> encode_unchecked(const Manifest& manifest, const Digest& architecture_digest) {
  flatbuffers::FlatBufferBuilder builder(1024 + 48 * manifest.owners.size());
  const auto model = builder.CreateString(manifest.name.model);
  const auto ancestor_model = builder.CreateString(manifest.ancestor_name.model);
  std::vector<flatbuffers::Offset<fbs::Metric>> metrics;
  for (const auto& [name, value] : manifest.metrics) {
    metrics.push_back(fbs::CreateMetric(builder, builder.CreateString(name), value));
  }
  std::vector<flatbuffers::Offset<fbs::Tag>> tags;
  for (const auto& [key, value] : manifest.tags) {
    const auto key_offset = builder.CreateString(key);
    tags.push_back(fbs::CreateTag(builder, key_offset, builder.CreateString(value)));
  }
  const OwnerTable table = tabulate(manifest.owners);
  std::vector<fbs::Digest> digests;
  digests.reserve(manifest.digests.size());
  for (const Digest& digest : manifest.digests) digests.push_back(to_struct(digest));
  const auto metric_vector = builder.CreateVector(metrics);
  const auto tag_vector = builder.CreateVector(tags);
  const auto writer_vector = builder.CreateVectorOfStructs(table.writers);
  const auto owner_vector = builder.CreateVectorOfStructs(table.owners);
  const auto digest_vector = builder.CreateVectorOfStructs(digests);
  const fbs::VersionId id = to_struct(manifest.id);
  const fbs::VersionId ancestor = to_struct(manifest.ancestor.value_or(VersionId{}));
  const fbs::Digest architecture = to_struct(architecture_digest);
  builder.Finish(fbs::CreateManifest(
                     builder, kFormatVersion, model, manifest.name.number, &id, manifest.ancestor ? &ancestor : nullptr,
                     ancestor_model, manifest.ancestor_name.number, manifest.step, manifest.created_unix_ns,
                     metric_vector, tag_vector, &architecture, writer_vector, owner_vector, digest_vector),
                 kManifestIdentifier);
  return seal(builder);
}

Result<Digest> architecture_digest_of(Bytes encoded_manifest) {
  FRESHET_ASSIGN(const OpenedBuffer opened, OpenedBuffer::open(kManifestWhat, encoded_manifest, kManifestBytesMax));
  FRESHET_ASSIGN(const fbs::Manifest* table, root_of(opened));
  return from_struct(*table->architecture());
}

Result<Manifest> decode_manifest(Bytes bytes, std::shared_ptr<const Architecture> architecture) {
  FRESHET_CHECK(architecture != nullptr);
  FRESHET_ASSIGN(const OpenedBuffer opened, OpenedBuffer::open(kManifestWhat, bytes, kManifestBytesMax));
  FRESHET_ASSIGN(const fbs::Manifest* table, root_of(opened));
  if (const Digest named = from_struct(*table->architecture()); named != architecture->digest()) {
    return corrupt_manifest(format("it names architecture {}, not {}", to_hex(named), to_hex(architecture->digest())));
  }
  const std::size_t tensors = architecture->tensors().size();
  const std::size_t digests = table->digests() ? table->digests()->size() : 0;
  if (digests != tensors) return corrupt_manifest(format("{} digests for {} tensors", digests, tensors));
  if (!has_aligned_elements(table->digests())) return corrupt_manifest("its digests are not aligned");
  DecodeBudget budget(opened.content().size());
  Manifest manifest{.name = {table->model()->str(), table->number()},
                    .id = from_struct(*table->id()),
                    .step = table->step(),
                    .created_unix_ns = table->created_unix_ns(),
                    .architecture = std::move(architecture)};
  if (table->ancestor() != nullptr) manifest.ancestor = from_struct(*table->ancestor());
  if (table->ancestor_model() != nullptr) manifest.ancestor_name.model = table->ancestor_model()->str();
  manifest.ancestor_name.number = table->ancestor_number();
  FRESHET_TRY(read_metrics_and_tags(*table, budget, manifest));
  FRESHET_ASSIGN(manifest.owners, owners_of(*table, tensors));
  manifest.digests.reserve(digests);
  for (std::size_t i = 0; i < digests; ++i) {
    manifest.digests.push_back(from_struct(*table->digests()->Get(static_cast<std::uint32_t>(i))));
  }
  if (Status status = check(manifest); !status) return fail(as_corrupt(std::move(status).error(), kManifestWhat));
  return manifest;
}

}  // namespace freshet
