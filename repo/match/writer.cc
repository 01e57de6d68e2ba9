// SPDX-License-Identifier: Apache-2.0
#include "repo/match/writer.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::detail {
namespace {

constexpr std::size_t kFirstCells = 64;

}  // namespace

std::uint64_t hash_of(const VersionId& id) {
  // Its upper bits choose the cell.
  std::uint64_t hash = std::hash<VersionId>()(id);
  hash = (hash ^ (hash >> 31)) * 0x7FB5D329728EA185ULL;
  hash = (hash ^ (hash >> 27)) * 0x81DADEF4BC2DD44DULL;
  return hash ^ (hash >> 33);
}

IndexWriter::IndexWriter(Shelf& shelf, Epochs& epochs)
    : shelf_(shelf),
      epochs_(epochs),
      slots_(std::make_unique<CellTable>(kFirstCells)),
      kin_(std::make_unique<CellTable>(kFirstCells)),
      groups_(GroupHash{shelf}),
      models_(ModelHash{shelf}),
      lives_(LifeHash{shelf}),
      tag_sets_(TagsHash{shelf}) {
  publish(0);
}

IndexWriter::~IndexWriter() {
  // Actions leave others; there are no readers any more.
  while (!deferred_.empty()) deferred_.run(Epochs::kNobody);
  delete view_.load();
}

void IndexWriter::insert_cell(std::unique_ptr<CellTable>& table, std::uint64_t hash, Cell cell) {
  if (table->full()) {
    std::unique_ptr<CellTable> larger = table->copy_with_room();
    later([before = table.release()] { delete before; });
    table = std::move(larger);
  }
  table->insert(hash, cell);
}

std::uint32_t IndexWriter::life_of(const VersionId& id) {
  const VersionId first{.run = id.run, .incarnation = id.incarnation};
  const auto known = lives_.find(hash_of(first), [&](std::uint32_t life) {
    return shelf_.lives[life].run == id.run && shelf_.lives[life].incarnation == id.incarnation;
  });
  if (known) return *known;
  const std::uint32_t index = shelf_.lives.take();
  shelf_.lives[index] = {.run = id.run, .incarnation = id.incarnation};
  lives_.insert(index);
  return index;
}

std::uint32_t IndexWriter::kin_of(const VersionId& id) {
  if (const auto known = find_kin(shelf_, *kin_, id)) return *known;
  const std::uint32_t life = life_of(id);
  const std::uint32_t index = shelf_.kin.take();
  shelf_.kin[index].life = life;
  shelf_.kin[index].sequence = id.sequence;
  insert_cell(kin_, hash_of(id), {.number = index});
  return index;
}

std::uint32_t IndexWriter::model_of(const std::string& name) {
  const auto known = models_.find(std::hash<std::string_view>()(name),
                                  [&](std::uint32_t model) { return shelf_.models[model].text() == name; });
  if (known) return *known;
  const std::uint32_t index = shelf_.models.take();
  auto characters = std::make_unique<char[]>(name.size());
  std::ranges::copy(name, characters.get());
  shelf_.models[index].characters = std::move(characters);
  shelf_.models[index].size = static_cast<std::uint32_t>(name.size());
  shelf_.models[index].versions = 0;
  name_bytes_ += name.size();
  models_.insert(index);
  return index;
}

void IndexWriter::leave_model(std::uint32_t model) {
  ModelName& name = shelf_.models[model];
  if (--name.versions != 0) return;
  models_.erase(model);
  name_bytes_ -= name.size;
  name.characters.reset();
  shelf_.models.give_back(model);
}

std::uint32_t IndexWriter::tag_set_of(std::vector<Digest> digests) {
  if (digests.empty()) return kNone;
  std::ranges::sort(digests);
  const auto known =
      tag_sets_.find(digests.front().low, [&](std::uint32_t tags) { return shelf_.tag_sets[tags].digests == digests; });
  if (known) return *known;
  const std::uint32_t index = shelf_.tag_sets.take();
  shelf_.tag_sets[index].digests = std::move(digests);
  shelf_.tag_sets[index].versions = 0;
  tag_sets_.insert(index);
  return index;
}

void IndexWriter::leave_tag_set(std::uint32_t tags) {
  if (--shelf_.tag_sets[tags].versions != 0) return;
  tag_sets_.erase(tags);
  shelf_.tag_sets.give_back(tags);
}

