// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_keeper.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::log {
namespace {

constexpr Duration kKeeperCall = std::chrono::seconds(5);
constexpr Duration kPartCall = std::chrono::seconds(60);
constexpr std::size_t kEmptyingMax = 8;
constexpr std::size_t kErasingMax = 8;
constexpr std::size_t kSweepKeys = 1000;
constexpr std::size_t kBatchObjectsMax = 4096;
constexpr std::size_t kErasedMax = std::size_t{1} << 16;

}  // namespace

void LogKeeper::start(const LogState& state) {
  runs_ = true;
  records_since_ = state.position() - std::min(state.position(), state.newest_snapshot());
  bytes_since_ = 0;
  store_now_.reset();
  ask_again_ = Time{};
  // The owner before may have ended amid the removals.
  if (state.previous_snapshot() == 0) return;
  old_unlisted_ = {Listing::snapshots, Listing::parts};
  if (state.emptied_through() < state.previous_snapshot()) {
    search_ = {.low = state.emptied_through(), .high = state.previous_snapshot()};
  }
}

void LogKeeper::stop() {
  runs_ = false;
  time_asked_.reset();
  stamp_ = {};
  writing_.reset();
  search_.reset();
  emptying_.clear();
  emptied_.clear();
  old_listed_.reset();
  old_unlisted_.clear();
  old_.clear();
  old_removing_.clear();
  erasing_.clear();
  erased_.clear();
  batch_on_its_way_ = sweep_wanted_ = false;
  sweep_page_.reset();
  sweep_after_.clear();
  swept_.clear();
}

void LogKeeper::on_record(std::size_t bytes, const LogState& state) {
  ++records_since_;
  bytes_since_ += bytes;
  const bool due = records_since_ >= options_.records_per_snapshot || bytes_since_ >= options_.bytes_per_snapshot;
  if (!runs_ || writing_ || !due) return;
  Result<Snapshot> snapshot = make_snapshot(state, options_.self.id, ++attempt_, options_.snapshot_part_bytes,
                                            options_.broken != BrokenRule::snapshots_without_tokens);
  records_since_ = bytes_since_ = 0;
  if (!snapshot) return;  // Too large a state. The log goes on without a snapshot.
  writing_ = Writing{.snapshot = std::move(*snapshot), .parts_done = 0, .ticket = std::nullopt};
  write_snapshot();
}

void LogKeeper::on_tick(Time now, LogState& state) {
  if (!runs_) return;
  ask_time(now, state);
  write_snapshot();
  empty_records(state);
  remove_old_snapshots(state);
  erase_condemned(now, state);
  sweep_on();
}

void LogKeeper::ask_time(Time now, const LogState& state) {
  const bool needed = !state.condemned().empty() || !state.tokens().empty();
  if (time_asked_ || !needed || now < ask_again_) return;
  asked_at_ = options_.broken == BrokenRule::stamps_for_later_records ? state.position() + 1000 : state.position();
  time_asked_ = calls_.add(call::AskTime{}, kKeeperCall);
  ask_again_ = now + options_.ask_time;
}

void LogKeeper::write_snapshot() {
  if (!writing_ || writing_->ticket) return;
  const SnapshotHead& head = writing_->snapshot.head;
  const std::size_t part = writing_->parts_done;
  if (part < head.parts.size()) {
    writing_->ticket = calls_.add(call::Create{.key = part_key(head.position, head.writer, head.attempt, part),
                                               .bytes = writing_->snapshot.parts[part]},
                                  kPartCall);
  } else {
    writing_->ticket = calls_.add(call::Create{.key = snapshot_key(head.position), .bytes = encode(head)}, kKeeperCall);
  }
}

void LogKeeper::on_snapshot_answer(const Answer& answer, LogState& state) {
  writing_->ticket.reset();
  // A part's name is of this attempt only, so it is ours. A head that stands is a snapshot of this position, whoever's.
  if (answer.kind != Answer::Kind::created && answer.kind != Answer::Kind::exists) return;
  if (++writing_->parts_done <= writing_->snapshot.head.parts.size()) return write_snapshot();
  on_snapshot_stands(state);
}

void LogKeeper::on_snapshot_stands(LogState& state) {
  state.set_snapshot(writing_->snapshot.head.position);
  writing_.reset();
  if (state.previous_snapshot() == 0) return;
  old_unlisted_ = {Listing::snapshots, Listing::parts};
}

