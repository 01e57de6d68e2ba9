// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_state.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::log {

std::uint64_t LogState::names_of(const ObjectName& object) const {
  const auto found = names_.find(object);
  return found == names_.end() ? 0 : found->second;
}

Status LogState::apply(const Record& record, BrokenRule broken) {
  const auto damaged = [&record](std::string_view why) {
    return fail(Code::corrupt, format("record {} of the repository's log {}", record.number, why));
  };
  if (record.emptied) return damaged("is emptied");
  if (record.number != position_ + 1) return damaged(format("does not follow record {}", position_));
  if (record.kind == RecordKind::challenge) {
    challenges_[record.writer] = record.number;
    position_ = record.number;
    return {};
  }
  if (record.kind == RecordKind::ownership) {
    if (owner_ && !challenges_.contains(record.writer)) {
      return damaged("takes the log from an owner that answered");
    }
    owner_ = LogMember{.id = record.writer, .address = record.address, .public_key = record.public_key};
    owned_since_ = record.number;
  } else if (!owner_ || owner_->id != record.writer) {
    return damaged(format("is of {}, which does not own the log", to_hex(record.writer)));
  }
  position_ = record.number;
  challenges_.clear();
  for (const Batch& batch : record.batches) {
    if (const Status status = BatchCheck(*this, broken).add(batch); !status) return damaged(status.error().message());
    apply_batch(batch);
  }
  if (record.kind == RecordKind::end) owner_.reset();
  return {};
}

void LogState::set(const Change& change) {
  std::vector<Place> dropped;
  const auto found = values_.find(change.key);
  if (change.value) {
    for (const Place& place : change.value->places) ++names_[place.object];
    if (found == values_.end()) {
      values_.emplace(change.key, *change.value);
    } else {
      dropped = std::move(found->second.places);
      found->second = *change.value;
    }
  } else if (found != values_.end()) {
    dropped = std::move(found->second.places);
    values_.erase(found);
  }
  for (const Place& place : dropped) {
    const auto named = names_.find(place.object);
    if (--named->second == 0) names_.erase(named);
  }
}

void LogState::apply_batch(const Batch& batch) {
  for (const Grant& grant : batch.grants) {
    tokens_.emplace(grant.token, Token{.since = position_, .life_s = grant.life_s, .stamp_unix_s = std::nullopt});
  }
  for (const Change& change : batch.changes) set(change);
  for (const LogId& token : batch.ends) tokens_.erase(token);
  for (const ObjectName& name : batch.condemned) {
    condemned_.emplace(name, Condemned{.since = position_, .stamp_unix_s = std::nullopt});
  }
  for (const ObjectName& name : batch.forgotten) condemned_.erase(name);
  if (batch.stamp.through != 0) stamp(batch.stamp.unix_s, batch.stamp.through);
}

bool LogState::needs_stamp(std::uint64_t through) const {
  const auto needs = [through](const auto& one) { return !one.second.stamp_unix_s && one.second.since <= through; };
  return std::ranges::any_of(tokens_, needs) || std::ranges::any_of(condemned_, needs);
}

void LogState::stamp(std::int64_t unix_s, std::uint64_t through) {
  for (auto& [id, token] : tokens_) {
    if (!token.stamp_unix_s && token.since <= through) token.stamp_unix_s = unix_s;
  }
  for (auto& [name, condemned] : condemned_) {
    if (!condemned.stamp_unix_s && condemned.since <= through) condemned.stamp_unix_s = unix_s;
  }
}

const Value* BatchCheck::value_of(std::string_view key, const Layer& top) const {
  for (const Layer* layer : {&top, &below_}) {
    if (const auto found = layer->values.find(key); found != layer->values.end()) return found->second;
  }
  const auto found = state_.values().find(key);
  return found == state_.values().end() ? nullptr : &found->second;
}

