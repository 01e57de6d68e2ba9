// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/roles/checker.h"

#include "core/base/digest.h"
#include "core/base/format.h"

namespace freshet::live {

std::uint64_t digest_low(Bytes bytes) { return digest_of(bytes).low; }

Status Checker::add(const JournalRecord& record) {
  const bool first_of_life = !parent_of_life_.contains(record.id.life);
  const bool parent_known = record.parent == RecordId{} || records_.contains(record.parent);
  const bool parent_fits = first_of_life ? record.parent.life < record.id.life
                                         : record.parent == RecordId{record.id.life, record.id.index - 1};
  if (record.id.life == 0 || record.dense.size() != kDenseTensors || !parent_known || !parent_fits ||
      records_.contains(record.id)) {
    return fail(Code::corrupt,
                format("journal: record {} after {} does not fit", to_string(record.id), to_string(record.parent)));
  }
  if (first_of_life) parent_of_life_[record.id.life] = record.parent;
  newest_ = record.id;
  ++order_;
  records_[record.id] = {.dense = record.dense};
  for (const RowSeen& seen : record.rows) {
    std::vector<Row>& history = rows_[seen.row];
    history.push_back({.record = record.id, .order = order_, .digest = seen.digest});
    forget(history);
  }
  return {};
}

/// A row's oldest record may go when a later one, itself old enough, stands between it and everything that is still
/// served.
void Checker::forget(std::vector<Row>& history) const {
  while (history.size() > 1 && history[1].order + kRecordsRemembered < order_ && descends(newest_, history[1].record)) {
    history.erase(history.begin());
  }
}

bool Checker::descends(RecordId record, RecordId ancestor) const {
  while (record.life > ancestor.life) {
    const auto parent = parent_of_life_.find(record.life);
    if (parent == parent_of_life_.end()) return false;
    record = parent->second;
  }
  return record.life == ancestor.life && record.index >= ancestor.index;
}

std::uint64_t Checker::expected_row(std::uint32_t row, RecordId record) const {
  if (const auto history = rows_.find(row); history != rows_.end()) {
    for (auto it = history->second.rbegin(); it != history->second.rend(); ++it) {
      if (descends(record, it->record)) return it->digest;
    }
  }
  std::vector<float> initial(layout_.row_floats());
  layout_.initial_row(row, initial.data());
  return digest_low(bytes_of(initial.data(), initial.size()));
}

Checker::Finding Checker::check(const ScoreAnswer& answer) {
  const auto torn = [&](std::string what) {
    return Finding{Verdict::torn, format("version {} (record {}): {}", answer.version, answer.record, what)};
  };
  const auto id = parse_record_id(answer.record);
  if (!id || answer.version == 0) return torn("names no version of the trainer's");
  const auto known = records_.find(*id);
  if (known == records_.end()) return {Verdict::unknown, {}};

  const auto [numbered, is_new] = record_of_version_.try_emplace(answer.version, *id);
  if (!is_new && numbered->second != *id) {
    return torn(format("another answer of this version named record {}", to_string(numbered->second)));
  }
  if (answer.dense.size() != kDenseTensors || answer.rows.empty()) return torn("does not say what it saw");
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) {
    if (answer.dense[tensor] != known->second.dense[tensor]) {
      return torn(format("{} is not that version's", layout_.tensors()[tensor].name));
    }
  }
  for (const RowSeen& seen : answer.rows) {
    if (seen.row >= layout_.rows()) return torn(format("row {} does not exist", seen.row));
    if (seen.digest != expected_row(seen.row, *id)) return torn(format("row {} is not that version's", seen.row));
  }
  return {};
}

}  // namespace freshet::live
