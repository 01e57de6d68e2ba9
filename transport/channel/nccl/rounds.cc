// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/nccl/rounds.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::channel::nccl {
namespace {

constexpr int kRoundDoublingsMax = 10;

}  // namespace

std::uint64_t Rounds::Round::finished() const {
  std::uint64_t least = sent;
  for (const auto& [member, seat] : seats) least = std::min(least, seat.took);
  return least;
}

void Rounds::on_waits(Member member, bool waits, Time now) {
  Known& known = known_[member];
  if (waits && !known.waits) known.since = now;
  known.waits = waits;
  if (!waits || known.round == 0) return;
  const auto round = rounds_.find(known.round);
  if (round != rounds_.end()) round->second.seats[member].behind = false;
}

void Rounds::on_gone(Member member) {
  for (auto& [number, round] : rounds_) round.broken = round.broken || round.seats.contains(member);
  known_.erase(member);
}

void Rounds::on_left(Member member, Number number, Time now) {
  const auto round = rounds_.find(number);
  if (round == rounds_.end() || !round->second.seats.contains(member)) return;
  round->second.broken = true;
  penalize(member, now);
}

Status Rounds::on_took(Member member, Number number, std::uint64_t transfers, Time now) {
  const auto round = rounds_.find(number);
  if (round == rounds_.end()) return {};  // It has ended meanwhile.
  const auto seat = round->second.seats.find(member);
  if (seat == round->second.seats.end() || transfers < seat->second.took || transfers > round->second.begun) {
    return fail(Code::corrupt, format("transfer {} of round {} was taken, and not made", transfers, number));
  }
  const std::uint64_t before = round->second.finished();
  seat->second.took = transfers;
  seat->second.heard = now;
  known_[member].failures = 0;
  advance(round->second, before, now);
  return {};
}

void Rounds::on_open(Number number, Time now) {
  const auto round = rounds_.find(number);
  if (round == rounds_.end() || round->second.open) return;
  round->second.open = true;
  round->second.used = now;
  for (auto& [member, seat] : round->second.seats) seat.heard = now;
}

void Rounds::on_sent(Number number, std::uint64_t transfers, Time now) {
  const auto round = rounds_.find(number);
  if (round == rounds_.end()) return;
  const std::uint64_t before = round->second.finished();
  round->second.sent = transfers;
  advance(round->second, before, now);
}

/// Each transfer that is finished gives the next as long again.
void Rounds::advance(Round& round, std::uint64_t finished_before, Time now) {
  if (round.finished() != finished_before) round.deadline = now + round.allowed;
}

void Rounds::on_failed(Number number, Time now) {
  const auto round = rounds_.find(number);
  if (round == rounds_.end() || round->second.broken) return;
  round->second.broken = true;
  for (const auto& [member, seat] : round->second.seats) penalize(member, now);
}

void Rounds::on_begun(Number number, std::uint64_t bytes, Time now) {
  Round& round = rounds_.at(number);
  if (round.is_quiet() && may_meet(round, now)) may_meet_from_ = now + limits_.lately;  // It waited in vain.
  const std::chrono::duration<double> floor(static_cast<double>(bytes) /
                                            static_cast<double>(limits_.floor_bytes_per_second));
  round.allowed = limits_.transfer + std::chrono::duration_cast<Duration>(floor);
  if (round.finished() == round.begun++) round.deadline = now + round.allowed;
  round.used = now;
  for (auto& [member, seat] : round.seats) seat.behind = !known_[member].waits;
}

void Rounds::penalize(Member member, Time now) {
  const auto known = known_.find(member);
  if (known == known_.end()) return;
  const int doublings = std::min(known->second.failures++, kRoundDoublingsMax);
  known->second.paused_until = now + std::min<Duration>(limits_.pause_min * (1 << doublings), limits_.pause_max);
}

bool Rounds::goes_by_messages(Member member, Time now) const {
  const auto known = known_.find(member);
  if (known == known_.end()) return is_full();
  return now < known->second.paused_until || (known->second.round == 0 && is_full());
}

Time Rounds::first_wish(const Round& round) const {
  Time first = Time::max();
  for (const auto& [member, seat] : round.seats) {
    const Known& known = known_.at(member);
    if (known.waits) first = std::min(first, known.since);
  }
  return first;
}

/// Whether there is another that would fit into one round with it.
bool Rounds::may_meet(const Round& round, Time now) const {
  return now >= may_meet_from_ && std::ranges::any_of(rounds_, [&](const auto& entry) {
           const Round& other = entry.second;
           return &other != &round && other.open && !other.broken &&
                  round.seats.size() + other.seats.size() <= limits_.members_max;
         });
}

