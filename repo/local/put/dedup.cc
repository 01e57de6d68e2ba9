// SPDX-License-Identifier: Apache-2.0
/// Equal tensors that came without lineage: found by the digest and the size of what is stored, and inherited.

#include "repo/local/local_repository.h"

namespace freshet {

Status LocalRepository::Impl::need_contents() {
  if (contents) return {};
  std::unordered_map<Digest, SegmentName> found;
  FRESHET_TRY(backend->scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const auto segment = parse_segment_key(key.substr(kSegmentPrefix.size()));
    const auto row = decode_segment_row(value);
    if (segment && row) found.try_emplace(row->digest, *segment);
    return true;
  }));
  contents = std::move(found);
  return {};
}

Status LocalRepository::Impl::inherit_equal(Manifest& manifest) {
  FRESHET_TRY(need_contents());
  std::vector<SegmentName> owners(manifest.owners.owners().begin(), manifest.owners.owners().end());
  for (std::uint32_t tensor = 0; tensor < owners.size(); ++tensor) {
    const SegmentRow wanted{.bytes = manifest.architecture->tensors()[tensor].bytes(),
                            .digest = manifest.digests[tensor]};
    const auto known = contents->find(wanted.digest);
    if (wanted.bytes == 0 || known == contents->end() || known->second == owners[tensor]) continue;
    // A tensor that a version wrote itself stands under its own index.
    if (known->second.writer == manifest.id) continue;
    if (backend->get(segment_record_key(owners[tensor]))) continue;
    const Result<SegmentRow> there = segment_row(known->second);
    if (there && check_same(*there, wanted)) {
      owners[tensor] = known->second;
    } else {
      contents->erase(known);  // Retired since.
    }
  }
  manifest.owners = OwnerMap(std::move(owners));
  return {};
}

}  // namespace freshet
