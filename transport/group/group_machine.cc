// SPDX-License-Identifier: Apache-2.0
#include "transport/group/group_machine.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::group {
namespace {

/// How many agreements may wait at rank 0: a rank is at most one ahead of another.
constexpr std::size_t kAgreementsMax = 4;

std::string ranks_in_words(const std::vector<Rank>& ranks) {
  constexpr std::size_t kNamedMax = 8;
  std::string words = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    words += format("{}{}", i == 0 ? " " : ", ", ranks[i]);
  }
  if (ranks.size() > kNamedMax) words += format(" and {} more", ranks.size() - kNamedMax);
  return words;
}

}  // namespace

GroupMachine::GroupMachine(Self self, Times times, Time now)
    : self_(std::move(self)), times_(times), began_(now), next_ping_(now), last_tick_(now) {
  if (is_hub()) {
    here_.emplace(0, self_.peer);
  } else {
    heard_[0] = now;
  }
}

Message GroupMachine::message_of(Kind kind, std::uint64_t number) const {
  return {.kind = kind, .from = self_.rank, .number = number};
}

void GroupMachine::send_to_all(const Message& message, Outcome& outcome) const {
  for (Rank rank = 1; rank < self_.ranks; ++rank) outcome.sends.push_back({rank, message});
}

void GroupMachine::end(Error why, Outcome& outcome) {
  if (over_) return;
  over_ = why;
  outcome.ended = std::move(why);
}

void GroupMachine::lose(std::vector<Rank> ranks, std::string_view how, Outcome& outcome) {
  if (over_ || ranks.empty()) return;
  if (is_hub()) {
    Message message = message_of(Kind::lost);
    message.ranks = ranks;
    for (Rank rank = 1; rank < self_.ranks; ++rank) {
      if (std::ranges::find(ranks, rank) == ranks.end()) outcome.sends.push_back({rank, message});
    }
  }
  Error why(Code::unavailable, format("{} {}", ranks_in_words(ranks), how));
  lost_ = std::move(ranks);
  end(std::move(why), outcome);
}

Status GroupMachine::check_claims(const Message& hello) const {
  if (hello.from == 0 || hello.from >= self_.ranks) {
    return refuse(format("rank {} of {} ranks cannot be: ranks count from 0", hello.from, self_.ranks));
  }
  if (hello.peers.size() != 1) return fail(Code::corrupt, format("the Hello of rank {} names no address", hello.from));
  const auto value_in = [](const Claims& claims, const std::string& key) -> std::string {
    const auto at = std::ranges::find(claims, key, &std::pair<std::string, std::string>::first);
    return at == claims.end() ? "nothing" : at->second;
  };
  // What one of the two claims alone tells them apart, too.
  for (const Claims* const claims : {&self_.claims, &hello.claims}) {
    for (const auto& [key, value] : *claims) {
      const std::string ours = value_in(self_.claims, key);
      const std::string theirs = value_in(hello.claims, key);
      if (ours == theirs) continue;
      return refuse(format("rank {} has {} {}, rank 0 has {}: {}", hello.from, key, theirs, ours,
                           key == kJobClaim ? "two jobs meet at one address; give each an address of its own, or give "
                                              "the ranks of one job that several launchers started one name (--job)"
                                            : "all ranks have to be started alike"));
    }
  }
  return {};
}

GroupMachine::Outcome GroupMachine::take_hello(const Message& message, Time now) {
  Outcome outcome;
  const auto refuse_it = [&](const Error& error) {
    Message refusal = message_of(Kind::refused);
    put_error(refusal, error);
    outcome.sends.push_back({message.from, refusal});
  };
  if (const Status claims = check_claims(message); !claims) {
    refuse_it(claims.error());
    // Who was started otherwise will not come again by itself: all the others hear why.
    if (!met_) {
      Message refusal = message_of(Kind::refused);
      put_error(refusal, claims.error());
      for (const auto& [rank, peer] : here_) {
        if (rank != 0 && rank != message.from) outcome.sends.push_back({rank, refusal});
      }
      end(claims.error(), outcome);
    }
    return outcome;
  }
  if (met_ && peers_[message.from] == message.peers.front()) {  // It asked again before it heard.
    Message again = message_of(Kind::met);
    again.peers = peers_;
    outcome.sends.push_back({message.from, std::move(again)});
    return outcome;
  }
  if (met_) {
    refuse_it(Error(Code::already_exists,
                    format("rank {} is here already: two jobs, or two ranks, meet at one address", message.from)));
    return outcome;
  }
  here_[message.from] = message.peers.front();
  heard_[message.from] = now;
  meet_if_all_are_here(outcome, now);
  return outcome;
}

void GroupMachine::meet_if_all_are_here(Outcome& outcome, Time now) {
  if (met_ || here_.size() < self_.ranks) return;
  met_ = true;
  outcome.met = true;
  for (auto& [rank, peer] : std::exchange(here_, {})) peers_.push_back(std::move(peer));
  for (auto& [rank, heard] : heard_) heard = now;
  Message message = message_of(Kind::met);
  message.peers = peers_;
  send_to_all(message, outcome);
}