// A snapshot's head knows how far records were emptied when it was made. Else an owner with a short life would look at
// the same ones each time, and come no further. Records are emptied in their order, nearly: one that a killed owner
// left between emptied ones may stay as it is, and harms nobody.
void LogKeeper::search_on(LogState& state) {
  if (!emptying_.empty()) return;
  if (search_->low >= search_->high) {
    state.set_emptied_through(std::max(state.emptied_through(), search_->low));
    search_.reset();
    return empty_records(state);
  }
  const std::uint64_t middle = search_->low + (search_->high - search_->low + 1) / 2;
  emptying_[calls_.add(call::Get{.key = record_key(middle), .bytes_max = kRecordBytesMax}, kKeeperCall)] = {
      .number = middle, .bytes = "", .is_probe = true};
}

void LogKeeper::on_probe(std::uint64_t number, const Answer& answer, LogState& state) {
  if (answer.kind != Answer::Kind::found && answer.kind != Answer::Kind::not_found) return;
  const bool is_found = answer.kind == Answer::Kind::found;
  const Result<Record> read = decode_record(is_found ? answer.bytes : "", number);
  if (is_found && read && !read->emptied) {
    search_->high = number - 1;
  } else {
    search_->low = number;
  }
  search_on(state);
}

void LogKeeper::empty_records(LogState& state) {
  if (search_) return search_on(state);
  std::uint64_t number = state.emptied_through();
  while (emptying_.size() < kEmptyingMax && ++number <= state.previous_snapshot()) {
    const bool known = emptied_.contains(number) ||
                       std::ranges::any_of(emptying_, [&](const auto& one) { return one.second.number == number; });
    if (known) continue;
    emptying_[calls_.add(call::Get{.key = record_key(number), .bytes_max = kRecordBytesMax}, kKeeperCall)] = {
        .number = number, .bytes = ""};
  }
}

void LogKeeper::on_emptied(Emptying record, const Answer& answer, LogState& state) {
  if (record.is_probe) return on_probe(record.number, answer, state);
  bool is_done = answer.kind == Answer::Kind::done;
  if (answer.kind == Answer::Kind::found) {
    Result<Record> read = decode_record(answer.bytes, record.number);
    // A damaged one stays, for people to look at. Nobody needs it: it is in a snapshot.
    is_done = !read || read->emptied;
    if (!is_done) {
      read->emptied = true;
      read->batches.clear();
      read->snapshot = state.newest_snapshot();
      if (options_.broken == BrokenRule::emptied_records_say_nothing) {
        read->writer = {};
        read->sequence = 0;
        read->kind = RecordKind::batches;
      }
      const std::string key = record_key(record.number);
      record.bytes = encode(*read);
      const Ticket ticket = options_.broken == BrokenRule::records_are_deleted
                                ? calls_.add(call::Remove{.key = key}, kKeeperCall)
                                : calls_.add(call::Replace{.key = key, .bytes = record.bytes}, kKeeperCall);
      emptying_[ticket] = std::move(record);
      return;
    }
  } else if (answer.kind == Answer::Kind::not_found) {
    is_done = true;  // Somebody deleted it. It must not be made a second time.
  }
  if (!is_done) return;
  emptied_.insert(record.number);
  while (emptied_.erase(state.emptied_through() + 1) != 0) state.set_emptied_through(state.emptied_through() + 1);
}

void LogKeeper::remove_old_snapshots(const LogState& state) {
  if (!old_listed_ && old_.empty() && old_removing_.empty() && !old_unlisted_.empty()) {
    const Listing what = *old_unlisted_.begin();
    // Names come newest first, so everything behind the previous snapshot's is older.
    const std::string key = snapshot_key(state.previous_snapshot());
    const std::string digits = key.substr(kSnapshotPrefix.size());
    old_listed_ = {
        what == Listing::snapshots
            ? calls_.add(call::List{.prefix = std::string(kSnapshotPrefix), .after = key, .keys_max = kErasingMax},
                         kKeeperCall)
            : calls_.add(call::List{.prefix = std::string(kPartPrefix),
                                    .after = std::string(kPartPrefix) + digits + "0",
                                    .keys_max = kSweepKeys},
                         kKeeperCall),
        what};
  }
  while (!old_.empty() && old_removing_.size() < kErasingMax) {
    old_removing_.insert(calls_.add(call::Remove{.key = std::move(old_.back())}, kKeeperCall));
    old_.pop_back();
  }
}

std::optional<std::int64_t> LogKeeper::time_for(Time now) const {
  if (options_.broken == BrokenRule::grace_by_own_clock) return now.time_since_epoch() / std::chrono::seconds(1);
  return store_now_;
}

