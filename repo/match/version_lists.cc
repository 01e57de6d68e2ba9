// SPDX-License-Identifier: Apache-2.0
/// The versions of each group, best first.

#include "repo/match/writer.h"

namespace freshet::detail {
struct IndexWriter::Place {
  std::uint32_t group = kNone;
  std::uint32_t list = 0;  ///< 0: of versions with weights.
  std::uint32_t version = kNone;
};

std::uint32_t IndexWriter::next(const Place& place, unsigned level) const {
  const Group& group = shelf_.groups[place.group];
  const bool at_begin = place.version == kNone;
  if (level == 0) {
    const auto& next = at_begin ? group.best[place.list] : shelf_.versions[place.version].next;
    return next.load(std::memory_order_relaxed);
  }
  const std::uint32_t tower = at_begin ? group.towers[place.list] : shelf_.versions[place.version].tower;
  return tower == kNone ? kNone : shelf_.towers[tower].next[level - 1];
}

void IndexWriter::set_next(const Place& place, unsigned level, std::uint32_t next) {
  Group& group = shelf_.groups[place.group];
  const bool at_begin = place.version == kNone;
  if (level == 0) {
    auto& link = at_begin ? group.best[place.list] : shelf_.versions[place.version].next;
    link.store(next, std::memory_order_release);
    return;
  }
  std::uint32_t& tower = at_begin ? group.towers[place.list] : shelf_.versions[place.version].tower;
  if (tower == kNone) {
    tower = shelf_.towers.take();
    shelf_.towers[tower].clear();
  }
  shelf_.towers[tower].next[level - 1] = next;
}

/// On each level, the place after which `version` stands or would stand.
std::array<IndexWriter::Place, 1 + Tower::kLevels> IndexWriter::places_before(const Version& version) const {
  std::array<Place, 1 + Tower::kLevels> places;
  Place at{.group = version.group, .list = version.has_weights ? 0u : 1u};
  for (unsigned level = Tower::kLevels + 1; level-- > 0;) {
    for (;;) {
      const std::uint32_t behind = next(at, level);
      if (behind == kNone || !comes_before(shelf_, shelf_.versions[behind], version)) break;
      at.version = behind;
    }
    places[level] = at;
  }
  return places;
}

void IndexWriter::give_back_tower(std::uint32_t& tower) {
  if (tower != kNone) shelf_.towers.give_back(tower);
  tower = kNone;
}

bool comes_before(const Shelf& shelf, const Version& left, const Version& right) {
  if (left.has_quality() != right.has_quality()) return left.has_quality();
  if (left.has_quality() && left.quality != right.quality) return left.quality > right.quality;
  if (left.commit != right.commit) return left.commit > right.commit;
  if (left.model != right.model) return shelf.models[left.model].text() < shelf.models[right.model].text();
  if (left.number != right.number) return left.number < right.number;
  // Two lives of one version: a change of its quality ends one and begins another.
  return left.born > right.born;
}

std::uint32_t IndexWriter::new_version(const Version& like) {
  const std::uint32_t index = shelf_.versions.take();
  Version& version = shelf_.versions[index];
  version.next.store(kNone, std::memory_order_relaxed);
  version.tower = kNone;
  version.quality = like.quality;
  version.commit = like.commit;
  version.number = like.number;
  version.born = epoch_ + 1;
  version.died.store(kForever, std::memory_order_relaxed);
  version.model = like.model;
  version.kin = like.kin;
  version.group = like.group;
  version.tags = like.tags;
  version.has_weights = like.has_weights;
  ++shelf_.models[version.model].versions;
  if (version.tags != kNone) ++shelf_.tag_sets[version.tags].versions;
  shelf_.kin[version.kin].version = index;
  ++living_;
  return index;
}

void IndexWriter::link(std::uint32_t index) {
  Version& version = shelf_.versions[index];
  unsigned levels = 1;
  while (levels <= Tower::kLevels) {
    random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
    if (random_ >> 61 != 0) break;
    ++levels;
  }
  GroupBound& bound = shelf_.bounds[version.group];
  const double quality = bound_of(version.quality);
  if (quality > bound.quality.load(std::memory_order_relaxed)) {
    bound.quality.store(quality, std::memory_order_relaxed);
  }
  if (version.commit > bound.commit.load(std::memory_order_relaxed)) {
    bound.commit.store(version.commit, std::memory_order_relaxed);
  }
  const auto places = places_before(version);
  const Place mine{.group = version.group, .list = places[0].list, .version = index};
  for (unsigned level = 0; level < levels; ++level) set_next(mine, level, next(places[level], level));
  // Its own link stands before anybody can come to it.
  for (unsigned level = 0; level < levels; ++level) set_next(places[level], level, index);
  ++shelf_.groups[version.group].versions;
}

void IndexWriter::unlink(std::uint32_t index) {
  Version& version = shelf_.versions[index];
  const auto places = places_before(version);
  const Place mine{.group = version.group, .list = places[0].list, .version = index};
  for (unsigned level = Tower::kLevels + 1; level-- > 0;) {
    // Its own link stays: a reader that stands on it goes on.
    if (next(places[level], level) == index) set_next(places[level], level, next(mine, level));
  }
  give_back_tower(version.tower);
  Group& group = shelf_.groups[version.group];
  double quality = bound_of(kNoQuality);
  for (const auto& list : group.best) {
    const std::uint32_t best = list.load(std::memory_order_relaxed);
    if (best != kNone) quality = std::max(quality, bound_of(shelf_.versions[best].quality));
  }
  shelf_.bounds[version.group].quality.store(quality, std::memory_order_relaxed);
  if (--group.versions == 0) remove_group(version.group);
  later([this, index] {
    const Version& gone = shelf_.versions[index];
    leave_model(gone.model);
    if (gone.tags != kNone) leave_tag_set(gone.tags);
    shelf_.versions.give_back(index);
  });
}

void IndexWriter::end(std::uint32_t index) {
  shelf_.versions[index].died.store(epoch_ + 1, std::memory_order_release);
  --living_;
  // Readers of earlier epochs see it still.
  later([this, index] { unlink(index); });
}

}  // namespace freshet::detail
