// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/group/group_publisher.h"

#include <algorithm>

#include "core/base/format.h"
#include "tests/transport/sim/group/group_member.h"

namespace freshet::sim {

using protocol::Current;
using protocol::PublisherMachine;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr const char* kOperator = "operator";

std::shared_ptr<const Architecture> one_tensor() {
  static const auto kArchitecture = *Architecture::guess_chain({{.name = "a.w", .dtype = DType::u8, .shape = {64}}});
  return kArchitecture;
}

}  // namespace

void GroupPublisher::start() {
  World& world = host_.world;
  process_.start();
  incarnation_ = ++host_.incarnations;
  sequence_ = 0;
  segments_ = 0;
  asked_for_ = {};
  heard_.clear();
  // Another host, perhaps: its clock has nothing to do with anybody else's.
  clock_offset_ = world.between(Duration(0), seconds(1000));
  Current record = host_.record;
  if (host_.sabotage == GroupSabotage::forget_hold) record = {.epoch = record.epoch, .version = host_.last_number};
  machine_ = std::make_unique<PublisherMachine>(
      PublisherMachine::Options{.model = "demo",
                                .incarnation = incarnation_,
                                .door = format("door/{}", incarnation_),
                                .host = "here",
                                .token_seed = world.random(1u << 30),
                                .retained_versions = 1 + world.random(4),
                                .activation = {.current = record,
                                               .started = clock(),
                                               .group_commit = host_.group_commit,
                                               .group_within = world.between(milliseconds(800), seconds(4)),
                                               .membership = host_.membership}});
  take_note();
  process_.post(milliseconds(1), [this] { train(); });
}

void GroupPublisher::kill() {
  for (GroupMember* member : host_.members) {
    member->process().post(host_.network.delay(),
                           [member, incarnation = incarnation_] { member->publisher_died(incarnation); });
  }
  process_.kill();
  machine_.reset();
}

void GroupPublisher::train() {
  process_.post(host_.world.between(milliseconds(30), milliseconds(700)), [this] { train(); });
  if (!training_) return;
  const VersionNumber number = std::max(host_.last_number, machine_->number_floor()) + 1;
  host_.last_number = number;
  const VersionId id{.run = {.high = 7, .low = 9}, .incarnation = incarnation_, .sequence = ++sequence_};
  Manifest manifest{.name = {.model = "demo", .number = number}, .id = id, .architecture = one_tensor()};
  manifest.owners = OwnerMap::all_written_by(id, 1);
  manifest.digests.resize(1);
  PublisherMachine::Committed version{.encoded_manifest = encode(manifest), .segments = {segments_++}};
  version.places = {{.slab = 0, .offset = 0, .bytes = 64}};
  version.slab_bytes = {64};
  version.manifest = std::make_shared<const Manifest>(std::move(manifest));
  machine_->on_committed(std::move(version), clock());
  pump();
}

void GroupPublisher::ask(bool only_release) {
  World& world = host_.world;
  const auto kept = machine_->versions().numbers();
  if (kept.empty()) return;
  Current expected = machine_->activation().current();
  if (world.chance(0.1)) ++expected.epoch;
  if (world.chance(0.5)) expected.version = 0;
  Current desired{.version = world.chance(0.1) ? 1 : kept[world.random(kept.size())], .hold = world.chance(0.6)};
  if (only_release || (expected.hold && world.chance(0.5))) desired = {};
  const protocol::Activate request{.model = "demo",
                                   .request = ++requests_,
                                   .expected = only_release ? machine_->activation().current() : expected,
                                   .desired = desired,
                                   .as_group = world.chance(0.5),
                                   .within_ms = static_cast<std::uint32_t>(100 + world.random(3000))};
  if (!request.as_group) for_all_.insert(request.request);
  receive(format("{}/{}", kOperator, incarnation_), request);
}

void GroupPublisher::receive(const protocol::Peer& peer, const protocol::Message& message) {
  if (const auto* ping = std::get_if<protocol::Ping>(&message)) heard_.insert(ping->session);
  machine_->on_message(peer, over_the_wire(host_.world, message), clock());
  pump();
}

void GroupPublisher::knock(GroupMember& member, std::uint64_t incarnation, protocol::SessionId session,
                           std::uint64_t token) {
  const bool open = incarnation == incarnation_ && machine_->on_door_open(session, token, clock());
  member.process().post(host_.network.delay(), [&member, session, open, incarnation] {
    open ? member.door_opened(session, incarnation) : member.door_closed(session);
  });
  pump();
}

void GroupPublisher::hang_up(std::uint64_t incarnation, protocol::SessionId session) {
  if (incarnation != incarnation_) return;
  machine_->on_door_closed(session, clock());
  pump();
}

void GroupPublisher::pump() {
  if (host_.sabotage == GroupSabotage::stage_for_others) forge_words();
  for (const auto& action : machine_->take_actions()) {
    std::visit([this](const auto& a) { carry_out(a); }, action);
    if (machine_ == nullptr) return;
  }
  take_note();
  const Time next = machine_->next_tick();
  if (next == Time::max()) return;
  process_.post(next - clock(), [this, tick = ++ticks_] {
    if (tick != ticks_) return;
    machine_->on_tick(clock());
    pump();
  });
}