void LogKeeper::erase_condemned(Time now, const LogState& state) {
  const std::optional<std::int64_t> time = time_for(now);
  const std::int64_t grace = options_.broken == BrokenRule::no_grace ? 0 : options_.grace_s;
  for (const auto& [name, condemned] : state.condemned()) {
    if (erasing_.size() >= kErasingMax || erased_.size() >= kErasedMax) return;
    const bool due = time && condemned.stamp_unix_s && *time >= *condemned.stamp_unix_s + grace;
    if (!due || erased_.contains(name)) continue;
    if (std::ranges::any_of(erasing_, [&name = name](const auto& one) { return one.second == name; })) continue;
    erasing_[calls_.add(call::Remove{.key = object_key(name)}, kKeeperCall)] = name;
  }
}

void LogKeeper::sweep_on() {
  if (sweep_page_ || !sweep_wanted_) return;
  sweep_page_ = calls_.add(
      call::List{.prefix = std::string(kObjectPrefix), .after = sweep_after_, .keys_max = kSweepKeys}, kKeeperCall);
}

void LogKeeper::on_sweep_page(const Answer& answer, const LogState& state) {
  if (answer.kind != Answer::Kind::done) return;
  // The listing came first. So each listed object's token was granted before, and the state knows it, if it lives: the
  // batch that condemns is a record of this owner after the listing. A token that does not live never lives again.
  for (const std::string& key : answer.keys) {
    const auto name = parse_object_key(key);
    if (!name || state.names_of(*name) != 0 || state.condemned().contains(*name)) continue;
    if (state.tokens().contains(name->token) && options_.broken != BrokenRule::live_uploads_are_swept) continue;
    swept_.insert(*name);
  }
  sweep_wanted_ = answer.more && !answer.keys.empty();
  sweep_after_ = sweep_wanted_ ? answer.keys.back() : "";
}

std::optional<Batch> LogKeeper::take_batch(const LogState& state) {
  if (!runs_ || batch_on_its_way_) return std::nullopt;
  Batch batch;
  batch.stamp = std::exchange(stamp_, Stamp());
  for (const auto& [id, token] : state.tokens()) {
    const bool over = store_now_ && token.stamp_unix_s && *store_now_ >= *token.stamp_unix_s + token.life_s;
    if (over && batch.ends.size() < kBatchObjectsMax) batch.ends.push_back(id);
  }
  const bool early = options_.broken == BrokenRule::condemned_objects_are_forgotten_early;
  for (auto name = erased_.begin(); name != erased_.end();) {
    if (!state.condemned().contains(*name)) {
      name = erased_.erase(name);
      continue;
    }
    // While its token lives, its uploader might name it again.
    const bool may = early || !state.tokens().contains(name->token);
    if (may && batch.forgotten.size() < kBatchObjectsMax) batch.forgotten.push_back(*name);
    ++name;
  }
  while (!swept_.empty() && batch.condemned.size() < kBatchObjectsMax) {
    const ObjectName name = *swept_.begin();
    swept_.erase(swept_.begin());
    if (state.names_of(name) == 0 && !state.condemned().contains(name)) batch.condemned.push_back(name);
  }
  if (batch == Batch()) return std::nullopt;
  batch_on_its_way_ = true;
  return batch;
}

bool LogKeeper::on_answer(Ticket ticket, const Answer& answer, Time now, LogState& state) {
  if (time_asked_ == ticket) {
    time_asked_.reset();
    if (answer.kind != Answer::Kind::done) return true;
    store_now_ = answer.unix_s;
    // A record that came after the question may be later than the answer.
    const std::int64_t time = *time_for(now);
    if (time > 0 && time <= kStampMax && state.needs_stamp(asked_at_)) stamp_ = {.unix_s = time, .through = asked_at_};
  } else if (writing_ && writing_->ticket == ticket) {
    on_snapshot_answer(answer, state);
  } else if (const auto record = emptying_.find(ticket); record != emptying_.end()) {
    Emptying one = std::move(record->second);
    emptying_.erase(record);
    on_emptied(std::move(one), answer, state);
  } else if (old_listed_ && old_listed_->first == ticket) {
    if (answer.kind == Answer::Kind::done) {
      old_ = answer.keys;
      if (!answer.more) old_unlisted_.erase(old_listed_->second);
    }
    old_listed_.reset();
  } else if (old_removing_.erase(ticket) != 0) {
    // One that failed is removed after a later snapshot.
  } else if (const auto object = erasing_.find(ticket); object != erasing_.end()) {
    if (answer.kind == Answer::Kind::done) erased_.insert(object->second);
    erasing_.erase(object);
  } else if (sweep_page_ == ticket) {
    sweep_page_.reset();
    on_sweep_page(answer, state);
  } else {
    return false;
  }
  return true;
}

}  // namespace freshet::log
