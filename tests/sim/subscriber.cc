#include "tests/sim/subscriber.h"

#include <algorithm>

#include "core/format.h"
#include "core/manifest.h"
#include "tests/sim/publisher.h"

namespace freshet::sim {

using protocol::Mode;
using protocol::SubscriberMachine;
using std::chrono::microseconds;
using std::chrono::milliseconds;

SimSubscriber::SimSubscriber(Host& host, Kind kind) : host_(host), kind_(std::move(kind)), process_(host.world) {}

void SimSubscriber::start() {
  process_.start();
  if (!kind_.stores) stored_ = 0;
  life_ = std::make_unique<Life>(SubscriberMachine::Options{.model = kModel,
                                                            .mode = kind_.mode,
                                                            .label = kind_.label,
                                                            .pid = 1,
                                                            .host = "here",
                                                            .after = stored_,
                                                            .session_seed = host_.world.random(~std::uint64_t{0}),
                                                            .installs_in_flight_max = 1 + host_.world.random(3)});
  life_->highest = {0, stored_};
  refused_gap_ = 0;
  life_->machine.on_start(host_.world.now());
  pump();
  if (kind_.mode == Mode::latest) schedule_read();
}

void SimSubscriber::kill() {
  SimPublisher* publisher = host_.publisher;
  publisher->process().post_any_life(
      host_.network.delay(), [this, publisher, life = process_.life()] { publisher->reader_died(*this, life); });
  process_.kill();
  life_.reset();
}

protocol::Peer SimSubscriber::peer() const { return format("{}/{}/{}", kind_.label, process_.life(), connections_); }

void SimSubscriber::receive(const protocol::Peer& addressed_to, const protocol::Message& message) {
  if (addressed_to != peer()) return;
  life_->machine.on_message(through_codec(host_.world, message), host_.world.now());
  pump();
}

void SimSubscriber::receive_news(const std::string& socket, const protocol::Announcement& news) {
  if (!follows(socket)) return;
  life_->machine.on_announcement(news, host_.world.now());
  pump();
}

void SimSubscriber::door_opened(const std::string& door, protocol::SessionId session,
                                std::shared_ptr<ArenaMemory> memory) {
  if (!life_->doors.contains(session)) return hang_up(door, session);  // Left while it was being opened.
  life_->memories[session] = std::move(memory);
  life_->machine.on_door_open(session, host_.world.now());
  pump();
}

void SimSubscriber::door_closed(protocol::SessionId session) {
  if (life_->doors.erase(session) == 0) return;
  life_->memories.erase(session);
  life_->machine.on_door_closed(session, host_.world.now());
  pump();
}

void SimSubscriber::hang_up(const std::string& door, protocol::SessionId session) {
  SimPublisher* publisher = host_.publisher;
  publisher->process().post_any_life(host_.network.delay(),
                                     [publisher, session, door] { publisher->hang_up(door, session); });
}

void SimSubscriber::pump() {
  for (auto& action : life_->machine.take_actions()) {
    std::visit([this](auto& a) { carry_out(std::move(a)); }, action);
  }
  const Time next = life_->machine.next_tick();
  if (next == Time::max()) return;
  process_.post(next - host_.world.now(), [this, tick = ++life_->ticks] {
    if (tick != life_->ticks) return;
    life_->machine.on_tick(host_.world.now());
    pump();
  });
}

void SimSubscriber::carry_out(const protocol::action::SendControl& send) {
  SimPublisher* publisher = host_.publisher;
  host_.network.send(publisher->process(),
                     [publisher, from = peer(), message = send.message] { publisher->receive(from, message); });
}

void SimSubscriber::carry_out(const protocol::action::OpenDoor& open) {
  life_->announcements = open.announcements;
  life_->doors[open.session] = open.door;
  SimPublisher* publisher = host_.publisher;
  if (!publisher->process().alive()) {
    process_.post(host_.network.delay(), [this, id = open.session] { door_closed(id); });
    return;
  }
  publisher->process().post_any_life(host_.network.delay(), [this, publisher, open, life = process_.life()] {
    if (life == process_.life()) publisher->knock(open.door, *this, open.session, open.token);
  });
  // Whoever connects is not told when the other side dies before it accepts, in this world: it gives up by itself.
  process_.post(std::chrono::seconds(1), [this, id = open.session] {
    if (!life_->memories.contains(id)) door_closed(id);
  });
}

void SimSubscriber::carry_out(const protocol::action::LeaveDoor& leave) {
  const auto door = life_->doors.find(leave.session);
  if (door == life_->doors.end()) return;
  hang_up(door->second, leave.session);
  life_->doors.erase(door);
  life_->memories.erase(leave.session);
}

void SimSubscriber::carry_out(protocol::action::Install install) {
  const protocol::Grant& grant = install.grant;
  auto mapped = std::make_shared<Mapped>();
  mapped->session = grant.session;
  mapped->number = grant.number;
  mapped->places = grant.places;
  const auto memory = life_->memories.find(grant.session);
  if (memory != life_->memories.end()) mapped->memory = memory->second;
  life_->readable.insert(mapped);
  life_->installing = mapped;
  const Duration time = host_.world.between(microseconds(10), milliseconds(host_.world.chance(0.1) ? 50 : 2));
  process_.post(time, [this, mapped, taken = std::move(install)] {
    if (!mapped->abandoned) finish(taken, mapped);
  });
}

void SimSubscriber::finish(const protocol::action::Install& install, const MappedPointer& mapped) {
  const protocol::Grant& grant = install.grant;
  const Status status = this->install(grant, mapped);
  if (!status) life_->readable.erase(mapped);
  life_->installing.reset();
  if (status && install.stage) life_->staged = mapped;
  life_->machine.on_installed(grant.session, grant.number, status, host_.world.now());
  if (status && !install.stage) {
    if (kind_.mode == Mode::every) account(grant);
    serve(mapped, grant.epoch);
  }
  pump();
}

void SimSubscriber::carry_out(const protocol::action::Abandon& abandon) {
  const MappedPointer mapped = std::exchange(life_->installing, nullptr);
  if (mapped == nullptr || mapped->number != abandon.number) host_.world.violated("nothing is there to be abandoned");
  mapped->abandoned = true;
  life_->readable.erase(mapped);
}

void SimSubscriber::carry_out(const protocol::action::SwapStaged& swap) {
  const MappedPointer mapped = std::exchange(life_->staged, nullptr);
  if (mapped == nullptr || mapped->number != swap.number) host_.world.violated("another version was staged");
  serve(mapped, swap.epoch);
}

void SimSubscriber::carry_out(const protocol::action::DropStaged& drop) {
  const MappedPointer mapped = std::exchange(life_->staged, nullptr);
  if (mapped == nullptr || mapped->number != drop.number) host_.world.violated("another version was staged");
  life_->readable.erase(mapped);
}

Status SimSubscriber::install(const protocol::Grant& grant, const MappedPointer& mapped) {
  if (mapped->memory == nullptr) return fail(Code::unavailable, "the door closed meanwhile");
  if (grant.slab_bytes.size() > mapped->memory->slabs.size()) host_.world.violated("a grant names a slab to come");
  FRESHET_TRY(check_manifest(grant));
  if (host_.faults && host_.world.chance(0.01)) return fail(Code::unavailable, "a slab was lost");
  if (host_.faults && host_.refusals && host_.world.chance(0.02)) {
    refused_gap_ += grant.gap_before + 1;
    return fail(Code::corrupt, "a bit flipped");
  }
  return {};
}

Status SimSubscriber::check_manifest(const protocol::Grant& grant) {
  FRESHET_ASSIGN(const Digest digest, architecture_digest_of(grant.manifest));
  auto& architecture = life_->architectures[digest];
  if (architecture == nullptr) {
    FRESHET_ASSIGN(architecture, decode_architecture(grant.architecture));
    life_->machine.on_architecture_known(digest);
  }
  FRESHET_ASSIGN(const Manifest manifest, decode_manifest(grant.manifest, architecture));
  if (manifest.name.number != grant.number) return fail(Code::corrupt, "another number");
  return {};
}

void SimSubscriber::serve(const MappedPointer& mapped, std::uint64_t epoch) {
  const std::pair pair(epoch, mapped->number);
  if (pair <= life_->highest) {
    host_.world.violated(format("{} sees ({}, {}) after ({}, {})", kind_.label, epoch, mapped->number,
                                life_->highest.first, life_->highest.second));
  }
  life_->highest = pair;
  ++installs_;
  const MappedPointer before = std::exchange(life_->served, mapped);
  look(*mapped);
  if (before != nullptr) let_go_if_unread(before);
  if (kind_.mode == Mode::every) hold(mapped, kind_.take_max, /*is_delivery=*/true);
}

void SimSubscriber::account(const protocol::Grant& grant) {
  const std::uint64_t told = host_.sabotage == Sabotage::forget_gap ? 0 : grant.gap_before;
  const std::uint64_t gap = told + std::exchange(refused_gap_, 0);
  const VersionNumber after = std::exchange(stored_, grant.number);
  gaps_ += gap;
  if (after == 0) return;
  const std::uint64_t missed = host_.oracle.count_between(after, grant.number);
  const bool same_life = host_.oracle.find(after) != nullptr &&
                         host_.oracle.find(after)->incarnation == host_.oracle.find(grant.number)->incarnation;
  const bool exact = same_life ? gap == missed : gap >= missed && gap <= grant.number - after - 1;
  if (!exact) {
    host_.world.violated(format("{} has {} after {}: {} versions between, {} accounted for", kind_.label, grant.number,
                                after, missed, gap));
  }
}

void SimSubscriber::leave() {
  life_->machine.on_stop(host_.world.now());
  pump();
}

void SimSubscriber::schedule_read() {
  process_.post(host_.world.between(microseconds(100), milliseconds(60)), [this] {
    if (!host_.reading) return;
    if (host_.sabotage == Sabotage::leave_door_early && !life_->memories.empty() && host_.world.chance(0.02)) {
      const protocol::SessionId session = life_->memories.begin()->first;
      hang_up(life_->doors[session], session);
      door_closed(session);
    }
    if (life_->served) hold(life_->served, kind_.pin_max, /*is_delivery=*/false);
    schedule_read();
  });
}

void SimSubscriber::hold(const MappedPointer& mapped, Duration at_most, bool is_delivery) {
  World& world = host_.world;
  const Duration long_one = world.chance(0.02) ? 3 * at_most : at_most;
  const Duration time = world.between(Duration(0), long_one);
  ++mapped->pins;
  look(*mapped);
  process_.post(world.between(Duration(0), time), [this, mapped] { look(*mapped); });
  process_.post(time, [this, mapped, is_delivery] {
    look(*mapped);
    unpin(mapped);
    if (is_delivery) life_->machine.on_taken(mapped->number, host_.world.now());
    pump();
  });
}

void SimSubscriber::look(const Mapped& mapped) const {
  const Oracle::Version* truth = host_.oracle.find(mapped.number);
  if (truth == nullptr) host_.world.violated(format("{} reads {}, which nobody wrote", kind_.label, mapped.number));
  for (std::size_t tensor = 0; tensor < mapped.places.size(); ++tensor) {
    const MutableBytes bytes = mapped.memory->at(mapped.places[tensor]);
    const TensorBytes& wanted = truth->tensors.at(tensor);
    if (!std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end())) {
      host_.world.violated(format("{} reads {}: tensor {} is torn", kind_.label, mapped.number, tensor));
    }
  }
}

void SimSubscriber::unpin(const MappedPointer& mapped) {
  --mapped->pins;
  let_go_if_unread(mapped);
}

void SimSubscriber::let_go_if_unread(const MappedPointer& mapped) {
  if (mapped->pins > 0 || mapped == life_->served || !life_->readable.contains(mapped)) return;
  if (host_.sabotage == Sabotage::never_unpin && host_.world.chance(0.05)) return;
  life_->readable.erase(mapped);
  process_.post(host_.world.between(Duration(0), milliseconds(1)), [this, mapped] {
    life_->machine.on_unpinned(mapped->session, mapped->number, host_.world.now());
    pump();
  });
}

bool SimSubscriber::could_read(const ArenaMemory& memory, const SegmentPlace& place) const {
  if (!process_.alive()) return false;
  const auto overlaps = [&](const SegmentPlace& other) {
    return other.slab == place.slab && other.offset < place.offset + place.bytes &&
           place.offset < other.offset + other.bytes;
  };
  return std::any_of(life_->readable.begin(), life_->readable.end(), [&](const MappedPointer& mapped) {
    return mapped->memory.get() == &memory && std::any_of(mapped->places.begin(), mapped->places.end(), overlaps);
  });
}

}  // namespace freshet::sim
