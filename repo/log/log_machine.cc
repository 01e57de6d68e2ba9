// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_machine.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::log {
namespace {

constexpr Duration kLookOfClaim = std::chrono::milliseconds(200);

}  // namespace

LogMachine::LogMachine(LogOptions options, Time now)
    : options_(std::move(options)), tail_(options_, calls_), appender_(calls_), keeper_(options_, calls_) {
  tail_.look(now, look_every());
}

Duration LogMachine::look_every() const { return role_ == Role::claims ? kLookOfClaim : options_.look; }

void LogMachine::on_tick(Time now) {
  if (error()) return;
  tail_.on_tick(now);
  appender_.on_tick(now);
  if (role_ == Role::owns) keeper_.on_tick(now, tail_.state());
  end_late_batches(now);
  update(now);
}

void LogMachine::on_answer(Ticket ticket, Answer answer, Time now) {
  if (error()) return;
  const Appender::Step step = appender_.on_answer(ticket, answer, now);
  if (step == Appender::Step::created) {
    on_stands(true, false, now);
  } else if (step == Appender::Step::exists) {
    if (options_.broken == BrokenRule::any_record_settles) {
      on_stands(false, false, now);
    } else {
      tail_.look(now, look_every());
    }
  } else if (step == Appender::Step::other && !keeper_.on_answer(ticket, answer, now, tail_.state())) {
    std::vector<Seen> seen;
    const std::optional<Time> seen_before = tail_.end_seen();
    if (!tail_.on_answer(ticket, answer, now, seen)) return;
    on_seen(seen, now);
    const std::optional<Time>& end_seen = tail_.end_seen();
    if (end_seen && end_seen != seen_before) {
      has_seen_end_ = true;
      // Behind a challenge without an answer, another member may own the log at any moment.
      const bool counts = tail_.state().challenges().empty() || options_.broken == BrokenRule::challenged_looks_count;
      const Time look = options_.broken == BrokenRule::looks_count_from_their_end ? *tail_.end_answered() : *end_seen;
      if (counts) look_counted_ = std::max(look_counted_.value_or(look), look);
      if (options_.broken == BrokenRule::a_miss_settles && appender_.is_busy() &&
          appender_.can_be_given_up() == false && appender_.trouble()) {
        appender_.end();
        for (Waiting& one : in_flight_) tell(one, BatchEnd::Outcome::not_applied, Error(Code::timed_out, "no record"));
        in_flight_.clear();
      }
    }
  }
  update(now);
}

void LogMachine::on_seen(const std::vector<Seen>& seen, Time now) {
  for (const Seen& one : seen) {
    if (!appender_.is_busy() || appender_.record().number != one.number) continue;
    const bool own = one.writer == appender_.record().writer && one.sequence == appender_.record().sequence;
    if (own) {
      on_stands(false, one.emptied, now);
    } else {
      on_displaced();
    }
  }
}

// The record in flight stands at its number. The tail has applied it, if the tail read it there.
void LogMachine::on_stands(bool counts_as_look, bool is_emptied, Time now) {
  const Time start = appender_.start();
  const Record record = appender_.end();
  if (!is_emptied && tail_.state().position() < record.number && !tail_.apply_own(record)) return;
  // Nothing stood at this number when the creation began. One that was settled later says nothing about the end.
  if (counts_as_look || options_.broken == BrokenRule::settled_creations_count) {
    look_counted_ = std::max(look_counted_.value_or(start), start);
    has_seen_end_ = true;
  }
  std::size_t bytes = 0;
  for (Waiting& one : in_flight_) {
    bytes += one.bytes;
    tell(one, BatchEnd::Outcome::applied, Error(Code::unavailable, ""));
  }
  in_flight_.clear();
  if (is_emptied) return;
  if (record.kind == RecordKind::challenge && role_ == Role::claims) {
    claim_ = Claim::waits;
    challenge_stands_ = now;
  }
  const auto& owner = tail_.state().owner();
  const bool owns = owner && owner->id == options_.self.id && tail_.state().position() == record.number;
  if (role_ == Role::owns && owns) keeper_.on_record(bytes, tail_.state());
}

// Another record stands at the number. What was in flight is not applied there, and may be tried at another one.
void LogMachine::on_displaced() {
  appender_.end();
  while (!in_flight_.empty()) {
    Waiting one = std::move(in_flight_.back());
    in_flight_.pop_back();
    if (one.is_told) continue;  // Its caller was told "unknown", and has no use for it.
    waiting_bytes_ += one.bytes;
    waiting_.push_front(std::move(one));
  }
}

