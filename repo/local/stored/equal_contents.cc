// SPDX-License-Identifier: Apache-2.0
#include "repo/local/stored/equal_contents.h"

#include <utility>
#include <vector>

namespace freshet {

Status EqualContents::need() {
  if (known_) return {};
  std::unordered_map<Digest, Known> found;
  const bool is_proved = !backend_.takes_brought();
  FRESHET_TRY(backend_.scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const auto segment = parse_segment_key(key.substr(kSegmentPrefix.size()));
    const auto row = decode_segment_row(value);
    if (segment && row) found.try_emplace(row->digest, Known{*segment, is_proved});
    return true;
  }));
  known_ = std::move(found);
  return {};
}

Status EqualContents::for_each_equal(
    const Manifest& manifest,
    const std::function<void(std::uint32_t tensor, Known& known, const SegmentRow& row)>& each) {
  FRESHET_TRY(need());
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const SegmentRow wanted{.bytes = manifest.architecture->tensors()[tensor].bytes(),
                            .digest = manifest.digests[tensor]};
    const auto known = known_->find(wanted.digest);
    if (wanted.bytes == 0 || wanted.digest == Digest{} || known == known_->end() ||
        known->second.segment == manifest.owners[tensor])
      continue;
    // A tensor that a version wrote itself stands under its own index.
    if (known->second.segment.writer == manifest.id) continue;
    if (backend_.get(segment_record_key(manifest.owners[tensor]))) continue;
    const Result<SegmentRow> there = segments_.row(known->second.segment);
    if (there && check_same(*there, wanted)) {
      each(tensor, known->second, *there);
    } else {
      known_->erase(known);  // Retired since, or not what its writer said.
    }
  }
  return {};
}

Status EqualContents::inherit(Manifest& manifest) {
  std::vector<SegmentName> owners(manifest.owners.owners().begin(), manifest.owners.owners().end());
  FRESHET_TRY(for_each_equal(manifest, [&](std::uint32_t tensor, const Known& known, const SegmentRow& row) {
    // What is rebuilt from a difference was made by this repository's owner.
    if (known.is_proved || row.base) owners[tensor] = known.segment;
  }));
  manifest.owners = OwnerMap(std::move(owners));
  return {};
}

Result<std::vector<EqualContents::Doubted>> EqualContents::doubted(const Manifest& manifest) {
  std::vector<Doubted> all;
  FRESHET_TRY(for_each_equal(manifest, [&](std::uint32_t tensor, const Known& known, const SegmentRow& row) {
    if (known.is_proved || row.base) return;
    all.push_back({.segment = known.segment, .bytes = row.bytes, .digest = manifest.digests[tensor]});
  }));
  return all;
}

void EqualContents::prove(const Doubted& one, bool is_same) {
  if (!known_) return;
  const auto known = known_->find(one.digest);
  if (known == known_->end() || known->second.segment != one.segment) return;
  if (is_same) {
    known->second.is_proved = true;
  } else {
    known_->erase(known);
  }
}

void EqualContents::add(const Digest& digest, const SegmentName& segment, bool is_proved) {
  if (known_) known_->try_emplace(digest, Known{segment, is_proved});
}

}  // namespace freshet
