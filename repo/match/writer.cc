// SPDX-License-Identifier: Apache-2.0
#include "repo/match/writer.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::detail {
namespace {

/// The upper bits of a hash choose the cell.
std::uint64_t mixed(std::uint64_t hash) {
  hash = (hash ^ (hash >> 31)) * 0x7FB5D329728EA185ULL;
  hash = (hash ^ (hash >> 27)) * 0x81DADEF4BC2DD44DULL;
  return hash ^ (hash >> 33);
}
std::uint64_t hash_of(const std::string_view& text) { return mixed(std::hash<std::string_view>()(text)); }
std::uint64_t hash_of(const std::vector<Digest>& digests) { return mixed(digests.front().low); }

}  // namespace

std::uint64_t hash_of(const VersionId& id) { return mixed(std::hash<VersionId>()(id)); }

bool comes_before(const Shelf& shelf, const Version& left, const Version& right) {
  if (left.has_quality() != right.has_quality()) return left.has_quality();
  if (left.has_quality() && left.quality != right.quality) return left.quality > right.quality;
  if (left.commit != right.commit) return left.commit > right.commit;
  if (left.model != right.model) return shelf.models[left.model].text() < shelf.models[right.model].text();
  if (left.number != right.number) return left.number < right.number;
  return left.kin < right.kin;
}

std::uint32_t IndexWriter::life_of(const VersionId& id) {
  const std::uint64_t hash = hash_of({.run = id.run, .incarnation = id.incarnation});
  const auto known = lives_.find(hash, [&](Cell life) {
    return shelf_.lives[life.number].run == id.run && shelf_.lives[life.number].incarnation == id.incarnation;
  });
  if (known) return known->cell.number;
  const std::uint32_t index = shelf_.lives.take();
  shelf_.lives[index] = {.run = id.run, .incarnation = id.incarnation};
  lives_.insert(hash, {.number = index});
  return index;
}

std::uint32_t IndexWriter::kin_of(const VersionId& id) {
  if (const auto known = find_kin(shelf_, id)) return *known;
  const std::uint32_t life = life_of(id);
  const std::uint32_t index = shelf_.kin.take();
  shelf_.kin[index].life = life;
  shelf_.kin[index].sequence = id.sequence;
  shelf_.kin_by_id.insert(hash_of(id), {.number = index});
  return index;
}

std::uint32_t IndexWriter::model_of(const std::string& name) {
  const std::uint64_t hash = hash_of(name);
  const auto known = models_.find(hash, [&](Cell model) { return shelf_.models[model.number].text() == name; });
  if (known) return known->cell.number;
  const std::uint32_t index = shelf_.models.take();
  auto characters = std::make_unique<char[]>(name.size());
  std::ranges::copy(name, characters.get());
  shelf_.models[index].characters = std::move(characters);
  shelf_.models[index].size = static_cast<std::uint32_t>(name.size());
  models_.insert(hash, {.number = index});
  return index;
}

void IndexWriter::leave_model(std::uint32_t model) {
  ModelName& name = shelf_.models[model];
  if (--name.versions != 0) return;
  models_.erase(models_.find(hash_of(name.text()), [&](Cell cell) { return cell.number == model; })->at);
  shelf_.models.give_back(model);
}

std::uint32_t IndexWriter::tag_set_of(std::vector<Digest> digests) {
  if (digests.empty()) return kNone;
  std::ranges::sort(digests);
  const std::uint64_t hash = hash_of(digests);
  const auto known = tag_sets_.find(hash, [&](Cell tags) { return shelf_.tag_sets[tags.number].digests == digests; });
  if (known) return known->cell.number;
  const std::uint32_t index = shelf_.tag_sets.take();
  shelf_.tag_sets[index].digests = std::move(digests);
  tag_sets_.insert(hash, {.number = index});
  return index;
}

void IndexWriter::leave_tag_set(std::uint32_t tags) {
  if (tags == kNone || --shelf_.tag_sets[tags].versions != 0) return;
  const std::uint64_t hash = hash_of(shelf_.tag_sets[tags].digests);
  tag_sets_.erase(tag_sets_.find(hash, [&](Cell cell) { return cell.number == tags; })->at);
  shelf_.tag_sets.give_back(tags);
}

/// Where the version stands in its group's list, or would stand.
std::vector<std::uint32_t>::iterator IndexWriter::place_of(const Version& version) {
  Group& group = shelf_.groups[version.group];
  const auto border = group.versions.begin() + group.graphs_alone;
  return std::lower_bound(version.has_weights ? border : group.versions.begin(),
                          version.has_weights ? group.versions.end() : border, version,
                          [&](std::uint32_t other, const Version& one) {
                            return comes_before(shelf_, one, shelf_.versions[other]);
                          });
}

void IndexWriter::link(std::uint32_t index) {
  const Version& version = shelf_.versions[index];
  Group& group = shelf_.groups[version.group];
  group.versions.insert(place_of(version), index);
  if (!version.has_weights) ++group.graphs_alone;
  GroupBound& bound = shelf_.bounds[version.group];
  bound.quality = std::max(bound.quality, bound_of(version.quality));
  bound.commit = std::max(bound.commit, version.commit);
}

