#include "repo/match/structure_index.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "core/format.h"

namespace freshet {

Digest tag_digest(const std::string& key, const std::string& value) {
  DigestStream stream;
  const std::uint64_t key_bytes = key.size();
  stream.update(bytes_of(&key_bytes, sizeof key_bytes));
  stream.update(bytes_of(key.data(), key.size()));
  stream.update(bytes_of(value.data(), value.size()));
  return stream.finish();
}

// Counts: for each of the query's slots, the versions that have it.
class StructureIndex::Impl {
 public:
  mutable Mutex mutex;
  std::unordered_map<VersionId, IndexEntry> entries FRESHET_GUARDED_BY(mutex);
  std::map<VersionName, VersionId> names FRESHET_GUARDED_BY(mutex);
  std::unordered_map<VersionId, std::optional<VersionId>> ancestors FRESHET_GUARDED_BY(mutex);
  std::unordered_map<SlotId, std::set<const IndexEntry*>, SlotIdHash> holders FRESHET_GUARDED_BY(mutex);
  std::uint64_t as_of FRESHET_GUARDED_BY(mutex) = 0;

  bool admits(const IndexEntry& entry, const MatchQuery& query, const std::vector<Digest>& tags) const {
    if (!entry.has_weights && !query.any) return false;
    if (query.least_quality && !(entry.quality && *entry.quality >= *query.least_quality)) return false;
    return std::ranges::all_of(tags, [&](const Digest& tag) { return std::ranges::count(entry.tags, tag) != 0; });
  }
};

StructureIndex::StructureIndex() : impl_(std::make_unique<Impl>()) {}
StructureIndex::~StructureIndex() = default;

Status StructureIndex::insert(IndexEntry entry, std::uint64_t as_of) {
  const MutexLock lock(impl_->mutex);
  if (impl_->entries.contains(entry.id)) return fail(Code::already_exists, to_string(entry.id) + " is in the index");
  if (impl_->names.contains(entry.name)) return fail(Code::already_exists, to_string(entry.name) + " is in the index");
  if (entry.quality && std::isnan(*entry.quality)) entry.quality.reset();
  impl_->names.emplace(entry.name, entry.id);
  impl_->ancestors[entry.id] = entry.ancestor;
  const IndexEntry& kept = impl_->entries.emplace(entry.id, std::move(entry)).first->second;
  for (const MatchGraph::Vertex& vertex : kept.graph->vertices()) impl_->holders[vertex.slot].insert(&kept);
  impl_->as_of = std::max(impl_->as_of, as_of);
  return {};
}

bool StructureIndex::retire(const VersionId& id, std::uint64_t as_of) {
  const MutexLock lock(impl_->mutex);
  impl_->as_of = std::max(impl_->as_of, as_of);
  const auto found = impl_->entries.find(id);
  if (found == impl_->entries.end()) return false;
  for (const MatchGraph::Vertex& vertex : found->second.graph->vertices()) {
    const auto holders = impl_->holders.find(vertex.slot);
    holders->second.erase(&found->second);
    if (holders->second.empty()) impl_->holders.erase(holders);
  }
  impl_->names.erase(found->second.name);
  impl_->entries.erase(found);
  return true;
}

bool StructureIndex::set_quality(const VersionId& id, std::optional<double> quality, std::uint64_t as_of) {
  const MutexLock lock(impl_->mutex);
  impl_->as_of = std::max(impl_->as_of, as_of);
  const auto found = impl_->entries.find(id);
  if (found == impl_->entries.end()) return false;
  found->second.quality = quality && std::isnan(*quality) ? std::nullopt : quality;
  return true;
}

void StructureIndex::add_tombstone(const VersionId& id, const std::optional<VersionId>& ancestor) {
  const MutexLock lock(impl_->mutex);
  impl_->ancestors.try_emplace(id, ancestor);
}

void StructureIndex::set_as_of(std::uint64_t as_of) {
  const MutexLock lock(impl_->mutex);
  impl_->as_of = std::max(impl_->as_of, as_of);
}

void StructureIndex::clear() {
  const MutexLock lock(impl_->mutex);
  impl_->entries.clear();
  impl_->names.clear();
  impl_->ancestors.clear();
  impl_->holders.clear();
  impl_->as_of = 0;
}

std::uint64_t StructureIndex::as_of() const {
  const MutexLock lock(impl_->mutex);
  return impl_->as_of;
}

MatchAnswer StructureIndex::match(const MatchQuery& query, const std::optional<VersionId>& excluded) const {
  std::vector<Digest> tags;
  for (const auto& [key, value] : query.tags) tags.push_back(tag_digest(key, value));
  const MutexLock lock(impl_->mutex);
  std::unordered_set<VersionId> line;
  for (std::optional<VersionId> at = excluded; at && line.insert(*at).second;) {
    const auto known = impl_->ancestors.find(*at);
    if (known == impl_->ancestors.end()) break;
    at = known->second;
  }
  std::unordered_map<const IndexEntry*, LcpSize> sizes;
  for (const MatchGraph::Vertex& vertex : query.graph->vertices()) {
    const auto holders = impl_->holders.find(vertex.slot);
    if (holders == impl_->holders.end()) continue;
    for (const IndexEntry* entry : holders->second) sizes[entry] += weight_of(vertex);
  }
  MatchAnswer answer{.as_of = impl_->as_of};
  for (const auto& [entry, size] : sizes) {
    if (weight(query.objective, size) == 0 || line.contains(entry->id) || !impl_->admits(*entry, query, tags)) continue;
    answer.top.push_back(
        {.version = entry->name, .id = entry->id, .lcp = size, .quality = entry->quality, .commit = entry->commit});
  }
  std::ranges::sort(answer.top, [&](const auto& a, const auto& b) { return better(query.objective, a, b); });
  if (answer.top.size() > query.top) answer.top.resize(query.top);
  return answer;
}

StructureIndex::Memory StructureIndex::memory() const {
  const MutexLock lock(impl_->mutex);
  return {.models = impl_->entries.size(), .architectures = impl_->entries.size()};
}

}  // namespace freshet
