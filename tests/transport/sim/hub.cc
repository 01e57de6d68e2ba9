// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/hub.h"

#include "core/base/format.h"
#include "tests/transport/sim/subscriber.h"

namespace freshet::sim {

using protocol::ChannelKind;
using protocol::PublisherMachine;

namespace {

PublisherMachine::Options machine_options(Host& host, const Hub::Options& options) {
  const auto address = [&](const char* of) { return format("{}/{}/{}", of, options.name, options.incarnation); };
  return {.model = kModel,
          .run = {.high = 7, .low = 9},
          .incarnation = options.incarnation,
          .door = address("door"),
          .host = options.host,
          .channels = {{.kind = ChannelKind::ucx, .address = address("ucx")},
                       {.kind = ChannelKind::zmq, .address = address("zmq")}},
          .token_seed = host.world.random(1u << 30),
          .every_queue_versions_max = 1 + host.world.random(16),
          .retained_versions = options.retained_versions,
          .activation = {.current = *options.record, .started = host.world.now(), .follows = options.follows}};
}

}  // namespace

Hub::Hub(Host& host, Process& process, Options options)
    : host_(host),
      process_(process),
      options_(std::move(options)),
      machine_(machine_options(host, options_)),
      data_(host, process, options_.memory,
            {.find =
                 [this](VersionNumber number) {
                   const auto version = committed_.find(number);
                   return version == committed_.end() ? nullptr : &version->second;
                 },
             .find_coming =
                 [this](VersionNumber number) {
                   const bool is_it = coming_ != nullptr && coming_->version.manifest->name.number == number;
                   return is_it ? coming_ : nullptr;
                 },
             .lease_closed =
                 [this](protocol::LeaseId lease) {
                   machine_.on_lease_closed(lease, host_.world.now());
                   pump();
                 }}) {}

std::string Hub::address(const std::string& of) const {
  return format("{}/{}/{}", of, options_.name, options_.incarnation);
}

void Hub::commit(protocol::CommittedVersion version) {
  committed_[version.manifest->name.number] = version;
  machine_.on_committed(std::move(version), host_.world.now());
  pump();
  coming_.reset();
}

void Hub::coming(std::shared_ptr<Coming> coming) {
  coming_ = std::move(coming);
  machine_.on_coming(coming_->version, host_.world.now());
  pump();
}

void Hub::not_coming(VersionNumber number) {
  machine_.on_not_coming(number, host_.world.now());
  coming_.reset();
  pump();
}

void Hub::current_seen(const protocol::Current& pair) {
  machine_.on_current_seen(pair, host_.world.now());
  pump();
}

void Hub::shed(std::uint64_t bytes) {
  machine_.shed_queues(bytes, host_.world.now());
  pump();
}

void Hub::receive(const protocol::Peer& peer, const protocol::Message& message) {
  protocol::Message received = through_codec(host_.world, message);
  if (host_.sabotage == Sabotage::ignore_grants_seen) {
    if (auto* held = std::get_if<protocol::Held>(&received)) held->grants_seen = ~std::uint64_t{0};
  }
  machine_.on_message(peer, std::move(received), host_.world.now());
  pump();
}

void Hub::knock(const Knock& knock, SimSubscriber& subscriber) {
  const bool fails = host_.faults && subscriber.has_other_ways() && host_.world.chance(0.2);
  const bool open =
      !fails && knock.door == address("door") && machine_.on_door_open(knock.session, knock.token, host_.world.now());
  const DoorEnd end{.knock = knock, .subscriber = &subscriber, .subscriber_life = subscriber.process().life()};
  if (open) {
    doors_[knock.session] = end;
    subscriber.process().post(host_.network.delay(), [&subscriber, knock, memory = options_.memory] {
      subscriber.door_opened(knock, memory);
    });
  } else {
    tell_closed(end);
  }
  pump();
}

void Hub::connect(const ConnectionPointer& connection) {
  if (connection->offer.address == address(std::string(to_string(connection->offer.kind)))) data_.connect(connection);
}

void Hub::hang_up(const Knock& knock) {
  const auto end = doors_.find(knock.session);
  if (end == doors_.end() || end->second.knock.id != knock.id) return;
  doors_.erase(end);
  machine_.on_door_closed(knock.session, host_.world.now());
  pump();
}

void Hub::reader_died(const SimSubscriber& subscriber, std::uint64_t life) {
  std::vector<Knock> ended;
  for (const auto& [session, end] : doors_) {
    if (end.subscriber == &subscriber && end.subscriber_life == life) ended.push_back(end.knock);
  }
  for (const Knock& knock : ended) hang_up(knock);
}

void Hub::died() {
  for (const auto& [session, end] : doors_) tell_closed(end);
  data_.died();
}

void Hub::tell_closed(const DoorEnd& end) {
  SimSubscriber* subscriber = end.subscriber;
  if (subscriber->process().life() != end.subscriber_life) return;
  subscriber->process().post(host_.network.delay(),
                             [subscriber, knock = end.knock] { subscriber->door_closed(knock); });
}

void Hub::pump() {
  break_rules();
  for (const auto& action : machine_.take_actions()) {
    std::visit([this](const auto& a) { carry_out(a); }, action);
  }
  std::erase_if(committed_, [this](const auto& one) { return machine_.versions().find(one.first) == nullptr; });
  if (options_.on_number_floor) options_.on_number_floor(machine_.number_floor());
  const Time next = machine_.next_tick();
  if (next == Time::max()) return;
  process_.post(next - host_.world.now(), [this, tick = ++ticks_] {
    if (tick != ticks_) return;
    machine_.on_tick(host_.world.now());
    pump();
  });
}

void Hub::carry_out(const protocol::action::Send& send) {
  for (SimSubscriber* subscriber : host_.subscribers) {
    if (!send.peer.starts_with(subscriber->kind().label + "/")) continue;
    host_.network.send(subscriber->process(), [subscriber, send] { subscriber->receive(send.peer, send.message); });
  }
}

void Hub::carry_out(const protocol::action::Announce& announce) {
  for (const protocol::Peer& peer : announce.peers)
    carry_out(protocol::action::Send{.peer = peer, .message = announce.announcement});
}

void Hub::carry_out(const protocol::action::Free& free) {
  if (host_.sabotage == Sabotage::lose_freed_segments && host_.world.chance(0.01)) return;
  options_.on_free(free.segments);
}

void Hub::carry_out(const protocol::action::CloseDoor& close) {
  const auto end = doors_.find(close.session);
  if (end == doors_.end()) return;
  tell_closed(end->second);
  doors_.erase(end);
}

/// The directory hears of it later than it is asked, and is heard later still, if this process lives so long.
void Hub::carry_out(const protocol::action::SwapCurrent& swap) {
  protocol::Current* record = options_.record;
  host_.world.after(host_.network.delay(), [this, record, swap, &process = process_, life = process_.life()] {
    if (*record == swap.expected) *record = swap.desired;
    if (life != process.life()) return;
    process.post(host_.network.delay(), [this, now_there = *record] {
      machine_.on_current_swapped(now_there, host_.world.now());
      pump();
    });
  });
}

void Hub::break_rules() {
  if (host_.sabotage != Sabotage::release_on_timer) return;
  // A stopped reader's door is taken for closed, as by a lease that ran out.
  std::vector<protocol::SessionId> ended;
  for (const auto& [session, end] : doors_) {
    if (end.subscriber->process().stopped()) ended.push_back(session);
  }
  for (const protocol::SessionId session : ended) {
    doors_.erase(session);
    machine_.on_door_closed(session, host_.world.now());
  }
}

}  // namespace freshet::sim