/// From now on this publisher tells everybody of its pair.
void GroupPublisher::take_note() {
  host_.known_since.try_emplace(machine_->activation().current().epoch, host_.world.now());
}

void GroupPublisher::carry_out(const protocol::action::Send& send) {
  if (const auto* activated = std::get_if<protocol::Activated>(&send.message)) {
    if (activated->refused) ++host_.given_up;
    if (activated->behind > 0) ++host_.behind;
    const bool is_complete = !activated->refused && activated->behind == 0;
    if (is_complete && for_all_.contains(activated->request)) check_followed(activated->current);
    return;
  }
  for (GroupMember* member : host_.members) {
    if (!send.peer.starts_with(member->kind().label + "/") || !member->hears()) continue;
    host_.network.send(member->process(), [member, send] { member->receive(send.peer, send.message); });
  }
}

void GroupPublisher::carry_out(const protocol::action::Announce& announce) {
  for (const protocol::Peer& peer : announce.peers) {
    carry_out(protocol::action::Send{.peer = peer, .message = announce.announcement});
  }
}

void GroupPublisher::carry_out(const protocol::action::CloseDoor& close) {
  for (GroupMember* member : host_.members) {
    member->process().post(host_.network.delay(), [member, id = close.session] { member->door_closed(id); });
  }
}

void GroupPublisher::carry_out(const protocol::action::SwapCurrent& swap) {
  const bool decides = swap.desired.epoch > swap.expected.epoch;
  const VersionNumber candidate = machine_->activation().candidate();
  // Asked again because the answer was lost, it is decided already.
  const bool is_first = std::exchange(asked_for_, swap.desired) != swap.desired;
  if (decides && is_first && candidate != 0 && candidate == swap.desired.version) check_staged(candidate);
  if (host_.sabotage == GroupSabotage::announce_before_swap && decides) {
    process_.post(Duration(0), [this, swap] { hear_directory(swap.desired); });
    return;
  }
  if (host_.faults && decides && host_.world.chance(0.05)) {  // Dies before.
    process_.post(Duration(0), [this] { kill(); });
    return;
  }
  host_.world.after(host_.network.delay(), [this, swap, life = process_.life()] {
    reach_directory(swap);
    if (life != process_.life()) return;
    if (host_.faults && host_.world.chance(0.05) && !process_.stopped()) return kill();  // Dies after.
    Result<Current> answer = host_.record;
    if (host_.faults && host_.world.chance(0.1)) answer = fail(Code::unavailable, "the answer was lost");
    process_.post(host_.network.delay(), [this, answer] { hear_directory(answer); });
  });
}

void GroupPublisher::reach_directory(const protocol::action::SwapCurrent& swap) {
  if (host_.record != swap.expected) return;
  if (host_.faults && host_.world.chance(0.05)) return;  // Lost on the way.
  if (!swap.desired.comes_after(swap.expected.epoch, swap.expected.version)) {
    host_.world.violated(format("the record goes back from ({}, {}) to ({}, {})", swap.expected.epoch,
                                swap.expected.version, swap.desired.epoch, swap.desired.version));
  }
  host_.record = swap.desired;
  if (!host_.activated.try_emplace(swap.desired.epoch, swap.desired).second) return;
  if (swap.desired.hold) ++host_.rollbacks;
}

void GroupPublisher::hear_directory(Result<Current> answer) {
  const VersionNumber candidate = machine_->activation().candidate();
  machine_->on_current_swapped(std::move(answer), clock());
  if (candidate != 0 && machine_->activation().current().version == candidate) ++host_.commits;
  pump();
}

void GroupPublisher::check_staged(VersionNumber candidate) const {
  const auto sessions = machine_->sessions();
  for (const GroupMember* member : host_.members) {
    if (!member->is_in_standing()) continue;
    // Who has lost its session, and is on its way back, is not known here.
    const bool is_known = std::any_of(sessions.begin(), sessions.end(), [&](const auto& session) {
      return session.label == member->label() && session.member && session.serving != 0;
    });
    if (is_known && !member->has(candidate)) {
      host_.world.violated(format("@{} is to be committed, and {} has not staged it", candidate, member->label()));
    }
  }
}

void GroupPublisher::check_followed(const Current& current) const {
  const auto sessions = machine_->sessions();
  for (GroupMember* member : host_.members) {
    const bool is_known = heard_.contains(member->session()) && std::ranges::any_of(sessions, [&](const auto& session) {
                            return session.label == member->label();
                          });
    if (!is_known || !member->process().alive() || member->served().first >= current.epoch) continue;
    host_.world.violated(format("{} serves ({}, {}), and the answer names nobody behind ({}, {})", member->label(),
                                member->served().first, member->served().second, current.epoch, current.version));
  }
}

void GroupPublisher::forge_words() {
  const VersionNumber candidate = machine_->activation().candidate();
  if (candidate == 0 || !host_.world.chance(0.2)) return;
  for (GroupMember* member : host_.members) {
    if (!member->process().alive() || !member->kind().staged) continue;
    machine_->on_message(
        member->peer(),
        protocol::Staged{.session = member->session(), .number = candidate, .turn = machine_->activation().turn()},
        clock());
  }
}

}  // namespace freshet::sim