GroupMachine::Outcome GroupMachine::on_message(const Message& message, Time now) {
  Outcome outcome;
  if (over_) return outcome;
  if (message.kind == Kind::hello) return is_hub() ? take_hello(message, now) : outcome;
  if (is_hub() ? message.from == 0 || message.from >= self_.ranks : message.from != 0) return outcome;
  if (const auto at = heard_.find(message.from); at != heard_.end()) at->second = now;
  switch (message.kind) {
    case Kind::met:
      if (is_hub() || met_ || message.peers.size() != self_.ranks) break;
      met_ = true;
      outcome.met = true;
      peers_ = message.peers;
      break;
    case Kind::refused:
      if (!is_hub() && message.code != 0) end(error_in(message), outcome);
      break;
    case Kind::contribution:
      if (is_hub() && met_) return contribute_for(message.from, message.number, message.data);
      break;
    case Kind::decision:
      if (is_hub()) break;
      if (last_ == message.number) leaving_ = true;
      outcome.decided = {message.number, message};
      break;
    case Kind::lost:
      if (!is_hub()) lose(message.ranks, "lost, says rank 0", outcome);
      break;
    case Kind::note:
      if (met_) outcome.notes.push_back(message);
      break;
    default: break;
  }
  return outcome;
}

GroupMachine::Outcome GroupMachine::on_gone(Rank peer, Time) {
  Outcome outcome;
  if (over_ || leaving_) return outcome;
  if (!met_) {
    here_.erase(peer);  // It may come again.
    if (is_hub()) heard_.erase(peer);
    return outcome;
  }
  if (heard_.contains(peer)) lose({peer}, "ended: its connection was closed", outcome);
  return outcome;
}

GroupMachine::Outcome GroupMachine::on_tick(Time now) {
  Outcome outcome;
  if (over_ || now < next_ping_) return outcome;
  // What this process slept through, the others may have said meanwhile.
  const Duration slept = now - last_tick_ - 2 * times_.ping;
  if (slept > Duration::zero()) {
    for (auto& [rank, heard] : heard_) heard += slept;
  }
  last_tick_ = now;
  next_ping_ = now + times_.ping;
  if (!met_ && is_hub() && self_.ranks == 1) {
    meet_if_all_are_here(outcome, now);
    return outcome;
  }
  if (!met_) {
    if (now - began_ > times_.patience) {
      std::vector<Rank> missing;
      for (Rank rank = 0; rank < self_.ranks; ++rank) {
        if (is_hub() ? !here_.contains(rank) : rank == 0) missing.push_back(rank);
      }
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(times_.patience).count();
      Error why(Code::timed_out, is_hub() ? format("{} did not come within {} s", ranks_in_words(missing), seconds)
                                          : format("not all ranks met within {} s", seconds));
      Message refusal = message_of(Kind::refused);
      put_error(refusal, why);
      for (const auto& [rank, peer] : here_) {
        if (rank != 0) outcome.sends.push_back({rank, refusal});
      }
      end(std::move(why), outcome);
      return outcome;
    }
    if (!is_hub()) {
      Message hello = message_of(Kind::hello);
      hello.claims = self_.claims;
      hello.peers = {self_.peer};
      outcome.sends.push_back({0, std::move(hello)});
    }
    return outcome;
  }
  if (is_hub()) {
    send_to_all(message_of(Kind::ping), outcome);
  } else {
    outcome.sends.push_back({0, message_of(Kind::ping)});
  }
  if (leaving_) return outcome;
  std::vector<Rank> silent;
  for (const auto& [rank, heard] : heard_) {
    if (now - heard > times_.silence) silent.push_back(rank);
  }
  lose(std::move(silent),
       format("did not answer for {} ms: dead, stopped or cut off",
              std::chrono::duration_cast<std::chrono::milliseconds>(times_.silence).count()),
       outcome);
  return outcome;
}

GroupMachine::Outcome GroupMachine::contribute(std::uint64_t number, std::vector<std::byte> data, Time) {
  if (over_) return {};
  if (is_hub()) return contribute_for(0, number, std::move(data));
  Outcome outcome;
  Message message = message_of(Kind::contribution, number);
  message.data = std::move(data);
  outcome.sends.push_back({0, std::move(message)});
  return outcome;
}

GroupMachine::Outcome GroupMachine::contribute_for(Rank rank, std::uint64_t number, std::vector<std::byte> data) {
  Outcome outcome;
  if (contributions_.size() >= kAgreementsMax && !contributions_.contains(number)) return outcome;
  auto& all = contributions_[number];
  all.emplace(rank, std::move(data));
  if (all.size() < self_.ranks) return outcome;
  std::vector<std::vector<std::byte>> by_rank;
  for (auto& [from, part] : all) by_rank.push_back(std::move(part));
  contributions_.erase(number);
  outcome.to_decide = {number, std::move(by_rank)};
  return outcome;
}

GroupMachine::Outcome GroupMachine::decide(std::uint64_t number, Result<std::vector<std::byte>> decision, Time) {
  Outcome outcome;
  if (over_) return outcome;
  Message message = message_of(Kind::decision, number);
  if (decision) {
    message.data = *std::move(decision);
  } else {
    put_error(message, decision.error());
  }
  if (last_ == number) leaving_ = true;
  send_to_all(message, outcome);
  outcome.decided = {number, std::move(message)};
  return outcome;
}

GroupMachine::Outcome GroupMachine::note(Rank to, std::vector<std::byte> data) {
  Outcome outcome;
  if (over_) return outcome;
  Message message = message_of(Kind::note);
  message.data = std::move(data);
  if (to == self_.rank) {
    outcome.notes.push_back(std::move(message));
  } else {
    outcome.sends.push_back({to, std::move(message)});
  }
  return outcome;
}

}  // namespace freshet::group
