// SPDX-License-Identifier: Apache-2.0
#include "tests/repo/log/log_oracle.h"

#include <cstdlib>
#include <utility>

#include "core/base/format.h"

namespace freshet::sim {
namespace {

std::string text_of(const log::Value& value) {
  std::string text = value.inlined;
  for (const log::Place& place : value.places) text += log::object_key(place.object);
  return text;
}

}  // namespace

void LogOracle::violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

log::Answer LogOracle::apply(const log::Call& call, std::int64_t unix_s, const std::set<std::string>& unlisted) {
  using Kind = log::Answer::Kind;
  log::Answer answer;
  answer.kind = Kind::done;
  if (const auto* create = std::get_if<log::call::Create>(&call.what)) {
    const bool made = objects_.emplace(create->key, create->bytes).second;
    answer.kind = made ? Kind::created : Kind::exists;
    if (!made) return answer;
    if (const auto number = log::parse_record_key(create->key)) on_record(*number, create->bytes, unix_s);
    if (log::parse_snapshot_key(create->key)) ++snapshots_;
  } else if (const auto* replace = std::get_if<log::call::Replace>(&call.what)) {
    on_replaced(replace->key, replace->bytes);
    objects_[replace->key] = replace->bytes;
  } else if (const auto* remove = std::get_if<log::call::Remove>(&call.what)) {
    if (objects_.erase(remove->key) != 0) on_removed(remove->key, unix_s);
  } else if (const auto* get = std::get_if<log::call::Get>(&call.what)) {
    const auto found = objects_.find(get->key);
    answer.kind = found == objects_.end() ? Kind::not_found : Kind::found;
    if (found != objects_.end()) answer.bytes = found->second;
  } else if (const auto* list = std::get_if<log::call::List>(&call.what)) {
    for (auto at = objects_.lower_bound(list->prefix); at != objects_.end(); ++at) {
      if (!at->first.starts_with(list->prefix)) break;
      if (at->first <= list->after || unlisted.contains(at->first)) continue;
      answer.more = answer.keys.size() == list->keys_max;
      if (answer.more) break;
      answer.keys.push_back(at->first);
    }
  } else {
    answer.unix_s = unix_s;
  }
  return answer;
}

void LogOracle::on_record(std::uint64_t number, const std::string& bytes, std::int64_t unix_s) {
  if (number <= states_.size()) return violate(format("record {} was made twice", number));
  if (number != states_.size() + 1) return violate(format("record {} was made before record {}", number, number - 1));
  const auto record = log::decode_record(bytes, number);
  if (!record) return violate("a record that cannot be read: " + record.error().message());
  if (record->kind == log::RecordKind::challenge) ++challenges_;
  if (record->kind == log::RecordKind::ownership) {
    ++ownerships_;
    owner_ = record->writer;
  } else if (record->kind != log::RecordKind::challenge && record->writer != owner_) {
    violate(format("record {} is of a member that does not own the log", number));
  }
  shared_ += record->batches.size() > 1 ? 1 : 0;
  for (const log::Batch& batch : record->batches) fold(batch, number, unix_s);
  states_.push_back(values_);
}

void LogOracle::fold(const log::Batch& batch, std::uint64_t number, std::int64_t unix_s) {
  for (const log::Grant& grant : batch.grants) tokens_.insert(grant.token);
  std::vector<std::string> lost;
  for (const log::Change& change : batch.changes) {
    if (change.value) {
      for (const log::Place& place : change.value->places) {
        const std::string object = log::object_key(place.object);
        if (!objects_.contains(object))
          return violate(format("record {} names {}, which is not there", number, object));
        ++named_[object];
      }
    }
    const auto before = values_.find(change.key);
    if (before != values_.end() && before->second.starts_with(log::kObjectPrefix)) {
      if (--named_[before->second] == 0) lost.push_back(before->second);
    }
    if (change.value) {
      values_[change.key] = text_of(*change.value);
    } else {
      values_.erase(change.key);
    }
    if (!change.value || !change.value->inlined.starts_with("B")) continue;
    const std::uint64_t id = std::strtoull(change.value->inlined.c_str() + 1, nullptr, 10);
    if (!seen_.emplace(id, number).second) violate(format("batch {} was applied twice", id));
    if (refused_.contains(id)) violate(format("batch {} was refused, and is in the log", id));
  }
  for (const std::string& object : lost) {
    if (named_[object] == 0) dropped_[object] = unix_s;
  }
  for (const log::LogId& token : batch.ends) tokens_.erase(token);
}

void LogOracle::on_replaced(const std::string& key, const std::string& bytes) {
  ++emptied_;
  const auto number = log::parse_record_key(key);
  if (!number || *number > states_.size()) return violate("something was replaced that is no record: " + key);
  const auto record = log::decode_record(bytes, *number);
  if (!record || !record->emptied) return violate(format("record {} was replaced, and is not emptied", *number));
  const auto newest = objects_.lower_bound(std::string(log::kSnapshotPrefix));
  const auto position = newest == objects_.end() ? std::nullopt : log::parse_snapshot_key(newest->first);
  if (!position || *position < *number) violate(format("record {} was emptied, and is in no snapshot", *number));
}

void LogOracle::on_removed(const std::string& key, std::int64_t unix_s) {
  const auto name = log::parse_object_key(key);
  if (!name) return;
  ++erased_;
  if (const auto named = named_.find(key); named != named_.end() && named->second > 0) {
    return violate(key + " was erased, and a value names it");
  }
  if (const auto dropped = dropped_.find(key); dropped != dropped_.end()) {
    if (unix_s < dropped->second + grace_s_) violate(key + " was erased within the grace");
  } else if (tokens_.contains(name->token)) {
    violate(key + " was erased, and its uploader may still name it");
  }
}

void LogOracle::on_applied(std::uint64_t batch) {
  const auto seen = seen_.find(batch);
  if (seen == seen_.end()) return violate(format("batch {} was acknowledged, and is not in the log", batch));
  acknowledged_through_ = std::max(acknowledged_through_, seen->second);
}

void LogOracle::on_not_applied(std::uint64_t batch) {
  if (seen_.contains(batch)) return violate(format("batch {} was refused, and is in the log", batch));
  refused_.insert(batch);
}

void LogOracle::on_answered(const log::LogState& state) {
  ++answers_;
  if (state.position() < acknowledged_through_) {
    return violate(format("a stale name was answered: from record {}, and record {} was acknowledged", state.position(),
                          acknowledged_through_));
  }
  on_state(state);
}

void LogOracle::on_state(const log::LogState& state) {
  if (state.position() == 0) return;
  if (state.position() > states_.size()) return violate("a member is beyond the end of the log");
  const Values& values = states_[state.position() - 1];
  bool same = values.size() == state.values().size();
  for (const auto& [key, value] : state.values()) {
    const auto found = values.find(key);
    same = same && found != values.end() && found->second == text_of(value);
  }
  if (!same) violate(format("a member's values at record {} are not those of the log", state.position()));
}

void LogOracle::check_all_swept() {
  for (const auto& [key, bytes] : objects_) {
    const auto name = log::parse_object_key(key);
    if (!name || tokens_.contains(name->token)) continue;
    const auto named = named_.find(key);
    if (named == named_.end() || named->second == 0) return violate(key + " was left behind");
  }
}

}  // namespace freshet::sim
