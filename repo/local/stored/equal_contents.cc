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

Status EqualContents::inherit(Manifest& manifest) {
  FRESHET_TRY(need());
  std::vector<SegmentName> owners(manifest.owners.owners().begin(), manifest.owners.owners().end());
  for (std::uint32_t tensor = 0; tensor < owners.size(); ++tensor) {
    const SegmentRow wanted{.bytes = manifest.architecture->tensors()[tensor].bytes(),
                            .digest = manifest.digests[tensor]};
    const auto known = known_->find(wanted.digest);
    if (wanted.bytes == 0 || known == known_->end() || known->second.segment == owners[tensor]) continue;
    // A tensor that a version wrote itself stands under its own index.
    if (known->second.segment.writer == manifest.id) continue;
    if (backend_.get(segment_record_key(owners[tensor]))) continue;
    const Result<SegmentRow> there = segments_.row(known->second.segment);
    bool is_same = there && check_same(*there, wanted);
    if (is_same && !there->base && !known->second.is_proved) {
      FRESHET_ASSIGN(is_same, segments_.is_whole(known->second.segment, wanted.bytes, wanted.digest));
      known->second.is_proved = is_same;
    }
    if (is_same) {
      owners[tensor] = known->second.segment;
    } else {
      known_->erase(known);  // Retired since, or not what its writer said.
    }
  }
  manifest.owners = OwnerMap(std::move(owners));
  return {};
}

void EqualContents::add(const Digest& digest, const SegmentName& segment, bool is_proved) {
  if (known_) known_->try_emplace(digest, Known{segment, is_proved});
}

}  // namespace freshet
