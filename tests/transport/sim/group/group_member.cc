// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/group/group_member.h"

#include <algorithm>

#include "core/base/format.h"
#include "tests/transport/sim/group/group_publisher.h"

namespace freshet::sim {

using protocol::SubscriberMachine;
using std::chrono::milliseconds;
using std::chrono::seconds;

void GroupMember::start() {
  process_.start();
  clock_offset_ = host_.world.between(Duration(0), seconds(1000));
  served_ = {};
  served_through_ = 0;
  staged_ = {};
  installing_.reset();
  doors_.clear();
  machine_ = std::make_unique<SubscriberMachine>(
      SubscriberMachine::Options{.model = "demo",
                                 .label = label(),
                                 .pid = 1,
                                 .host = "here",
                                 .session_seed = host_.world.random(~std::uint64_t{0}),
                                 .staged = kind_.staged});
  machine_->on_start(clock());
  pump();
}

void GroupMember::kill() {
  GroupPublisher* publisher = host_.publisher;
  for (const auto& [session, incarnation] : doors_) {
    publisher->process().post_any_life(
        host_.network.delay(),
        [publisher, session = session, incarnation = incarnation] { publisher->hang_up(incarnation, session); });
  }
  process_.kill();
  machine_.reset();
}

void GroupMember::receive(const protocol::Peer& addressed_to, const protocol::Message& message) {
  if (addressed_to != peer()) return;
  machine_->on_message(over_the_wire(host_.world, message), clock());
  pump();
}

void GroupMember::door_opened(protocol::SessionId session, std::uint64_t) {
  if (!doors_.contains(session)) return;
  machine_->on_door_open(session, clock());
  pump();
}

void GroupMember::door_closed(protocol::SessionId session) {
  if (doors_.erase(session) == 0) return;
  machine_->on_door_closed(session, clock());
  pump();
}

void GroupMember::publisher_died(std::uint64_t incarnation) {
  std::vector<protocol::SessionId> closed;
  for (const auto& [session, of] : doors_) {
    if (of == incarnation) closed.push_back(session);
  }
  for (const protocol::SessionId session : closed) door_closed(session);
}

bool GroupMember::is_in_standing() const {
  if (!process_.alive() || process_.stopped() || machine_ == nullptr || served_.second == 0) return false;
  const auto lapses_at = machine_->lapses_at();
  if (!lapses_at) return false;
  return clock() < *lapses_at || (host_.sabotage == GroupSabotage::never_lapse && *lapses_at != Time::min());
}

bool GroupMember::has(VersionNumber number) const { return staged_.second == number || served_.second == number; }

void GroupMember::look() const {
  if (!kind_.staged || machine_ == nullptr) return;
  if (!is_in_standing()) {
    ++host_.lapses;
    return;
  }
  const Time before = host_.world.now() - host_.membership;
  for (auto known = host_.known_since.rbegin(); known != host_.known_since.rend(); ++known) {
    if (known->second > before) continue;
    if (served_.first < known->first) {
      host_.world.violated(format("{} serves ({}, {}) in good standing, though epoch {} was decided {} ms ago", label(),
                                  served_.first, served_.second, known->first,
                                  std::chrono::duration_cast<milliseconds>(host_.world.now() - known->second).count()));
    }
    return;
  }
}

void GroupMember::pump() {
  for (const auto& action : machine_->take_actions()) {
    std::visit([this](const auto& a) { carry_out(a); }, action);
  }
  // The version that it serves was activated once more: only its epoch is another one.
  if (machine_->position().serving() == served_.second && machine_->position().serving_epoch() > served_.first) {
    served_.first = machine_->position().serving_epoch();
    check_was_current(served_.first, served_.second);
  }
  const Time next = machine_->next_tick();
  if (next == Time::max()) return;
  process_.post(next - clock(), [this, tick = ++ticks_] {
    if (tick != ticks_) return;
    machine_->on_tick(clock());
    pump();
  });
}

void GroupMember::carry_out(const protocol::action::SendControl& send) {
  if (const auto* hello = std::get_if<protocol::Hello>(&send.message)) session_ = hello->session;
  if (cut_to_) return;
  GroupPublisher* publisher = host_.publisher;
  host_.network.send(publisher->process(),
                     [publisher, from = peer(), message = send.message] { publisher->receive(from, message); });
}

void GroupMember::carry_out(const protocol::action::OpenDoor& open) {
  const std::uint64_t incarnation = std::stoull(open.door.substr(open.door.find('/') + 1));
  doors_[open.session] = incarnation;
  GroupPublisher* publisher = host_.publisher;
  publisher->process().post_any_life(host_.network.delay(),
                                     [this, publisher, open, incarnation, life = process_.life()] {
                                       if (life == process_.life())
                                         publisher->knock(*this, incarnation, open.session, open.token);
                                     });
  // Whoever connects is not told when the other side dies before it accepts: it gives up by itself.
  process_.post(seconds(1), [this, id = open.session, incarnation] {
    if (host_.publisher->incarnation() != incarnation) door_closed(id);
  });
}

void GroupMember::carry_out(const protocol::action::LeaveDoor& leave) {
  const auto door = doors_.find(leave.session);
  if (door == doors_.end()) return;
  GroupPublisher* publisher = host_.publisher;
  publisher->process().post_any_life(
      host_.network.delay(),
      [publisher, session = leave.session, incarnation = door->second] { publisher->hang_up(incarnation, session); });
  doors_.erase(door);
}

void GroupMember::carry_out(const protocol::action::Install& install) {
  if (installing_ != nullptr) host_.world.violated("two installs at a time");
  installing_ = std::make_shared<Installing>(Installing{.session = install.grant.session,
                                                        .number = install.grant.number,
                                                        .epoch = install.grant.epoch,
                                                        .stage = install.stage});
  const bool takes_long = host_.faults && host_.world.chance(0.1);
  const Duration time = takes_long ? 10 * kind_.install_max : kind_.install_max;
  process_.post(host_.world.between(Duration(0), time), [this, install = installing_] { finish(install); });
}

void GroupMember::finish(const std::shared_ptr<Installing>& install) {
  if (install->abandoned) {
    if (host_.sabotage == GroupSabotage::finish_abandoned) serve(install->session, install->epoch, install->number);
    return;
  }
  installing_.reset();
  Status status;
  if (host_.faults && host_.world.chance(0.05)) status = fail(Code::unavailable, "a slab was lost");
  if (host_.faults && install->stage && host_.world.chance(0.05)) status = fail(Code::corrupt, "a bit flipped");
  if (status && install->stage) staged_ = {install->session, install->number};
  machine_->on_installed(install->session, install->number, status, clock());
  if (status && !install->stage) serve(install->session, install->epoch, install->number);
  pump();
}

void GroupMember::carry_out(const protocol::action::Abandon& abandon) {
  if (installing_ == nullptr || installing_->number != abandon.number) {
    host_.world.violated("nothing is there to be abandoned");
  }
  installing_->abandoned = true;
  installing_.reset();
}

void GroupMember::carry_out(const protocol::action::SwapStaged& swap) {
  if (staged_ != std::pair(swap.session, swap.number)) host_.world.violated("another version was staged");
  staged_ = {};
  ++host_.swaps;
  serve(swap.session, swap.epoch, swap.number);
}

void GroupMember::carry_out(const protocol::action::DropStaged& drop) {
  if (staged_ != std::pair(drop.session, drop.number)) host_.world.violated("another version was staged");
  staged_ = {};
  unpin_later(drop.session, drop.number);  // Somebody may have tried it out.
}

void GroupMember::serve(protocol::SessionId session, std::uint64_t epoch, VersionNumber number) {
  if (std::pair(epoch, number) <= served_) {
    host_.world.violated(
        format("{} serves ({}, {}) after ({}, {})", label(), epoch, number, served_.first, served_.second));
  }
  const protocol::Current& known = machine_->news().current();
  if (known.epoch > epoch && known.version != number) {
    host_.world.violated(
        format("{} serves ({}, {}) though it heard of ({}, {})", label(), epoch, number, known.epoch, known.version));
  }
  check_was_current(epoch, number);
  if (served_.second != 0) unpin_later(served_through_, served_.second);
  served_ = {epoch, number};
  served_through_ = session;
  look();
}

void GroupMember::check_was_current(std::uint64_t epoch, VersionNumber number) const {
  const auto begun = host_.activated.find(epoch);
  protocol::Current first;
  if (begun != host_.activated.end()) {
    first = begun->second;
  } else if (epoch != 0) {
    host_.world.violated(format("{} serves ({}, {}), and that epoch never began", label(), epoch, number));
  }
  const bool published_on = !first.hold && !host_.group_commit && number > first.version;
  if (number != first.version && !published_on) {
    host_.world.violated(format("{} serves ({}, {}), which never was current", label(), epoch, number));
  }
}

void GroupMember::unpin_later(protocol::SessionId session, VersionNumber number) {
  process_.post(host_.world.between(Duration(0), milliseconds(300)), [this, session, number] {
    machine_->on_unpinned(session, number, clock());
    pump();
  });
}

}  // namespace freshet::sim
