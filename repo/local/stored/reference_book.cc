// SPDX-License-Identifier: Apache-2.0
#include "repo/local/stored/reference_book.h"

#include <utility>

namespace freshet {

std::vector<SegmentName> segments_of_writer(const VersionId& writer, const std::vector<std::uint32_t>& tensors) {
  std::vector<SegmentName> segments;
  segments.reserve(tensors.size());
  for (const std::uint32_t tensor : tensors) segments.push_back({.writer = writer, .tensor = tensor});
  return segments;
}

Result<std::vector<SegmentName>> ReferenceBook::segments_of(const VersionName& name, const VersionRow& row) const {
  if (!row.has_weights) return std::vector<SegmentName>();
  FRESHET_ASSIGN(const Manifest manifest, manifests_.get(name, row));
  return segments_.with_bases(distinct_segments(manifest.owners));
}

Result<References> ReferenceBook::count() const {
  References counted;
  {
    const MutexLock lock(known_.mutex);
    for (const auto& [model, versions] : known_.catalog.models()) {
      for (const auto& [number, entry] : versions) {
        if (entry.row == nullptr) counted.add_unknown();
      }
    }
  }
  FRESHET_TRY(manifests_.for_each_owner_map(
      [&](const VersionName&, const VersionRow& row, const Result<Manifest>& manifest) -> Status {
        counted.add_architecture(row.architecture);
        if (!row.has_weights) return {};
        if (manifest) {
          counted.add_segments(segments_.with_bases(distinct_segments(manifest->owners)));
        } else if (manifest.error().code() == Code::corrupt) {
          counted.add_unknown();
        } else {
          return fail(manifest.error());
        }
        return {};
      }));
  const Status scanned =
      scan_referrers([&](const ExternalReferrer& referrer) { counted.add_segments(referrer.segments); });
  if (!scanned && scanned.error().code() != Code::corrupt) return fail(scanned.error());
  if (!scanned) counted.add_unknown();  // Somebody elsewhere may name anything.
  return counted;
}

Status ReferenceBook::need() {
  if (counts_) return {};
  FRESHET_ASSIGN(counts_, count());
  return {};
}

Result<ReferenceBook::Release> ReferenceBook::release_of(const Catalog::Found& version) const {
  Release release;
  const auto named = segments_of(version.name, *version.row);
  if (!named && named.error().code() != Code::corrupt) return fail(named.error());
  // Where a manifest is damaged, what it names is unknown. Nothing is released then; gc() finds what is left over once
  // all that is stored can be read.
  release.known = named.has_value() && counts_->unknown() == 0;
  if (!release.known) return release;
  release.segments = *named;
  for (const SegmentName& segment : release.segments) {
    if (counts_->of(segment) == 1) release.unnamed.push_back(segment);
  }
  return release;
}

Status ReferenceBook::scan_referrers(const std::function<void(const ExternalReferrer&)>& each) const {
  Status damaged;
  ExternalReferrer at;
  FRESHET_TRY(backend_.scan(kReferrerPrefix, [&](std::string_view key, std::string_view value) {
    const auto names = parse_referrer_key(key);
    auto row = decode_referrer(value);
    if (!names || !row) {
      damaged = fail(Code::corrupt, "a record of references from other providers is damaged");
      return false;
    }
    if (!at.segments.empty() && (at.version != names->referrer || at.attempt != names->attempt)) {
      each(at);
      at.segments.clear();
    }
    at.version = names->referrer;
    at.attempt = names->attempt;
    at.home = std::move(row->home);
    for (const SegmentName& segment : segments_of_writer(names->writer, row->tensors)) at.segments.push_back(segment);
    return true;
  }));
  FRESHET_TRY(damaged);
  if (!at.segments.empty()) each(at);
  return {};
}

}  // namespace freshet
