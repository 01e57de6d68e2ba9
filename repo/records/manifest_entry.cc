// SPDX-License-Identifier: Apache-2.0
#include "repo/records/manifest_entry.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "repo/records/records_flat.h"

namespace freshet {
namespace {

constexpr std::size_t kEntryTensorsMax = std::size_t{1} << 18;
constexpr std::int64_t kNoShift = 0;

tl::unexpected<Error> damaged_manifest() { return fail(Code::corrupt, "its manifest is damaged"); }

/// Behind the FlatBuffer: its digest, low half first, little-endian.
constexpr std::size_t kEntrySealBytes = 16;

std::array<std::uint8_t, kEntrySealBytes> seal_of(std::string_view content) {
  const Digest digest = digest_of(bytes_of(content.data(), content.size()));
  std::array<std::uint8_t, kEntrySealBytes> seal{};
  for (std::size_t i = 0; i < kEntrySealBytes; ++i) {
    seal[i] = static_cast<std::uint8_t>((i < 8 ? digest.low : digest.high) >> (8 * (i % 8)));
  }
  return seal;
}

/// An entry whose seal is right and whose structure was verified.
class OpenedEntry {
 public:
  static Result<OpenedEntry> open(std::string_view sealed) {
    if (sealed.size() < kEntrySealBytes) return damaged_manifest();
    const std::string_view content = sealed.substr(0, sealed.size() - kEntrySealBytes);
    const auto seal = seal_of(content);
    if (std::memcmp(seal.data(), sealed.data() + content.size(), kEntrySealBytes) != 0) return damaged_manifest();
    OpenedEntry opened;
    opened.buffer_ = aligned_copy(content);
    opened.table_ = verified<stored::ManifestEntry>(opened.buffer_, content.size());
    if (opened.table_ == nullptr) return damaged_manifest();
    return opened;
  }

  const stored::ManifestEntry& operator*() const { return *table_; }
  const stored::ManifestEntry* operator->() const { return table_; }

 private:
  std::vector<std::uint64_t> buffer_;
  const stored::ManifestEntry* table_ = nullptr;  ///< Into the buffer, which keeps its place when this is moved.
};

/// What a version's owner map has that its base's has not.
struct Difference {
  std::vector<std::uint32_t> written;
  std::vector<std::uint32_t> adopted;
  std::vector<stored::Shift> shifts;
};

/// Finds where a base has a segment. The place where the last one was found is the best guess for the next.
class BaseIndex {
 public:
  explicit BaseIndex(const Manifest& base) : base_(base) {}

  bool has_at(std::int64_t place, const SegmentName& owner, const Digest& digest) const {
    if (place < 0 || place >= static_cast<std::int64_t>(base_.owners.size())) return false;
    const auto at = static_cast<std::size_t>(place);
    return base_.owners[at] == owner && base_.digests[at] == digest;
  }

  std::optional<std::uint32_t> find(const SegmentName& owner, const Digest& digest) {
    if (places_.empty()) {
      for (std::uint32_t i = 0; i < base_.owners.size(); ++i) places_.try_emplace(base_.owners[i], i);
    }
    const auto found = places_.find(owner);
    if (found == places_.end() || !has_at(found->second, owner, digest)) return std::nullopt;
    return found->second;
  }

 private:
  const Manifest& base_;
  std::unordered_map<SegmentName, std::uint32_t> places_;
};

Difference difference(const Manifest& manifest, const Manifest& base) {
  Difference difference;
  BaseIndex index(base);
  std::int64_t shift = kNoShift;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const SegmentName& owner = manifest.owners[tensor];
    if (owner.writer == manifest.id) {
      difference.written.push_back(tensor);
    } else if (index.has_at(tensor + shift, owner, manifest.digests[tensor])) {
      continue;
    } else if (const auto place = index.find(owner, manifest.digests[tensor])) {
      shift = static_cast<std::int64_t>(*place) - tensor;
      difference.shifts.emplace_back(tensor, static_cast<std::int32_t>(shift));
    } else {
      difference.adopted.push_back(tensor);
    }
  }
  return difference;
}

/// Without a base: every tensor is written by the version, or adopted.
Difference all_of(const Manifest& manifest) {
  Difference difference;
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const bool own = manifest.owners[tensor].writer == manifest.id;
    (own ? difference.written : difference.adopted).push_back(tensor);
  }
  return difference;
}