void LogMachine::update(Time now) {
  if (error() || tail_.is_restarting()) return;
  const auto& owner = tail_.state().owner();
  const bool owns = owner && owner->id == options_.self.id;
  if (role_ == Role::claims) update_claim(now);
  if ((role_ == Role::owns || role_ == Role::ending) && !owns) on_lost();
  if (role_ == Role::owns || role_ == Role::ending) compose(now);
}

void LogMachine::claim(Time now) {
  if (role_ != Role::follows || error()) return;
  role_ = Role::claims;
  claim_ = Claim::looks;
  claim_begun_ = now;
  claim_error_.reset();
  gives_up_ = false;
  tail_.look(now, look_every());
}

void LogMachine::update_claim(Time now) {
  const LogState& state = tail_.state();
  const auto& owner = state.owner();
  if (owner && owner->id == options_.self.id) return on_owned(now);
  if (appender_.is_busy()) return;
  if (gives_up_) return end_claim(Error(Code::cancelled, "the claim was given up"));
  if (claim_ == Claim::looks) {
    if (!tail_.end_seen() || *tail_.end_seen() < claim_begun_) return;
    claim_ = owner ? Claim::challenges : Claim::takes;
    return begin_record(owner ? RecordKind::challenge : RecordKind::ownership, now);
  }
  if (!owner) {
    claim_ = Claim::takes;
    return begin_record(RecordKind::ownership, now);
  }
  // Another record came first.
  if (claim_ == Claim::challenges) return begin_record(RecordKind::challenge, now);
  if (!state.challenges().contains(options_.self.id)) {
    return end_claim(Error(Code::unavailable, owner_text() + " owns the repository, and lives"));
  }
  const Duration wait = options_.broken == BrokenRule::challengers_do_not_wait ? Duration::zero() : options_.challenge;
  if (now - challenge_stands_ < wait) return;
  claim_ = Claim::takes;
  begin_record(RecordKind::ownership, now);
}

void LogMachine::begin_record(RecordKind kind, Time now) {
  Record record{.number = tail_.state().position() + 1,
                .writer = options_.self.id,
                .sequence = ++sequence_,
                .kind = kind,
                .address = {},
                .public_key = {},
                .batches = {},
                .emptied = false,
                .snapshot = 0};
  if (kind == RecordKind::challenge || kind == RecordKind::ownership) {
    record.address = options_.self.address;
    record.public_key = options_.self.public_key;
  }
  if (kind == RecordKind::ownership) {
    // An ownership that was tried before may stand, and be over already; so may a renewal in it. No token comes twice.
    own_tokens_ += 2;
    record.batches.push_back({.grants = {{.token = own_token(), .life_s = options_.own_token_life_s}},
                              .changes = {},
                              .ends = {},
                              .condemned = {},
                              .forgotten = {}});
  }
  for (const Waiting& one : in_flight_) record.batches.push_back(one.batch);
  appender_.begin(std::move(record), now);
}

void LogMachine::end_claim(Error error) {
  role_ = Role::follows;
  tail_.set_pause(look_every());
  claim_error_ = std::move(error);
}

void LogMachine::on_owned(Time now) {
  renewal_due_ = now + std::chrono::seconds(options_.own_token_life_s) / 2;
  renewal_waits_ = false;
  role_ = gives_up_ ? Role::ending : Role::owns;
  tail_.set_pause(look_every());
  keeper_.start(tail_.state());
}

LogId LogMachine::own_token() const {
  return {.high = options_.first_token.high, .low = options_.first_token.low + own_tokens_};
}

void LogMachine::on_lost() {
  const bool ended = role_ == Role::ending;
  role_ = Role::follows;
  look_counted_.reset();
  keeper_.stop();
  const std::string why = tail_.state().owner() ? owner_text() + " owns the repository now"
                          : ended               ? "the repository was given up"
                                                : "nobody owns the repository";
  // Its number is taken by a record of another member, so it stands nowhere.
  if (appender_.is_busy()) on_displaced();
  for (Waiting& one : waiting_) tell(one, BatchEnd::Outcome::not_applied, Error(Code::unavailable, why));
  waiting_.clear();
  waiting_bytes_ = 0;
}

void LogMachine::compose(Time now) {
  if (appender_.is_busy()) return;
  const LogState& state = tail_.state();
  if (role_ == Role::owns) queue_own_batches(now);
  BatchCheck check(state, options_.broken);
  std::size_t bytes = 0;
  while (!waiting_.empty() && in_flight_.size() + 1 < kBatchesMax && bytes + waiting_.front().bytes <= kBatchBytesMax) {
    Waiting one = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= one.bytes;
    in_flight_.push_back(std::move(one));
    std::vector<ObjectName> orphans;
    Batch& batch = in_flight_.back().batch;
    const Status status = check.add(batch, &orphans);
    if (!status) {
      tell(in_flight_.back(), BatchEnd::Outcome::not_applied, status.error());
      in_flight_.pop_back();
      continue;
    }
    batch.condemned.insert(batch.condemned.end(), orphans.begin(), orphans.end());
    bytes += in_flight_.back().bytes;
  }
  const bool ends = role_ == Role::ending && in_flight_.empty() && waiting_.empty();
  if (!ends && in_flight_.empty() && state.challenges().empty()) return;
  begin_record(ends ? RecordKind::end : RecordKind::batches, now);
}

