// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_tail.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::log {
namespace {

/// The newest snapshot's name is the first one; some of the first may be of objects that never came to be.
constexpr std::size_t kNewestNames = 32;

constexpr Duration kTailCall = std::chrono::milliseconds(1500);
/// A look is short. But a large record is on its way for longer on a slow line: each try that comes to nothing has a
/// longer successor.
constexpr Duration kTailCallMax = std::chrono::seconds(12);
/// But a request that was lost while the store was away would cost as long once the store is back. So a short read goes
/// beside a long one, again and again. One that finds a larger record tells that the store answers; reads of this
/// record then have the line to themselves, or a slow line would never carry it.
constexpr std::uint64_t kBriefBytesMax = std::uint64_t{64} << 10;
constexpr Duration kSnapshotCall = std::chrono::seconds(30);
constexpr Duration kTailPause = std::chrono::milliseconds(200);
constexpr std::uint64_t kWindowMax = 32;
constexpr std::size_t kPartsAtATime = 4;
// A snapshot that is gone has a newer one in its place. A listing that does not know the newer one yet soon does.
constexpr int kMissesMax = 100;

}  // namespace

void LogTail::on_tick(Time now) {
  if (error_) return;
  if (asked_.empty() && now >= due_) return ask(now);
  const bool is_long = phase_ == Phase::looks && !asked_.empty() && record_call_ > kTailCall;
  if (is_long && now >= brief_due_ && state_.position() + 1 != large_) ask_briefly(now);
}

void LogTail::look(Time now, Duration every) {
  every_ = every;
  if (error_) return;
  if (phase_ == Phase::looks) forget_asked();
  if (asked_.empty()) ask(now);
}

void LogTail::forget_asked() {
  asked_.clear();
  arrived_.clear();
  asked_to_ = 0;
  window_ = 1;
  brief_.reset();
}

void LogTail::ask(Time now) {
  due_ = now + every_;
  switch (phase_) {
    case Phase::listing:
      asked_[calls_.add(call::List{.prefix = std::string(kSnapshotPrefix), .after = "", .keys_max = kNewestNames},
                        kTailCall)] = {.number = 0, .start = now};
      return;
    case Phase::head:
      asked_[calls_.add(call::Get{.key = snapshot_key(snapshot_), .bytes_max = kSnapshotHeadBytesMax}, kTailCall)] = {
          .number = 0, .start = now};
      return;
    case Phase::parts: return ask_parts(now);
    case Phase::looks: return ask_records(now);
  }
}

void LogTail::ask_records(Time now) {
  brief_due_ = now + kTailCall;
  asked_to_ = std::max(asked_to_, state_.position());
  while (asked_to_ < state_.position() + window_) {
    const std::uint64_t number = ++asked_to_;
    asked_[calls_.add(call::Get{.key = record_key(number), .bytes_max = kRecordBytesMax}, record_call_)] = {
        .number = number, .start = now};
  }
}

void LogTail::ask_briefly(Time now) {
  brief_due_ = now + kTailCall;
  const std::uint64_t number = state_.position() + 1;
  brief_.emplace(calls_.add(call::Get{.key = record_key(number), .bytes_max = kBriefBytesMax}, kTailCall),
                 Asked{.number = number, .start = now});
}

bool LogTail::takes_brief(const Asked& asked, const Answer& answer, Time now) {
  if (phase_ != Phase::looks || asked.number != state_.position() + 1) return false;
  const bool is_large = answer.kind == Answer::Kind::failed && answer.error.code() == Code::out_of_space;
  if (answer.kind == Answer::Kind::failed && !is_large) return false;  // The long read tells why.
  forget_asked();
  if (!is_large) return true;
  large_ = asked.number;
  ask_records(now);
  return false;
}

void LogTail::ask_parts(Time now) {
  while (parts_asked_ < parts_.size() && asked_.size() < kPartsAtATime) {
    const std::size_t part = parts_asked_++;
    if (parts_[part]) continue;
    asked_[calls_.add(call::Get{.key = part_key(head_.position, head_.writer, head_.attempt, part),
                                .bytes_max = head_.parts[part].bytes},
                      kSnapshotCall)] = {.number = part, .start = now};
  }
}

void LogTail::restart(std::uint64_t snapshot, Time now) {
  snapshot_ = snapshot;
  phase_ = snapshot == 0 ? Phase::listing : Phase::head;
  asked_.clear();
  arrived_.clear();
  parts_.clear();
  window_ = 1;
  end_seen_.reset();
  end_answered_.reset();
  ask(now);
}

void LogTail::retry_restart(Time now, std::string_view why) {
  trouble_ = Error(Code::unavailable, std::string(why));
  if (++misses_ >= kMissesMax) {
    return stop(Error(Code::corrupt,
                      format("the repository's log begins with emptied records, and {} (a snapshot of record {} or "
                             "later): objects of the repository were removed",
                             why, state_.position() + 1)));
  }
  phase_ = Phase::listing;
  asked_.clear();
  parts_.clear();
  due_ = now + kTailPause;
}