struct AdoptedOwners {
  std::vector<stored::Writer> writers;
  std::vector<stored::AdoptedFrom> from;
};

AdoptedOwners adopted_owners(const Manifest& manifest, const std::vector<std::uint32_t>& adopted) {
  AdoptedOwners owners;
  std::unordered_map<VersionId, std::uint32_t> index_of;
  for (const std::uint32_t tensor : adopted) {
    const SegmentName& owner = manifest.owners[tensor];
    const auto [entry, is_new] = index_of.emplace(owner.writer, static_cast<std::uint32_t>(owners.writers.size()));
    if (is_new) owners.writers.push_back(stored_id(owner.writer));
    owners.from.emplace_back(entry->second, owner.tensor);
  }
  return owners;
}

/// Of the written and the adopted tensors, ascending; empty when all are zero, as those of a graph without weights may
/// be.
std::vector<stored::Hash128> new_digests(const Manifest& manifest, const Difference& difference) {
  std::vector<std::uint32_t> tensors;
  std::merge(difference.written.begin(), difference.written.end(), difference.adopted.begin(), difference.adopted.end(),
             std::back_inserter(tensors));
  std::vector<stored::Hash128> digests;
  bool all_zero = true;
  for (const std::uint32_t tensor : tensors) {
    all_zero = all_zero && manifest.digests[tensor] == Digest{};
    digests.push_back(stored_digest(manifest.digests[tensor]));
  }
  if (all_zero) digests.clear();
  return digests;
}

using TagOffsets = std::vector<flatbuffers::Offset<stored::StoredTag>>;

TagOffsets encode_tags(flatbuffers::FlatBufferBuilder& builder, const Tags& tags, const Tags* base) {
  TagOffsets offsets;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    // Mostly the same tags come in the same order.
    if (base != nullptr && i < base->size() && (*base)[i] == tags[i]) {
      offsets.push_back(stored::CreateStoredTag(builder, 0, 0, true));
      continue;
    }
    const auto key = builder.CreateSharedString(tags[i].first);
    offsets.push_back(stored::CreateStoredTag(builder, key, builder.CreateSharedString(tags[i].second)));
  }
  return offsets;
}

}  // namespace

std::string encode_entry(const Manifest& manifest, const EntryBase* base) {
  const Difference parts = base != nullptr ? difference(manifest, base->manifest) : all_of(manifest);
  const AdoptedOwners adopted = adopted_owners(manifest, parts.adopted);
  const bool all_written = parts.written.size() == manifest.owners.size();

  flatbuffers::FlatBufferBuilder builder(512 + whole_entry_bytes(manifest) / 4);
  std::vector<flatbuffers::Offset<stored::StoredMetric>> metrics;
  for (const auto& [name, value] : manifest.metrics) {
    metrics.push_back(stored::CreateStoredMetric(builder, builder.CreateString(name), value));
  }
  const TagOffsets tags = encode_tags(builder, manifest.tags, base != nullptr ? &base->manifest.tags : nullptr);
  // What is empty is left out: it takes no bytes.
  const auto metric_vector = metrics.empty() ? 0 : builder.CreateVector(metrics);
  const auto tag_vector = tags.empty() ? 0 : builder.CreateVector(tags);
  const auto written = all_written || parts.written.empty() ? 0 : builder.CreateVector(parts.written);
  const auto adopted_vector = base == nullptr || parts.adopted.empty() ? 0 : builder.CreateVector(parts.adopted);
  const auto from = adopted.from.empty() ? 0 : builder.CreateVectorOfStructs(adopted.from);
  const auto writers = adopted.writers.empty() ? 0 : builder.CreateVectorOfStructs(adopted.writers);
  const auto shifts = parts.shifts.empty() ? 0 : builder.CreateVectorOfStructs(parts.shifts);
  const std::vector<stored::Hash128> digests = new_digests(manifest, parts);
  const auto digest_vector = digests.empty() ? 0 : builder.CreateVectorOfStructs(digests);
  const auto model = builder.CreateString(manifest.name.model);
  const auto ancestor_model =
      manifest.ancestor_name.model.empty() ? 0 : builder.CreateString(manifest.ancestor_name.model);
  const stored::Writer id = stored_id(manifest.id);
  const stored::Writer ancestor = stored_id(manifest.ancestor.value_or(VersionId{}));
  const stored::Hash128 architecture = stored_digest(manifest.architecture->digest());

  stored::ManifestEntryBuilder entry(builder);
  if (base != nullptr) entry.add_base(base->entry);
  entry.add_tensors(static_cast<std::uint32_t>(manifest.owners.size()));
  entry.add_all_written(all_written);
  entry.add_written(written);
  entry.add_adopted(adopted_vector);
  entry.add_adopted_from(from);
  entry.add_writers(writers);
  entry.add_shifts(shifts);
  entry.add_digests(digest_vector);
  entry.add_model(model);
  entry.add_number(manifest.name.number);
  entry.add_id(&id);
  if (manifest.ancestor) entry.add_ancestor(&ancestor);
  entry.add_ancestor_model(ancestor_model);
  entry.add_ancestor_number(manifest.ancestor_name.number);
  entry.add_step(manifest.step);
  entry.add_created_unix_ns(manifest.created_unix_ns);
  entry.add_metrics(metric_vector);
  entry.add_tags(tag_vector);
  entry.add_architecture(&architecture);
  std::string encoded = finish(builder, entry.Finish());
  const auto seal = seal_of(encoded);
  encoded.append(reinterpret_cast<const char*>(seal.data()), seal.size());
  return encoded;
}