// What the owner appends for itself.
void LogMachine::queue_own_batches(Time now) {
  const auto queue = [this, now](From from, Batch batch) {
    const std::size_t bytes = size_of(batch);
    waiting_.push_back(
        {.number = 0, .from = from, .batch = std::move(batch), .bytes = bytes, .deadline = now + options_.append});
    waiting_bytes_ += bytes;
  };
  if (auto batch = keeper_.take_batch(tail_.state())) queue(From::keeper, std::move(*batch));
  if (renewal_waits_ || now < renewal_due_) return;
  Batch renewal;
  LogId next = own_token();
  ++next.low;
  renewal.grants.push_back({.token = next, .life_s = options_.own_token_life_s});
  renewal_waits_ = true;
  renewal_due_ = now + std::chrono::seconds(options_.own_token_life_s) / 2;
  queue(From::renewal, std::move(renewal));
}

void LogMachine::give_up(Time now) {
  if (role_ == Role::owns) role_ = Role::ending;
  gives_up_ = true;
  update(now);
}

Result<std::uint64_t> LogMachine::append(Batch batch, Time now) {
  if (error()) return fail(*error());
  if (role_ != Role::owns) {
    return fail(Code::failed_precondition, "this process does not own the repository's log: it cannot append");
  }
  FRESHET_TRY(check_batch_size(batch));
  const std::size_t bytes = size_of(batch);
  if (waiting_.size() >= options_.waiting_batches_max || waiting_bytes_ + bytes > options_.waiting_bytes_max) {
    return fail(Code::unavailable, format("{} batches wait for the object store already", waiting_.size()));
  }
  waiting_.push_back({.number = ++last_batch_,
                      .from = From::caller,
                      .batch = std::move(batch),
                      .bytes = bytes,
                      .deadline = now + options_.append + time_to_carry(bytes)});
  waiting_bytes_ += bytes;
  update(now);
  return last_batch_;
}

bool LogMachine::may_answer(Time now) const {
  const bool owns =
      role_ == Role::owns || (role_ == Role::ending && options_.broken == BrokenRule::ending_owners_answer);
  if (!owns || error() || tail_.is_restarting()) return false;
  if (options_.broken == BrokenRule::answers_without_looks) return true;
  return look_counted_ && now - *look_counted_ < options_.answers;
}

void LogMachine::end_late_batches(Time now) {
  while (!waiting_.empty() && waiting_.front().deadline <= now) {
    Waiting& one = waiting_.front();
    waiting_bytes_ -= one.bytes;
    tell(one, BatchEnd::Outcome::not_applied,
         Error(Code::timed_out, trouble() ? trouble()->message() : "the object store was too slow"));
    waiting_.pop_front();
  }
  const bool late = std::ranges::any_of(in_flight_, [now](const Waiting& one) { return one.deadline <= now; });
  if (!late) return;
  const bool never = appender_.can_be_given_up();
  const Error error = appender_.trouble().value_or(Error(Code::timed_out, "the object store did not answer"));
  for (Waiting& one : in_flight_) {
    if (never) {
      tell(one, BatchEnd::Outcome::not_applied, error);
    } else if (one.deadline <= now) {
      tell(one, BatchEnd::Outcome::unknown, Error(Code::timed_out, error.message()));
    }
  }
  if (!never) return;
  appender_.end();
  in_flight_.clear();
}

void LogMachine::tell(Waiting& waiting, BatchEnd::Outcome outcome, Error error) {
  if (waiting.is_told) return;
  if (waiting.from != From::caller) {
    // The owner's own batch stays in flight until it is settled.
    if (outcome == BatchEnd::Outcome::unknown) return;
    if (waiting.from == From::keeper) keeper_.on_batch_end();
    if (waiting.from == From::renewal) {
      renewal_waits_ = false;
      if (outcome == BatchEnd::Outcome::applied) ++own_tokens_;
      if (outcome != BatchEnd::Outcome::applied) renewal_due_ = Time{};  // Again, at once.
    }
  } else {
    ends_.push_back({.batch = waiting.number, .outcome = outcome, .error = std::move(error)});
  }
  waiting.is_told = true;
}

std::string LogMachine::owner_text() const {
  const auto& owner = tail_.state().owner();
  if (!owner) return "nobody";
  return owner->address.empty() ? "a process without an address" : "the process at " + owner->address;
}

}  // namespace freshet::log