bool LogTail::on_answer(Ticket ticket, Answer& answer, Time now, std::vector<Seen>& seen) {
  Asked asked;
  if (brief_ && brief_->first == ticket) {
    asked = std::exchange(brief_, std::nullopt)->second;
    if (error_ || !takes_brief(asked, answer, now)) return true;
  } else {
    const auto found = asked_.find(ticket);
    if (found == asked_.end()) return false;
    asked = found->second;
    asked_.erase(found);
    if (error_) return true;
  }
  if (answer.kind == Answer::Kind::failed && answer.error.code() == Code::out_of_space) {
    // No try reads it: no member makes so large an object.
    stop(Error(Code::corrupt, "Freshet did not write an object of the repository's log: " + answer.error.message()));
    return true;
  }
  if (answer.kind == Answer::Kind::failed) {
    trouble_ = answer.error;
    if (phase_ == Phase::looks) {
      record_call_ = std::min<Duration>(2 * record_call_, kTailCallMax);
      forget_asked();  // Later records that are still on their way are asked for again.
    } else if (phase_ == Phase::parts) {
      parts_asked_ = 0;
      asked_.clear();
    }
    due_ = now + kTailPause;
    return true;
  }
  trouble_.reset();
  record_call_ = kTailCall;
  switch (phase_) {
    case Phase::listing: on_listing(answer, now); break;
    case Phase::head: on_head(answer, now); break;
    case Phase::parts: on_part(asked.number, answer, now); break;
    case Phase::looks:
      if (asked.number > state_.position()) {
        arrived_[asked.number] = {.answer = std::move(answer), .start = asked.start};
      }
      read_on(now, seen);
      break;
  }
  return true;
}

void LogTail::on_listing(const Answer& answer, Time now) {
  const auto position = answer.keys.empty() ? std::nullopt : parse_snapshot_key(answer.keys.front());
  if (!position && state_.position() == 0 && misses_ == 0 && snapshot_ == 0) {
    // There is no snapshot, or the listing does not know it yet: record 1 tells.
    phase_ = Phase::looks;
    return ask(now);
  }
  if (!position || *position <= state_.position() || *position < snapshot_) {
    return retry_restart(now, "no newer snapshot is listed");
  }
  snapshot_ = *position;
  phase_ = Phase::head;
  ask(now);
}

void LogTail::on_head(const Answer& answer, Time now) {
  if (answer.kind != Answer::Kind::found) return retry_restart(now, "a snapshot is gone");
  Result<SnapshotHead> head = decode_snapshot_head(answer.bytes, snapshot_);
  if (!head) return stop(std::move(head).error());
  head_ = std::move(*head);
  parts_.assign(head_.parts.size(), std::nullopt);
  parts_asked_ = 0;
  phase_ = Phase::parts;
  if (parts_.empty()) return load(now);
  ask(now);
}

void LogTail::on_part(std::uint64_t part, Answer& answer, Time now) {
  if (answer.kind != Answer::Kind::found) return retry_restart(now, "a part of a snapshot is gone");
  parts_[part] = std::move(answer.bytes);
  if (std::ranges::all_of(parts_, [](const auto& one) { return one.has_value(); })) return load(now);
  ask_parts(now);
}

void LogTail::load(Time now) {
  std::vector<std::string> parts;
  parts.reserve(parts_.size());
  for (auto& part : parts_) parts.push_back(std::move(*part));
  parts_.clear();
  Result<LogState> state = load_snapshot(head_, parts);
  if (!state) return stop(std::move(state).error());
  state_ = std::move(*state);
  phase_ = Phase::looks;
  misses_ = 0;
  asked_to_ = 0;
  ask(now);
}

void LogTail::read_on(Time now, std::vector<Seen>& seen) {
  bool progress = false;
  for (auto next = arrived_.find(state_.position() + 1); next != arrived_.end();
       next = arrived_.find(state_.position() + 1)) {
    const Arrived arrived = std::move(next->second);
    arrived_.erase(next);
    if (arrived.answer.kind != Answer::Kind::found) {
      forget_asked();  // The end. Whatever was asked for beyond it is of no use.
      end_seen_ = arrived.start;
      end_answered_ = now;
      due_ = now + every_;
      return;
    }
    if (!read_one(arrived.answer, now, seen)) return;
    progress = true;
  }
  if (!progress) return;
  window_ = std::min(2 * window_, kWindowMax);
  ask_records(now);
}

bool LogTail::read_one(const Answer& answer, Time now, std::vector<Seen>& seen) {
  Result<Record> record = decode_record(answer.bytes, state_.position() + 1);
  if (!record) {
    stop(std::move(record).error());
    return false;
  }
  seen.push_back({.number = record->number,
                  .writer = record->writer,
                  .sequence = record->sequence,
                  .kind = record->kind,
                  .emptied = record->emptied});
  if (record->emptied && options_.broken == BrokenRule::emptied_records_are_skipped) record->emptied = false;
  if (record->emptied) {
    restart(record->snapshot, now);
    return false;
  }
  if (const Status status = state_.apply(*record, options_.broken); !status) {
    stop(status.error());
    return false;
  }
  return true;
}

Status LogTail::apply_own(const Record& record) {
  if (const Status status = state_.apply(record, options_.broken); !status) {
    stop(status.error());
    return status;
  }
  while (!arrived_.empty() && arrived_.begin()->first <= state_.position()) arrived_.erase(arrived_.begin());
  return {};
}

}  // namespace freshet::log