std::uint64_t whole_entry_bytes(const Manifest& manifest) {
  constexpr std::uint64_t kHeadBytes = 256;
  constexpr std::uint64_t kPerTensor = sizeof(stored::Hash128) + sizeof(stored::AdoptedFrom);
  std::uint64_t bytes = kHeadBytes + kPerTensor * manifest.owners.size();
  bytes += sizeof(stored::Writer) * manifest.owners.writers().size();
  for (const auto& [key, value] : manifest.tags) bytes += key.size() + value.size();
  for (const auto& [name, value] : manifest.metrics) bytes += name.size() + sizeof(value);
  return bytes;
}

Result<std::optional<std::uint32_t>> base_of_entry(std::string_view entry) {
  FRESHET_ASSIGN(const OpenedEntry table, OpenedEntry::open(entry));
  std::optional<std::uint32_t> base;
  if (const auto number = table->base(); number.has_value()) base = number.value();
  return base;
}

namespace {

/// Reads an entry's owner map. Every number in it may be wrong.
class OwnerReader {
 public:
  OwnerReader(const stored::ManifestEntry& entry, const VersionId& id, const Manifest* base)
      : entry_(entry), id_(id), base_(base) {}

  Status read(Manifest& manifest) {
    const std::size_t tensors = entry_.tensors();
    if (tensors > kEntryTensorsMax) return damaged_manifest();
    std::vector<SegmentName> owners(tensors);
    manifest.digests.resize(tensors);
    for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
      const bool good = read_one(tensor, owners[tensor], manifest.digests[tensor]);
      if (!good) return damaged_manifest();
    }
    const bool all_used = written_ == size_of(entry_.written()) && adopted_ == size_of(entry_.adopted()) &&
                          from_ == size_of(entry_.adopted_from()) && digests_ == size_of(entry_.digests());
    if (!all_used) return damaged_manifest();
    manifest.owners = OwnerMap(std::move(owners));
    return {};
  }

 private:
  template <typename Vector>
  static std::uint32_t size_of(const Vector* vector) {
    return vector != nullptr ? vector->size() : 0;
  }

  /// True, and one further, when the next of an ascending list is this tensor.
  static bool take(const flatbuffers::Vector<std::uint32_t>* list, std::uint32_t& at, std::uint32_t tensor) {
    if (at >= size_of(list) || list->Get(at) != tensor) return false;
    ++at;
    return true;
  }

  bool read_one(std::uint32_t tensor, SegmentName& owner, Digest& digest) {
    while (shifts_ < size_of(entry_.shifts()) && entry_.shifts()->Get(shifts_)->from() <= tensor) {
      shift_ = entry_.shifts()->Get(shifts_++)->by();
    }
    if (entry_.all_written() || take(entry_.written(), written_, tensor)) {
      owner = {.writer = id_, .tensor = tensor};
      return read_digest(digest);
    }
    if (base_ == nullptr || take(entry_.adopted(), adopted_, tensor)) return read_adopted(owner) && read_digest(digest);
    const std::int64_t place = static_cast<std::int64_t>(tensor) + shift_;
    if (place < 0 || place >= static_cast<std::int64_t>(base_->owners.size())) return false;
    owner = base_->owners[static_cast<std::size_t>(place)];
    digest = base_->digests[static_cast<std::size_t>(place)];
    return true;
  }

