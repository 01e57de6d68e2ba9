// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "core/base/format.h"
#include "transport/protocol/publisher/publisher_machine.h"

/// The part of the publisher's machine that connects what is current (activation.h) with sessions and versions.

namespace freshet::protocol {

void PublisherMachine::on(const Peer& peer, const Activate& ask, Time now) {
  activation_.on_ask(peer, ask, versions_.table().numbers(), now);
}

void PublisherMachine::on_current_swapped(Result<Current> record, Time now) {
  activation_.on_swapped(std::move(record), now);
  settle(now);
}

void PublisherMachine::on_current_seen(const Current& pair, Time now) {
  activation_.on_seen(pair, now);
  settle(now);
}

void PublisherMachine::on(PublisherSession& session, const Staged& staged, Time) {
  if (session.word && staged.turn < session.word->turn) return;  // It was overtaken.
  session.word = staged;
  if (!staged.failed) session.staged = staged.number;
}

std::vector<Activation::Follower> PublisherMachine::followers() const {
  std::vector<Activation::Follower> followers;
  for (const auto& [id, session] : sessions_) {
    const Hello& hello = session.hello();
    // Until its first ping nothing is known of it, and it knows nothing of us.
    if (hello.mode != Mode::latest || !session.has_pinged || session.has_left) continue;
    followers.push_back({.session = id,
                         .hello = &hello,
                         .member = hello.staged,
                         .last_heard = session.last_heard,
                         .serving = session.serving,
                         .epoch = session.epoch,
                         .behind = session.behind,
                         .word = session.word ? &*session.word : nullptr});
  }
  return followers;
}

void PublisherMachine::settle(Time now) {
  activation_.consider(activation_.needs_followers() ? followers() : std::vector<Activation::Follower>(), now);
  versions_.keep(activation_.wanted());
  auto swap = activation_.take_swap();
  answer_waiting(now);
  if (activation_.turn() != announced_turn_) announce(now);
  // Last: it wakes a thread that writes, and nobody who is told above waits for it.
  if (swap) actions_.push_back(action::SwapCurrent{.expected = swap->expected, .desired = swap->desired});
  for (auto& answer : activation_.take_answers()) send(answer.peer, std::move(answer.activated));
}

void PublisherMachine::announce(Time now) {
  announced_turn_ = activation_.turn();
  std::set<Peer> peers;
  for (const auto& [id, session] : sessions_) {
    if (!session.silent) peers.insert(session.peer());
  }
  actions_.push_back(action::Announce{.announcement = {.model = options_.model,
                                                       .incarnation = options_.incarnation,
                                                       .number = versions_.newest(),
                                                       .announced_ns = now.time_since_epoch().count(),
                                                       .current = activation_.current(),
                                                       .candidate = activation_.candidate(),
                                                       .turn = activation_.turn()},
                                      .peers = {peers.begin(), peers.end()}});
}

bool PublisherMachine::is_to_wait(const PublisherSession& session, const Want& want) const {
  return want.waits && want.exactly == 0 && session.hello().mode == Mode::latest &&
         !activation_.current().comes_after(want.after_epoch, want.after);
}

void PublisherMachine::answer_waiting(Time now) {
  const Current current = activation_.current();
  const bool arrived = std::exchange(arrived_, false);
  if (current == answered_ && !arrived) return;
  answered_ = current;
  for (auto& [id, session] : sessions_) {
    if (!session.waiting || session.silent) continue;
    // Of what it has already, under a later epoch, the news is enough. And a relay may not have got it yet.
    if (session.waiting->after == current.version || !current_for(*session.waiting)) continue;
    const Want want = *std::exchange(session.waiting, std::nullopt);
    answer(session, want, now);
  }
}

/// Which version a `latest` session is to be granted.
Result<VersionNumber> PublisherMachine::current_for(const Want& want) const {
  if (want.exactly != 0) {
    if (versions_.find(want.exactly) != nullptr || may_have_coming(want, want.exactly)) return want.exactly;
    return fail(Code::not_found, format("{}@{} is not kept here", options_.model, want.exactly));
  }
  const Current& current = activation_.current();
  if (!current.comes_after(want.after_epoch, want.after)) {
    return fail(Code::not_found, format("nothing newer than {} is current", want.after));
  }
  if (versions_.find(current.version) != nullptr || may_have_coming(want, current.version)) return current.version;
  if (!current.hold) {
    return fail(Code::not_found, format("{}@{} is current, but not kept here", options_.model, current.version));
  }
  return fail(Code::not_found, format("{0}@{1} is current and held, but not kept here: subscribers that have it serve "
                                      "it, new subscribers wait for `freshet release {0}`",
                                      options_.model, current.version));
}

std::uint32_t PublisherMachine::membership_ms() const {
  return static_cast<std::uint32_t>(
      std::chrono::ceil<std::chrono::milliseconds>(options_.activation.membership).count());
}

}  // namespace freshet::protocol
