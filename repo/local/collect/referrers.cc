// SPDX-License-Identifier: Apache-2.0
/// Versions of other providers that name segments here. Their records are durable and hold exactly who names what, so
/// that saying it twice, or again after a crash, changes nothing.

#include <algorithm>
#include <map>

#include "core/base/format.h"
#include "repo/local/local_repository.h"
#include "repo/records/placement.h"

namespace freshet {
namespace {

constexpr std::size_t kSegmentsMax = std::size_t{1} << 20;
constexpr std::uint64_t kScanPieceBytes = std::uint64_t{4} << 20;
constexpr std::size_t kRevivedPerTurn = 256;

using TensorsOf = std::map<VersionId, std::vector<std::uint32_t>>;  ///< By writer.

}  // namespace

Result<std::uint64_t> LocalRepository::revive_segments(std::span<const SegmentContent> segments) {
  if (segments.size() > kSegmentsMax) {
    return fail(Code::invalid_argument, format("{} segments are more than {}", segments.size(), kSegmentsMax));
  }
  std::uint64_t revived = 0;
  Status failed;
  for (std::size_t next = 0; next < segments.size();) {
    // Nobody may erase or write a blob between the look at it and its record, but others have their turn in between.
    const WritersTurn turn(*impl_);
    FRESHET_TRY(impl_->ready_to_write());
    Backend::Batch batch;
    std::vector<std::uint64_t> sizes;
    const std::size_t end = std::min(segments.size(), next + kRevivedPerTurn);
    for (std::uint64_t looked = 0; looked < kScanPieceBytes && next < end; ++next) {
      const SegmentContent& content = segments[next];
      if (impl_->segments_in_flight.count(content.segment) != 0) continue;
      const std::string key = segment_record_key(content.segment);
      const Result<std::string> stored = impl_->backend->get(key);
      if (stored) continue;
      if (stored.error().code() != Code::not_found) return fail(stored.error());
      looked += content.bytes;
      const Result<bool> there = impl_->segments.is_whole(content.segment, content.bytes, content.digest);
      if (!there && failed) failed = fail(there.error());  // The others are not to go with it.
      if (!there || !*there) continue;
      sizes.push_back(content.bytes);
      batch.push_back(Backend::Put{key, encode(SegmentRow{.bytes = content.bytes, .digest = content.digest})});
    }
    if (batch.empty()) continue;
    FRESHET_TRY(impl_->apply(batch));
    revived += sizes.size();
    const MutexLock lock(impl_->known.mutex);
    for (const std::uint64_t bytes : sizes) impl_->known.catalog.add_segment(bytes);
  }
  FRESHET_TRY(failed);
  return revived;
}

Result<std::vector<ExternalReferrer>> LocalRepository::referrers() const {
  std::vector<ExternalReferrer> all;
  FRESHET_TRY(impl_->references.scan_referrers([&](const ExternalReferrer& referrer) { all.push_back(referrer); }));
  return all;
}

Status LocalRepository::add_referrer(const ExternalReferrer& referrer) {
  if (referrer.home.size() > kProviderIdBytesMax) return fail(Code::invalid_argument, "a provider's id is too long");
  if (referrer.segments.size() > kSegmentsMax) {
    return fail(Code::invalid_argument, format("{} segments are more than {}", referrer.segments.size(), kSegmentsMax));
  }
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  TensorsOf tensors_of;
  // What is kept as a difference is lost with what it differs from, so that is named as well.
  for (const SegmentName& segment : impl_->segments.with_bases(referrer.segments)) {
    const Result<std::string> stored = impl_->backend->get(segment_record_key(segment));
    if (!stored && stored.error().code() == Code::not_found) {
      return fail(Code::not_found, format("segment {} is not stored", to_string(segment)));
    }
    if (!stored) return fail(stored.error());
    tensors_of[segment.writer].push_back(segment.tensor);
  }

  Backend::Batch batch;
  std::vector<SegmentName> added;
  bool damaged = false;
  for (auto& [writer, tensors] : tensors_of) {
    const std::string key = referrer_key(referrer.version, referrer.attempt, writer);
    ReferrerRow row;
    if (const Result<std::string> stored = impl_->backend->get(key)) {
      // One that is damaged is replaced: who repairs says all that the version needs.
      if (auto decoded = decode_referrer(*stored)) {
        row = *std::move(decoded);
      } else {
        damaged = true;
      }
    } else if (stored.error().code() != Code::not_found) {
      return fail(stored.error());
    }
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    std::vector<std::uint32_t> fresh;
    std::set_difference(tensors.begin(), tensors.end(), row.tensors.begin(), row.tensors.end(),
                        std::back_inserter(fresh));
    if (fresh.empty()) continue;
    for (const SegmentName& segment : segments_of_writer(writer, fresh)) added.push_back(segment);
    std::vector<std::uint32_t> all;
    std::set_union(row.tensors.begin(), row.tensors.end(), fresh.begin(), fresh.end(), std::back_inserter(all));
    row = {.tensors = std::move(all), .home = referrer.home};
    batch.push_back(Backend::Put{key, encode(row)});
  }
  if (batch.empty()) return {};
  FRESHET_TRY(impl_->apply(batch));
  if (damaged) impl_->references.forget();
  if (impl_->references.counts()) impl_->references.counts()->add_segments(added);
  return {};
}

Status LocalRepository::drop_referrer(const VersionId& version, std::uint64_t attempt) {
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  FRESHET_TRY(impl_->references.need());
  Backend::Batch batch;
  std::vector<SegmentName> dropped;
  Status damaged;
  FRESHET_TRY(
      impl_->backend->scan(referrer_prefix(version, attempt), [&](std::string_view key, std::string_view value) {
        const auto names = parse_referrer_key(key);
        const auto row = decode_referrer(value);
        if (!names || !row) {
          damaged = fail(Code::corrupt, format("the record of {}'s references here is damaged", to_string(version)));
          return false;
        }
        for (const SegmentName& segment : segments_of_writer(names->writer, row->tensors)) dropped.push_back(segment);
        batch.push_back(Backend::Erase{std::string(key)});
        return true;
      }));
  FRESHET_TRY(damaged);
  if (batch.empty()) return {};
  std::vector<std::uint64_t> sizes;
  for (const SegmentName& segment : dropped) {
    if (impl_->references.counts()->unknown() != 0 || impl_->references.counts()->of(segment) != 1) continue;
    const std::string key = segment_record_key(segment);
    FRESHET_ASSIGN(const std::optional<std::uint64_t> bytes, impl_->segments.bytes_of_record(key));
    if (!bytes) continue;
    sizes.push_back(*bytes);
    batch.push_back(Backend::Erase{key});
  }
  FRESHET_TRY(impl_->apply(batch));
  // Behind a damaged record, references were not counted.
  if (impl_->references.counts()->unknown() != 0) {
    impl_->references.forget();
  } else {
    impl_->references.counts()->drop_segments(dropped);
  }
  const MutexLock lock(impl_->known.mutex);
  for (const std::uint64_t bytes : sizes) impl_->known.catalog.drop_segment(bytes);
  return {};
}

}  // namespace freshet