Status IndexWriter::insert(const IndexEntry& entry) {
  const std::uint32_t kin = kin_of(entry.id);
  if (shelf_.kin[kin].version != kNone) return fail(Code::already_exists, to_string(entry.id) + " is in the index");
  add_line(entry.id, entry.ancestor);
  Version like;
  like.quality = entry.quality.value_or(kNoQuality);
  like.commit = entry.commit;
  like.number = entry.name.number;
  like.model = model_of(entry.name.model);
  like.kin = kin;
  like.tags = tag_set_of(entry.tags);
  like.has_weights = entry.has_weights;
  like.group = group_of(*entry.graph);
  link(new_version(like));
  return {};
}

bool IndexWriter::retire(const VersionId& id) {
  const auto kin = find_kin(shelf_, *kin_, id);
  if (!kin || shelf_.kin[*kin].version == kNone) return false;
  end(shelf_.kin[*kin].version);
  shelf_.kin[*kin].version = kNone;
  return true;
}

bool IndexWriter::restate(const VersionId& id, const std::optional<double>& quality, const std::vector<Digest>* tags) {
  const auto kin = find_kin(shelf_, *kin_, id);
  if (!kin || shelf_.kin[*kin].version == kNone) return false;
  const std::uint32_t before = shelf_.kin[*kin].version;
  const Version& old = shelf_.versions[before];
  Version like;
  like.quality = quality.value_or(kNoQuality);
  like.commit = old.commit;
  like.number = old.number;
  like.model = old.model;
  like.kin = old.kin;
  like.tags = tags == nullptr ? old.tags : tag_set_of(*tags);
  like.has_weights = old.has_weights;
  like.group = old.group;
  const bool same_quality = like.has_quality() ? like.quality == old.quality : !old.has_quality();
  if (same_quality && like.tags == old.tags) return true;
  link(new_version(like));
  end(before);
  return true;
}

void IndexWriter::add_line(const VersionId& id, const std::optional<VersionId>& ancestor) {
  Kin& kin = shelf_.kin[kin_of(id)];
  if (!ancestor || kin.ancestor.load(std::memory_order_relaxed) != kNone) return;
  kin.ancestor.store(kin_of(*ancestor), std::memory_order_release);
}

void IndexWriter::publish(std::uint64_t as_of) {
  const View* before = view_.load(std::memory_order_relaxed);
  const std::uint64_t newest = before == nullptr ? as_of : std::max(as_of, before->as_of);
  const auto* view = new View{.epoch = epoch_ + 1,
                              .as_of = newest,
                              .slots = slots_.get(),
                              .kin = kin_.get(),
                              .groups = groups_end_,
                              .lines = shelf_.kin.in_use()};
  if (before != nullptr) later([before] { delete before; });
  view_.store(view);
  epochs_.advance(++epoch_);
  // Not what these leave for the next epoch: a reader that came meanwhile may have seen it.
  deferred_.run(std::min(epochs_.oldest(), epoch_));
}

StructureIndex::Memory IndexWriter::memory() const {
  StructureIndex::Memory memory{.models = living_, .graph_bytes = graph_bytes_};
  memory.architectures = shelf_.groups.in_use();
  memory.version_bytes = shelf_.versions.memory_bytes() + shelf_.towers.memory_bytes() + shelf_.models.memory_bytes() +
                         shelf_.tag_sets.memory_bytes() + models_.memory_bytes() + tag_sets_.memory_bytes() +
                         name_bytes_;
  memory.line_bytes =
      shelf_.kin.memory_bytes() + shelf_.lives.memory_bytes() + kin_->memory_bytes() + lives_.memory_bytes();
  memory.group_bytes = shelf_.groups.memory_bytes() + shelf_.bounds.memory_bytes() + shelf_.mark_blocks.memory_bytes() +
                       groups_.memory_bytes();
  memory.slot_bytes = slots_->memory_bytes() + shelf_.postings.memory_bytes();
  memory.list_bytes = block_bytes_;
  memory.index_bytes =
      memory.version_bytes + memory.line_bytes + memory.group_bytes + memory.slot_bytes + memory.list_bytes;
  return memory;
}

}  // namespace freshet::detail
