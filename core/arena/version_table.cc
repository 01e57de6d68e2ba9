// SPDX-License-Identifier: Apache-2.0
#include "core/arena/arena.h"
#include "core/base/check.h"

namespace freshet {

void VersionTable::add(Entry entry, HolderId holder) {
  FRESHET_CHECK(entry.manifest != nullptr);
  FRESHET_CHECK(entry.manifest->name.number > last_added_);
  last_added_ = entry.manifest->name.number;
  insert(std::move(entry), holder);
}

void VersionTable::add_older(Entry entry, HolderId holder) {
  FRESHET_CHECK(entry.manifest != nullptr);
  FRESHET_CHECK(entry.manifest->name.number < last_added_ && !rows_.contains(entry.manifest->name.number));
  insert(std::move(entry), holder);
}

void VersionTable::insert(Entry entry, HolderId holder) {
  const VersionNumber number = entry.manifest->name.number;
  for (const SegmentIndex segment : entry.segments) ++versions_naming_[segment];
  rows_.emplace(number, Row{.entry = std::move(entry), .holders = {holder}});
  held_by_[holder].insert(number);
}

bool VersionTable::hold(VersionNumber number, HolderId holder) {
  const auto row = rows_.find(number);
  if (row == rows_.end()) return false;
  row->second.holders.insert(holder);
  held_by_[holder].insert(number);
  return true;
}

std::vector<SegmentIndex> VersionTable::release(VersionNumber number, HolderId holder) {
  std::vector<SegmentIndex> unnamed;
  const auto held = held_by_.find(holder);
  if (held == held_by_.end() || held->second.erase(number) == 0) return unnamed;
  if (held->second.empty()) held_by_.erase(held);
  auto& holders = rows_.at(number).holders;
  holders.erase(holder);
  if (holders.empty()) remove(number, unnamed);
  return unnamed;
}

std::vector<SegmentIndex> VersionTable::release_all(HolderId holder) {
  std::vector<SegmentIndex> unnamed;
  const auto held = held_by_.find(holder);
  if (held == held_by_.end()) return unnamed;
  const std::set<VersionNumber> numbers = std::move(held->second);
  held_by_.erase(held);
  for (const VersionNumber number : numbers) {
    auto& holders = rows_.at(number).holders;
    holders.erase(holder);
    if (holders.empty()) remove(number, unnamed);
  }
  return unnamed;
}

void VersionTable::remove(VersionNumber number, std::vector<SegmentIndex>& unnamed) {
  const auto row = rows_.find(number);
  for (const SegmentIndex segment : row->second.entry.segments) {
    const auto count = versions_naming_.find(segment);
    FRESHET_CHECK(count != versions_naming_.end());
    if (--count->second > 0) continue;
    versions_naming_.erase(count);
    unnamed.push_back(segment);
  }
  rows_.erase(row);
}

const VersionTable::Entry* VersionTable::find(VersionNumber number) const {
  const auto row = rows_.find(number);
  return row == rows_.end() ? nullptr : &row->second.entry;
}

const VersionTable::Entry* VersionTable::newest() const {
  return rows_.empty() ? nullptr : &rows_.rbegin()->second.entry;
}

bool VersionTable::is_held_by(VersionNumber number, HolderId holder) const {
  const auto held = held_by_.find(holder);
  return held != held_by_.end() && held->second.contains(number);
}

std::vector<VersionNumber> VersionTable::numbers() const {
  std::vector<VersionNumber> numbers;
  for (const auto& [number, row] : rows_) numbers.push_back(number);
  return numbers;
}

}  // namespace freshet