void IndexWriter::unlink(std::uint32_t index) {
  const Version& version = shelf_.versions[index];
  Group& group = shelf_.groups[version.group];
  group.versions.erase(place_of(version));
  if (!version.has_weights) --group.graphs_alone;
  double& quality = shelf_.bounds[version.group].quality;
  quality = bound_of(kNoQuality);
  for (const bool weights : {false, true}) {
    const auto versions = group.versions_with(weights);
    if (!versions.empty()) quality = std::max(quality, bound_of(shelf_.versions[versions.back()].quality));
  }
}

Status IndexWriter::insert(const IndexEntry& entry) {
  const std::uint32_t kin = kin_of(entry.id);
  if (shelf_.kin[kin].version != kNone) return fail(Code::already_exists, to_string(entry.id) + " is in the index");
  add_line(entry.id, entry.ancestor);
  const std::uint32_t index = shelf_.versions.take();
  Version& version = shelf_.versions[index];
  version.quality = entry.quality.value_or(kNoQuality);
  version.commit = entry.commit;
  version.number = entry.name.number;
  version.model = model_of(entry.name.model);
  version.kin = kin;
  version.tags = tag_set_of(entry.tags);
  version.has_weights = entry.has_weights;
  version.group = group_of(*entry.graph);
  ++shelf_.models[version.model].versions;
  if (version.tags != kNone) ++shelf_.tag_sets[version.tags].versions;
  shelf_.kin[kin].version = index;
  link(index);
  return {};
}

bool IndexWriter::retire(const VersionId& id) {
  const auto kin = find_kin(shelf_, id);
  if (!kin || shelf_.kin[*kin].version == kNone) return false;
  const std::uint32_t index = std::exchange(shelf_.kin[*kin].version, kNone);
  unlink(index);
  const Version& version = shelf_.versions[index];
  leave_model(version.model);
  leave_tag_set(version.tags);
  if (shelf_.groups[version.group].versions.empty()) remove_group(version.group);
  shelf_.versions.give_back(index);
  return true;
}

bool IndexWriter::restate(const VersionId& id, const std::optional<double>& quality, const std::vector<Digest>& tags) {
  const auto kin = find_kin(shelf_, id);
  if (!kin || shelf_.kin[*kin].version == kNone) return false;
  const std::uint32_t index = shelf_.kin[*kin].version;
  Version& version = shelf_.versions[index];
  const std::uint32_t tags_before = version.tags;
  version.tags = tag_set_of(tags);
  if (version.tags != kNone) ++shelf_.tag_sets[version.tags].versions;
  leave_tag_set(tags_before);
  if (quality == version.quality || (!quality && !version.has_quality())) return true;
  unlink(index);
  version.quality = quality.value_or(kNoQuality);
  link(index);
  return true;
}

void IndexWriter::add_line(const VersionId& id, const std::optional<VersionId>& ancestor) {
  const std::uint32_t kin = kin_of(id);
  if (ancestor && shelf_.kin[kin].ancestor == kNone) shelf_.kin[kin].ancestor = kin_of(*ancestor);
}

StructureIndex::Memory IndexWriter::memory() const {
  StructureIndex::Memory memory{.models = shelf_.versions.in_use()};
  std::uint64_t lists_of_versions = 0;
  for (std::uint32_t number = 0; number < shelf_.groups.size(); ++number) {
    const Group& group = shelf_.groups[number];
    lists_of_versions += group.versions.capacity() * sizeof(std::uint32_t);
    if (group.graph == nullptr) continue;
    ++memory.architectures;
    memory.graph_bytes += group.graph->memory_bytes();
  }
  std::uint64_t names = 0;
  for (std::uint32_t number = 0; number < shelf_.models.size(); ++number) names += shelf_.models[number].size;
  for (std::uint32_t number = 0; number < shelf_.postings.size(); ++number) {
    memory.list_bytes += shelf_.postings[number].block_bytes();
  }
  memory.version_bytes = shelf_.versions.memory_bytes() + lists_of_versions + shelf_.models.memory_bytes() +
                         shelf_.tag_sets.memory_bytes() + models_.memory_bytes() + tag_sets_.memory_bytes() + names;
  memory.line_bytes = shelf_.kin.memory_bytes() + shelf_.lives.memory_bytes() + shelf_.kin_by_id.memory_bytes() +
                      lives_.memory_bytes();
  memory.group_bytes = shelf_.groups.memory_bytes() + shelf_.bounds.memory_bytes() + shelf_.mark_blocks.memory_bytes() +
                       groups_.memory_bytes();
  memory.slot_bytes = shelf_.slots.memory_bytes() + shelf_.postings.memory_bytes();
  memory.index_bytes =
      memory.version_bytes + memory.line_bytes + memory.group_bytes + memory.slot_bytes + memory.list_bytes;
  return memory;
}

}  // namespace freshet::detail
