// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/held_versions.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/check.h"

namespace freshet::protocol {

void HeldVersions::add_newest(CommittedVersion version, std::int64_t announced_ns) {
  const VersionNumber number = version.manifest->name.number;
  const VersionNumber before = std::exchange(newest_, number);
  if (coming() == number) forget_coming();
  table_.add({.manifest = version.manifest, .segments = version.segments}, kNewestHolder);
  records_.emplace(number, Record{.version = std::move(version), .announced_ns = announced_ns});
  release_all(kOlderHolder);
  if (before == 0) return;
  if (retained_max_ > 1 && table_.hold(before, kRetainedHolder)) retained_.push_back(before);
  release(before, kNewestHolder);
  while (retained_.size() + 1 > std::max<std::size_t>(retained_max_, 1)) {
    release(retained_.front(), kRetainedHolder);
    retained_.pop_front();
  }
}

void HeldVersions::add_older(CommittedVersion version, std::int64_t announced_ns) {
  const VersionNumber number = version.manifest->name.number;
  // The one before goes last: segments that both name stay live.
  table_.add_older({.manifest = version.manifest, .segments = version.segments}, kNewestHolder);
  release_all(kOlderHolder);
  FRESHET_CHECK(table_.hold(number, kOlderHolder));
  records_.emplace(number, Record{.version = std::move(version), .announced_ns = announced_ns});
  release(number, kNewestHolder);
}

std::uint64_t HeldVersions::shed_retained(std::uint64_t bytes_wanted) {
  std::uint64_t freed = 0;
  while (freed < bytes_wanted && !retained_.empty()) {
    freed += release(retained_.front(), kRetainedHolder);
    retained_.pop_front();
  }
  return freed;
}

void HeldVersions::keep(const std::set<VersionNumber>& numbers) {
  std::set<VersionNumber> before = std::exchange(kept_, {});
  for (const VersionNumber number : numbers) {
    if (table_.hold(number, kKeptHolder)) kept_.insert(number);
  }
  for (const VersionNumber number : before) {
    if (!kept_.contains(number)) release(number, kKeptHolder);
  }
}

const HeldVersions::Record* HeldVersions::find(VersionNumber number) const {
  const auto record = records_.find(number);
  return record == records_.end() ? nullptr : &record->second;
}

void HeldVersions::set_coming(CommittedVersion version, std::int64_t announced_ns) {
  coming_ = Record{.version = std::move(version), .announced_ns = announced_ns};
}

bool HeldVersions::can_give(VersionNumber number, ChannelKind by) const {
  return find(number) != nullptr || (number != 0 && number == coming() && by != ChannelKind::shm);
}

const HeldVersions::Record& HeldVersions::record_of(VersionNumber number) const {
  const Record* const record = find(number);
  FRESHET_CHECK(record != nullptr || number == coming());
  return record != nullptr ? *record : *coming_;
}

std::uint64_t HeldVersions::release(VersionNumber number, HolderId holder) {
  const std::vector<SegmentIndex> freed = table_.release(number, holder);
  if (table_.find(number) != nullptr) return 0;
  const auto record = records_.find(number);
  if (record == records_.end()) return 0;
  const std::unordered_set<SegmentIndex> gone(freed.begin(), freed.end());
  std::uint64_t bytes = 0;
  const CommittedVersion& version = record->second.version;
  for (std::size_t i = 0; i < version.places.size(); ++i) {
    if (gone.contains(version.segments[i])) bytes += version.places[i].bytes;
  }
  freed_.insert(freed_.end(), freed.begin(), freed.end());
  records_.erase(record);
  return bytes;
}

void HeldVersions::release_all(HolderId holder) {
  const std::vector<SegmentIndex> freed = table_.release_all(holder);
  freed_.insert(freed_.end(), freed.begin(), freed.end());
  forget_records();
}

void HeldVersions::forget_records() {
  std::erase_if(records_, [this](const auto& record) { return table_.find(record.first) == nullptr; });
}

std::vector<SegmentIndex> HeldVersions::take_freed() { return std::exchange(freed_, {}); }

}  // namespace freshet::protocol