std::int64_t BatchCheck::names_of(const ObjectName& object, const Layer* top) const {
  auto names = static_cast<std::int64_t>(state_.names_of(object));
  for (const Layer* layer : {static_cast<const Layer*>(&below_), top}) {
    if (layer == nullptr) continue;
    if (const auto found = layer->names.find(object); found != layer->names.end()) names += found->second;
  }
  return names;
}

bool BatchCheck::is_live(const LogId& token, const Layer& top) const {
  for (const Layer* layer : {&top, &below_}) {
    if (const auto found = layer->tokens.find(token); found != layer->tokens.end()) return found->second;
  }
  return state_.tokens().contains(token);
}

bool BatchCheck::is_condemned(const ObjectName& object, const Layer& top) const {
  if (top.forgotten.contains(object) || below_.forgotten.contains(object)) return false;
  return top.condemned.contains(object) || below_.condemned.contains(object) || state_.condemned().contains(object);
}

Status BatchCheck::add_change(const Change& change, Layer& top) const {
  const Value* before = value_of(change.key, top);
  const Value* after = change.value ? &*change.value : nullptr;
  if (after != nullptr) {
    for (const Place& place : after->places) {
      const bool may = names_of(place.object, &top) > 0 ||
                       (is_live(place.object.token, top) &&
                        (!is_condemned(place.object, top) || broken_ == BrokenRule::condemned_objects_are_named));
      if (!may) {
        return fail(Code::failed_precondition, format("the batch names {}, whose upload token has ended, or which is "
                                                      "to be erased: upload its bytes again",
                                                      object_key(place.object)));
      }
    }
    for (const Place& place : after->places) ++top.names[place.object];
  }
  if (before != nullptr) {
    for (const Place& place : before->places) --top.names[place.object];
  }
  top.values[change.key] = after;
  return {};
}

Status BatchCheck::add(const Batch& batch, std::vector<ObjectName>* orphans) {
  const auto refuse_it = [](std::string_view what, const std::string& name) {
    return fail(Code::failed_precondition, format("the batch {} {}", what, name));
  };
  Layer top;
  for (const Grant& grant : batch.grants) {
    if (is_live(grant.token, top)) return refuse_it("grants a token that exists:", to_hex(grant.token));
    top.tokens[grant.token] = true;
  }
  for (const Change& change : batch.changes) FRESHET_TRY(add_change(change, top));
  for (const LogId& token : batch.ends) {
    if (!is_live(token, top)) return refuse_it("ends a token that has ended, or never began:", to_hex(token));
    top.tokens[token] = false;
  }
  for (const ObjectName& name : batch.condemned) {
    if (names_of(name, &top) > 0) return refuse_it("condemns an object that a value names:", object_key(name));
    if (is_condemned(name, top)) return refuse_it("condemns an object twice:", object_key(name));
    if (names_of(name, nullptr) == 0 && is_live(name.token, top) && broken_ != BrokenRule::live_uploads_are_swept) {
      return refuse_it("condemns an object that its uploader may still name:", object_key(name));
    }
    top.condemned.insert(name);
  }
  if (orphans != nullptr) {
    for (const auto& [name, change] : top.names) {
      if (change >= 0 || names_of(name, &top) > 0 || is_condemned(name, top)) continue;
      top.condemned.insert(name);
      orphans->push_back(name);
    }
  }
  for (const ObjectName& name : batch.forgotten) {
    if (!is_condemned(name, top)) return refuse_it("forgets an object that is not condemned:", object_key(name));
    const bool may = broken_ == BrokenRule::condemned_objects_are_forgotten_early || !is_live(name.token, top);
    if (!may) return refuse_it("forgets an object whose token lives:", object_key(name));
    top.forgotten.insert(name);
  }
  merge(std::move(top));
  return {};
}

void BatchCheck::merge(Layer top) {
  for (const auto& [key, value] : top.values) below_.values[key] = value;
  for (const auto& [object, names] : top.names) below_.names[object] += names;
  for (const auto& [token, live] : top.tokens) below_.tokens[token] = live;
  below_.condemned.merge(top.condemned);
  below_.forgotten.merge(top.forgotten);
}

}  // namespace freshet::log