  bool read_adopted(SegmentName& owner) {
    if (from_ >= size_of(entry_.adopted_from())) return false;
    const stored::AdoptedFrom& from = *entry_.adopted_from()->Get(from_++);
    if (from.writer() >= size_of(entry_.writers())) return false;
    owner = {.writer = id_from(*entry_.writers()->Get(from.writer())), .tensor = from.tensor()};
    return true;
  }

  bool read_digest(Digest& digest) {
    if (entry_.digests() == nullptr) return true;  // All are zero.
    if (digests_ >= entry_.digests()->size()) return false;
    digest = digest_from(*entry_.digests()->Get(digests_++));
    return true;
  }

  const stored::ManifestEntry& entry_;
  const VersionId& id_;
  const Manifest* const base_;
  std::uint32_t written_ = 0;
  std::uint32_t adopted_ = 0;
  std::uint32_t from_ = 0;
  std::uint32_t digests_ = 0;
  std::uint32_t shifts_ = 0;
  std::int64_t shift_ = kNoShift;
};

/// FlatBuffers verifies that a vector lies inside the buffer, not that its elements are aligned.
bool is_aligned(const stored::ManifestEntry& entry) {
  const auto aligned = [](const auto* vector) {
    return vector == nullptr || vector->size() == 0 || reinterpret_cast<std::uintptr_t>(vector->Data()) % 8 == 0;
  };
  return aligned(entry.writers()) && aligned(entry.digests());
}

/// Text that many references share would be copied many times.
Status read_annotations(const stored::ManifestEntry& entry, const Manifest* base, std::size_t budget,
                        Manifest& manifest) {
  const auto spend = [&budget](std::size_t bytes) {
    if (bytes > budget) return false;
    budget -= bytes;
    return true;
  };
  if (entry.metrics() != nullptr) {
    if (entry.metrics()->size() > kMetricsMax) return damaged_manifest();
    for (const stored::StoredMetric* metric : *entry.metrics()) {
      const auto value = metric->value();
      if (!value.has_value() || !spend(metric->name()->size())) return damaged_manifest();
      manifest.metrics.emplace_back(metric->name()->str(), value.value());
    }
  }
  if (entry.tags() == nullptr) return {};
  if (entry.tags()->size() > kTagsMax) return damaged_manifest();
  for (const stored::StoredTag* tag : *entry.tags()) {
    const std::size_t i = manifest.tags.size();
    if (tag->same()) {
      if (base == nullptr || i >= base->tags.size()) return damaged_manifest();
      manifest.tags.push_back(base->tags[i]);
    } else {
      if (tag->key() == nullptr || tag->value() == nullptr) return damaged_manifest();
      if (!spend(tag->key()->size() + tag->value()->size())) return damaged_manifest();
      manifest.tags.emplace_back(tag->key()->str(), tag->value()->str());
    }
  }
  return {};
}

}  // namespace

Result<UnprovedManifest> decode_entry(std::string_view bytes, const Manifest* base) {
  FRESHET_ASSIGN(const OpenedEntry entry, OpenedEntry::open(bytes));
  if (!is_aligned(*entry) || entry->base().has_value() != (base != nullptr)) return damaged_manifest();
  UnprovedManifest decoded;
  Manifest& manifest = decoded.manifest;
  manifest.name = {.model = entry->model()->str(), .number = entry->number()};
  manifest.id = id_from(*entry->id());
  manifest.step = entry->step();
  manifest.created_unix_ns = entry->created_unix_ns();
  if (entry->ancestor() != nullptr) manifest.ancestor = id_from(*entry->ancestor());
  if (entry->ancestor_model() != nullptr) manifest.ancestor_name.model = entry->ancestor_model()->str();
  manifest.ancestor_name.number = entry->ancestor_number();
  decoded.architecture = digest_from(*entry->architecture());
  // Shared text is written once, so what a good entry says can be twice as long as itself, not more.
  FRESHET_TRY(read_annotations(*entry, base, kManifestBytesMax, manifest));
  FRESHET_TRY(OwnerReader(*entry, manifest.id, base).read(manifest));
  return decoded;
}

}  // namespace freshet
