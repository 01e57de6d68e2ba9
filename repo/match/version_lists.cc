/// The versions of each group, best first.

#include "repo/match/writer.h"

namespace freshet::detail {
namespace {

Links& list_of(Shelf& shelf, const Version& version) {
  return shelf.groups[version.group].lists[version.has_weights ? 0 : 1];
}

/// On each level, the links after which `version` stands or would stand.
std::array<Links*, Links::kLevels> places_before(Shelf& shelf, const Version& version) {
  std::array<Links*, Links::kLevels> places{};
  Links* at = &list_of(shelf, version);
  for (unsigned level = Links::kLevels; level-- > 0;) {
    for (;;) {
      const std::uint32_t next = at->next[level].load(std::memory_order_relaxed);
      if (next == kNone || !comes_before(shelf, shelf.versions[next], version)) break;
      at = &shelf.versions[next].links;
    }
    places[level] = at;
  }
  return places;
}

}  // namespace

bool comes_before(const Shelf& shelf, const Version& left, const Version& right) {
  if (left.has_quality != right.has_quality) return left.has_quality;
  if (left.quality != right.quality) return left.quality > right.quality;
  if (left.commit != right.commit) return left.commit > right.commit;
  if (left.model != right.model) return shelf.models[left.model].text < shelf.models[right.model].text;
  if (left.number != right.number) return left.number < right.number;
  // Two lives of one version: a change of its quality ends one and begins another.
  return left.born > right.born;
}

std::uint32_t IndexWriter::new_version(const Version& like) {
  const std::uint32_t index = shelf_.versions.take();
  Version& version = shelf_.versions[index];
  version.links.clear();
  version.quality = like.quality;
  version.commit = like.commit;
  version.number = like.number;
  version.born = epoch_ + 1;
  version.died.store(kForever, std::memory_order_relaxed);
  version.model = like.model;
  version.kin = like.kin;
  version.group = like.group;
  version.tags = like.tags;
  version.has_quality = like.has_quality;
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
  while (levels < Links::kLevels) {
    random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
    if (random_ >> 61 != 0) break;
    ++levels;
  }
  GroupBound& bound = shelf_.bounds[version.group];
  const double quality = bound_of(version.has_quality, version.quality);
  if (quality > bound.quality.load(std::memory_order_relaxed)) {
    bound.quality.store(quality, std::memory_order_relaxed);
  }
  if (version.commit > bound.commit.load(std::memory_order_relaxed)) {
    bound.commit.store(version.commit, std::memory_order_relaxed);
  }
  const auto places = places_before(shelf_, version);
  for (unsigned level = 0; level < levels; ++level) {
    version.links.next[level].store(places[level]->next[level].load(std::memory_order_relaxed),
                                    std::memory_order_relaxed);
  }
  // From below: who finds it on a level can go on from there on that level and all below.
  for (unsigned level = 0; level < levels; ++level) {
    places[level]->next[level].store(index, std::memory_order_release);
  }
  ++shelf_.groups[version.group].versions;
}

void IndexWriter::unlink(std::uint32_t index) {
  const Version& version = shelf_.versions[index];
  const auto places = places_before(shelf_, version);
  for (unsigned level = Links::kLevels; level-- > 0;) {
    if (places[level]->next[level].load(std::memory_order_relaxed) != index) continue;
    // Its own links stay: a reader that stands on it goes on.
    places[level]->next[level].store(version.links.next[level].load(std::memory_order_relaxed),
                                     std::memory_order_release);
  }
  Group& group = shelf_.groups[version.group];
  double quality = bound_of(false, 0);
  for (const Links& list : group.lists) {
    const std::uint32_t best = list.next[0].load(std::memory_order_relaxed);
    if (best == kNone) continue;
    quality = std::max(quality, bound_of(shelf_.versions[best].has_quality, shelf_.versions[best].quality));
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