void Rounds::meet(Time now) {
  Time first = Time::max();
  std::size_t members = 0;
  std::vector<Round*> meeting;
  for (auto& [number, round] : rounds_) {
    if (round.broken || !round.is_quiet() || members + round.seats.size() > limits_.members_max) continue;
    // A member that does not wait would be left out of the new round.
    const bool all_wait =
        std::ranges::all_of(round.seats, [&](const auto& seat) { return known_.at(seat.first).waits; });
    if (!all_wait || !may_meet(round, now)) continue;
    first = std::min(first, first_wish(round));
    members += round.seats.size();
    meeting.push_back(&round);
  }
  if (meeting.size() < 2 || now < first + limits_.gather) return;
  for (Round* const round : meeting) round->met = true;
  may_meet_from_ = now + limits_.meet_again;
}

bool Rounds::is_over(Round& round, Time now) {
  if (round.broken || round.met) return true;
  if (!round.is_quiet()) {
    if (!is_late(round, now)) return false;
    for (const auto& [member, seat] : round.seats) {
      if (!round.open || round.sent < round.begun || seat.took < round.begun) penalize(member, now);
    }
    return true;
  }
  if (now >= round.used + limits_.unused) return true;
  const Time first = first_wish(round);
  if (first == Time::max() || now < first + limits_.gather) return false;
  // Somebody waits, and a member that does not was not heard either.
  return std::ranges::any_of(round.seats, [&](const auto& entry) {
    return !known_.at(entry.first).waits && now >= entry.second.heard + limits_.lately;
  });
}

void Rounds::end(Round& round) {
  for (const auto& [member, seat] : round.seats) {
    if (const auto known = known_.find(member); known != known_.end()) known->second.round = 0;
  }
}

Rounds::Steps Rounds::step(Time now) {
  Steps steps;
  meet(now);
  for (auto at = rounds_.begin(); at != rounds_.end();) {
    if (!is_over(at->second, now)) {
      ++at;
      continue;
    }
    if (is_late(at->second, now)) steps.late.push_back(at->first);
    end(at->second);
    steps.ended.push_back(at->first);
    closing_.insert(at->first);
    at = rounds_.erase(at);
  }
  Time first = Time::max();
  for (const auto& [member, known] : known_) {
    if (is_free(known, now)) first = std::min(first, known.since);
  }
  if (first == Time::max() || now < first + limits_.gather) return steps;
  for (auto& [member, known] : known_) {
    if (!is_free(known, now)) continue;
    if (steps.formed.empty() || steps.formed.rbegin()->second.size() == limits_.members_max) {
      if (is_full()) break;
      steps.formed[++last_] = {};
      rounds_[last_].deadline = now + limits_.join;
    }
    steps.formed[last_].push_back(member);
    rounds_[last_].seats[member] = {};
    known.round = last_;
  }
  return steps;
}

bool Rounds::may_carry(Number number, Time now) const {
  const auto found = rounds_.find(number);
  if (found == rounds_.end()) return false;
  const Round& round = found->second;
  if (!round.open || round.broken || round.begun - round.finished() >= limits_.transfers_in_flight) return false;
  const Time first = first_wish(round);
  if (first == Time::max()) return false;
  const bool is_gathered = now >= first + limits_.gather;
  if (!is_gathered && round.is_quiet() && may_meet(round, now)) return false;
  return std::ranges::all_of(round.seats, [&](const auto& entry) {
    const auto& [member, seat] = entry;
    if (known_.at(member).waits) return true;
    return (seat.behind || is_gathered) && now < seat.heard + limits_.lately;
  });
}

Time Rounds::due() const {
  Time due = Time::max();
  for (const auto& [number, round] : rounds_) {
    if (round.broken) return Time{};
    const bool is_quiet = round.is_quiet();
    due = std::min(due, is_quiet ? round.used + limits_.unused : round.deadline);
    const Time first = is_quiet ? first_wish(round) : Time::max();
    if (first == Time::max()) continue;
    due = std::min(due, first + limits_.gather);
    for (const auto& [member, seat] : round.seats) {
      if (!known_.at(member).waits) due = std::min(due, std::max(first + limits_.gather, seat.heard + limits_.lately));
    }
  }
  for (const auto& [member, known] : known_) {
    if (known.waits && known.round == 0)
      due = std::min(due, std::max(known.since + limits_.gather, known.paused_until));
  }
  return due;
}

}  // namespace freshet::channel::nccl
