#include "tests/sim/publisher.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/format.h"
#include "tests/sim/subscriber.h"

namespace freshet::sim {

using protocol::PublisherMachine;
using std::chrono::milliseconds;

namespace {

std::uint64_t model_bytes(const Architecture& architecture) { return architecture.bytes(); }

}  // namespace

SimPublisher::SimPublisher(Host& host) : host_(host), process_(host.world) {
  for (const TensorSpec& spec : host_.architecture->tensors()) weights_.emplace_back(spec.bytes());
}

void SimPublisher::start() {
  process_.start();
  const std::uint64_t incarnation = ++host_.incarnations;
  const std::uint64_t copies = (host_.refusals ? 2 + host_.subscribers.size() : 2) + host_.world.random(5);
  life_ = std::make_unique<Life>(PublisherMachine::Options{.model = kModel,
                                                           .run = {.high = 7, .low = 9},
                                                           .incarnation = incarnation,
                                                           .announcements = format("news/{}", incarnation),
                                                           .door = format("door/{}", incarnation),
                                                           .host = "here",
                                                           .token_seed = host_.world.random(1u << 30),
                                                           .every_queue_versions_max = 1 + host_.world.random(16),
                                                           .activation = {.current = host_.current,
                                                                          .started = host_.world.now()}},
                                 SegmentPool::Options{.limit_bytes = copies * model_bytes(*host_.architecture)});
  life_->incarnation = incarnation;
  life_->door = format("door/{}", incarnation);
  for (std::uint32_t tensor = 0; tensor < weights_.size(); ++tensor) changed_.insert(tensor);
  process_.post(milliseconds(1), [this] { train(); });
}

void SimPublisher::kill() {
  for (const auto& [session, end] : life_->doors) {
    SimSubscriber* subscriber = end.subscriber;
    if (subscriber->process().life() != end.subscriber_life) continue;
    subscriber->process().post(host_.network.delay(), [subscriber, id = session] { subscriber->door_closed(id); });
  }
  process_.kill();
  life_.reset();
}

void SimPublisher::train() {
  World& world = host_.world;
  process_.post(world.between(milliseconds(5), milliseconds(200)), [this] { train(); });
  if (!training_ || life_->capture) return;
  const std::uint64_t changes = 1 + world.random(weights_.size());
  for (std::uint64_t i = 0; i < changes; ++i) {
    const auto tensor = static_cast<std::uint32_t>(world.random(weights_.size()));
    for (std::byte& byte : weights_[tensor]) byte = static_cast<std::byte>(world.random(256));
    changed_.insert(tensor);
  }
  begin_capture();
}

void SimPublisher::begin_capture() {
  Capture capture;
  for (const std::uint32_t tensor : changed_) {
    if (acquire(capture, tensor)) continue;
    ++skipped_;
    abandon(capture);
    return pump();
  }
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) write(capture.segments[i], capture.tensors[i], false);
  life_->capture = std::move(capture);
  process_.post(host_.world.between(Duration(0), milliseconds(4)), [this] { commit(); });
  pump();
}

bool SimPublisher::acquire(Capture& capture, std::uint32_t tensor) {
  const std::uint64_t bytes = weights_[tensor].size();
  auto segment = life_->pool.acquire(tensor, bytes);
  if (!segment && make_room(bytes)) segment = life_->pool.acquire(tensor, bytes);
  if (!segment) return false;
  capture.tensors.push_back(tensor);
  capture.segments.push_back(*segment);
  return true;
}

bool SimPublisher::make_room(std::uint64_t bytes) {
  const std::uint64_t slab = model_bytes(*host_.architecture);
  if (life_->pool.add_slab(slab)) {
    life_->memory->slabs.emplace_back(slab);
    return true;
  }
  ++shed_;
  life_->machine.shed_queues(bytes, host_.world.now());
  pump();
  return true;
}

void SimPublisher::write(SegmentIndex segment, std::uint32_t tensor, bool second_half) {
  SegmentPlace place = life_->pool.place(segment);
  const std::uint64_t half = place.bytes / 2;
  place.offset += second_half ? half : 0;
  place.bytes = second_half ? place.bytes - half : half;
  for (const SimSubscriber* subscriber : host_.subscribers) {
    if (subscriber->could_read(*life_->memory, place)) {
      host_.world.violated(
          format("a segment of tensor {} is written while {} could read it", tensor, subscriber->kind().label));
    }
  }
  const auto from = weights_[tensor].begin() + static_cast<std::ptrdiff_t>(second_half ? half : 0);
  std::copy_n(from, place.bytes, life_->memory->at(place).begin());
}

void SimPublisher::abandon(const Capture& capture) {
  for (const SegmentIndex segment : capture.segments) life_->pool.release(segment);
}

void SimPublisher::commit() {
  Life& life = *life_;
  const Capture capture = *std::exchange(life.capture, std::nullopt);
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) write(capture.segments[i], capture.tensors[i], true);

  VersionNumber number = std::max(host_.last_number, life.machine.number_floor()) + 1;
  if (host_.faults && host_.world.chance(0.02)) ++number;  // One was given to a capture that came to nothing.
  host_.last_number = number;
  const VersionId id{.run = {.high = 7, .low = 9}, .incarnation = life.incarnation, .sequence = ++life.sequence};
  const VersionTable::Entry* base = life.machine.versions().newest();
  Manifest manifest{.name = {.model = kModel, .number = number}, .id = id, .architecture = host_.architecture};
  manifest.owners = base == nullptr ? OwnerMap::all_written_by(id, weights_.size())
                                    : base->manifest->owners.with_written(id, capture.tensors);
  for (const TensorBytes& bytes : weights_) manifest.digests.push_back(digest_of(bytes));

  PublisherMachine::Committed version{.encoded_manifest = encode(manifest)};
  version.manifest = std::make_shared<const Manifest>(std::move(manifest));
  version.segments = base == nullptr ? std::vector<SegmentIndex>(weights_.size()) : base->segments;
  for (std::size_t i = 0; i < capture.tensors.size(); ++i) {
    life.pool.seal(capture.segments[i]);
    version.segments[capture.tensors[i]] = capture.segments[i];
  }
  for (const SegmentIndex segment : version.segments) version.places.push_back(life.pool.place(segment));
  for (const auto& slab : life.memory->slabs) version.slab_bytes.push_back(slab.size());
  changed_.clear();
  host_.oracle.committed(number, {.incarnation = life.incarnation, .tensors = weights_});
  life.machine.on_committed(std::move(version), host_.world.now());
  pump();
}

void SimPublisher::receive(const protocol::Peer& peer, const protocol::Message& message) {
  protocol::Message received = through_codec(host_.world, message);
  if (host_.sabotage == Sabotage::ignore_grants_seen) {
    if (auto* held = std::get_if<protocol::Held>(&received)) held->grants_seen = ~std::uint64_t{0};
  }
  life_->machine.on_message(peer, std::move(received), host_.world.now());
  pump();
}

void SimPublisher::knock(const std::string& door, SimSubscriber& subscriber, protocol::SessionId session,
                         std::uint64_t token) {
  const bool open = door == life_->door && life_->machine.on_door_open(session, token, host_.world.now());
  if (open) {
    life_->doors[session] = {.subscriber = &subscriber, .subscriber_life = subscriber.process().life()};
    subscriber.process().post(host_.network.delay(), [&subscriber, door, session, memory = life_->memory] {
      subscriber.door_opened(door, session, memory);
    });
  } else {
    subscriber.process().post(host_.network.delay(), [&subscriber, session] { subscriber.door_closed(session); });
  }
  pump();
}

void SimPublisher::hang_up(const std::string& door, protocol::SessionId session) {
  if (door != life_->door || life_->doors.erase(session) == 0) return;
  life_->machine.on_door_closed(session, host_.world.now());
  pump();
}

void SimPublisher::reader_died(const SimSubscriber& subscriber, std::uint64_t life) {
  std::vector<protocol::SessionId> ended;
  for (const auto& [session, end] : life_->doors) {
    if (end.subscriber == &subscriber && end.subscriber_life == life) ended.push_back(session);
  }
  for (const protocol::SessionId session : ended) hang_up(life_->door, session);
}

void SimPublisher::pump() {
  break_rules();
  for (const auto& action : life_->machine.take_actions()) {
    std::visit([this](const auto& a) { carry_out(a); }, action);
  }
  const Time next = life_->machine.next_tick();
  if (next == Time::max()) return;
  process_.post(next - host_.world.now(), [this, tick = ++life_->ticks] {
    if (tick != life_->ticks) return;
    life_->machine.on_tick(host_.world.now());
    pump();
  });
}

void SimPublisher::carry_out(const protocol::action::Send& send) {
  for (SimSubscriber* subscriber : host_.subscribers) {
    if (!send.peer.starts_with(subscriber->kind().label + "/")) continue;
    host_.network.send(subscriber->process(), [subscriber, send] { subscriber->receive(send.peer, send.message); });
  }
}

void SimPublisher::carry_out(const protocol::action::Announce& announce) {
  const std::string socket = format("news/{}", life_->incarnation);
  for (SimSubscriber* subscriber : host_.subscribers) {
    if (!subscriber->process().alive() || !subscriber->follows(socket)) continue;
    host_.network.send(subscriber->process(),
                       [subscriber, socket, news = announce.announcement] { subscriber->receive_news(socket, news); });
  }
}

void SimPublisher::carry_out(const protocol::action::Free& free) {
  if (host_.sabotage == Sabotage::lose_freed_segments && host_.world.chance(0.01)) return;
  for (const SegmentIndex segment : free.segments) life_->pool.release(segment);
}

void SimPublisher::carry_out(const protocol::action::CloseDoor& close) {
  const auto end = life_->doors.find(close.session);
  if (end == life_->doors.end()) return;
  SimSubscriber* subscriber = end->second.subscriber;
  if (subscriber->process().life() == end->second.subscriber_life) {
    subscriber->process().post(host_.network.delay(),
                               [subscriber, id = close.session] { subscriber->door_closed(id); });
  }
  life_->doors.erase(end);
}

/// The directory hears of it later than it is asked, and is heard later still, if this process lives so long.
void SimPublisher::carry_out(const protocol::action::SwapCurrent& swap) {
  host_.world.after(host_.network.delay(), [this, swap, life = process_.life()] {
    if (host_.current == swap.expected) host_.current = swap.desired;
    if (life != process_.life()) return;
    process_.post(host_.network.delay(), [this, record = host_.current] {
      life_->machine.on_current_swapped(record, host_.world.now());
      pump();
    });
  });
}

void SimPublisher::break_rules() {
  if (host_.sabotage == Sabotage::write_in_place && life_->capture && host_.world.chance(0.01)) {
    if (const auto* newest = life_->machine.versions().newest()) {
      life_->memory->at(life_->pool.place(newest->segments[0]))[0] ^= std::byte{1};
    }
  }
  if (host_.sabotage != Sabotage::release_on_timer) return;
  // A stopped reader's door is taken for closed, as by a lease that ran out.
  std::vector<protocol::SessionId> ended;
  for (const auto& [session, end] : life_->doors) {
    if (end.subscriber->process().stopped()) ended.push_back(session);
  }
  for (const protocol::SessionId session : ended) {
    life_->doors.erase(session);
    life_->machine.on_door_closed(session, host_.world.now());
  }
}

}  // namespace freshet::sim
