// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/subscriber.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/model/manifest.h"
#include "tests/transport/sim/hub.h"

namespace freshet::sim {

using protocol::Mode;
using protocol::SubscriberMachine;
using std::chrono::microseconds;
using std::chrono::milliseconds;

SimSubscriber::SimSubscriber(Host& host, Kind kind) : host_(host), kind_(std::move(kind)), process_(host.world) {}

void SimSubscriber::start() {
  process_.start();
  if (!kind_.stores) stored_ = 0;
  life_ = std::make_unique<Life>(
      host_, *this,
      SubscriberMachine::Options{.model = kModel,
                                 .mode = kind_.mode,
                                 .label = kind_.label,
                                 .pid = 1,
                                 .host = kind_.host,
                                 .after = stored_,
                                 .session_seed = host_.world.random(~std::uint64_t{0}),
                                 .installs_in_flight_max = 1 + host_.world.random(3),
                                 .channels = {.usable = kind_.channels, .trusted_fabric = host_.world.chance(0.5)}});
  life_->highest = {0, stored_};
  life_->machine.set_elsewhere(kind_.sources.size() > 1 && host_.sabotage != Sabotage::never_go_around);
  life_->machine.on_start(host_.world.now());
  pump();
  if (kind_.mode == Mode::latest) schedule_read();
  if (kind_.device.empty()) return;
  process_.post(host_.world.between(Duration(0), milliseconds(500)), [this] {
    life_->machine.take_device(kind_.device);
    pump();
  });
}

void SimSubscriber::kill() {
  for (Source* source : host_.sources) {
    source->server_process().post_any_life(
        host_.network.delay(), [this, source, life = process_.life()] { source->hub()->reader_died(*this, life); });
  }
  life_->fetcher.died();
  process_.kill();
  life_.reset();
}

Source* SimSubscriber::source() const { return host_.source_of("at/" + kind_.sources[life_->source] + "/"); }

/// The one that it is at; the next that is there when that does not answer.
void SimSubscriber::look_up_source() {
  const std::size_t count = kind_.sources.size();
  std::size_t next = ++life_->unanswered_hellos > 3 ? life_->source + 1 : life_->source;
  if (life_->unanswered_hellos > 3) life_->unanswered_hellos = 0;
  for (std::size_t i = 0; i < count; ++i, ++next) {
    life_->source = next % count;
    if (source()->hub() != nullptr) return;
  }
}

protocol::Peer SimSubscriber::peer() const { return format("{}/{}/{}", kind_.label, process_.life(), connections_); }

void SimSubscriber::receive(const protocol::Peer& addressed_to, const protocol::Message& message) {
  if (addressed_to != peer()) return;
  life_->unanswered_hellos = 0;
  if (const auto* welcome = std::get_if<protocol::Welcome>(&message)) {
    life_->incarnations.emplace(welcome->session, welcome->incarnation);
  }
  life_->machine.on_message(through_codec(host_.world, message), host_.world.now());
  pump();
}

bool SimSubscriber::is_mine(const Knock& knock) const {
  const auto door = life_->doors.find(knock.session);
  return door != life_->doors.end() && door->second.id == knock.id;
}

void SimSubscriber::door_opened(const Knock& knock, std::shared_ptr<ArenaMemory> memory) {
  if (!is_mine(knock)) return hang_up(knock);  // Left while it was being opened.
  life_->memories[knock.session] = std::move(memory);
  life_->machine.on_door_open(knock.session, host_.world.now());
  pump();
}

void SimSubscriber::door_closed(const Knock& knock) {
  if (!is_mine(knock)) return;
  life_->doors.erase(knock.session);
  life_->memories.erase(knock.session);
  life_->machine.on_door_closed(knock.session, host_.world.now());
  pump();
}

void SimSubscriber::hang_up(const Knock& knock) {
  Source* at = host_.source_of(knock.door);
  at->server_process().post_any_life(host_.network.delay(), [at, knock] { at->hub()->hang_up(knock); });
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
  if (std::holds_alternative<protocol::Hello>(send.message)) look_up_source();
  Source* at = source();
  host_.network.send(at->server_process(),
                     [at, from = peer(), message = send.message] { at->hub()->receive(from, message); });
}

void SimSubscriber::carry_out(const protocol::action::OpenDoor& open) {
  const Knock knock{.door = open.door, .session = open.session, .token = open.token, .id = ++host_.knocks};
  life_->doors[open.session] = knock;
  Source* at = host_.source_of(open.door);
  if (at->hub() == nullptr) {
    process_.post(host_.network.delay(), [this, knock] { door_closed(knock); });
    return;
  }
  at->server_process().post_any_life(host_.network.delay(), [this, at, knock, life = process_.life()] {
    if (life == process_.life()) at->hub()->knock(knock, *this);
  });
  // Whoever connects is not told when the other side dies before it accepts, in this world: it gives up by itself.
  process_.post(std::chrono::seconds(1), [this, knock] {
    if (!life_->memories.contains(knock.session)) door_closed(knock);
  });
}

void SimSubscriber::carry_out(const protocol::action::OpenChannel& open) { life_->fetcher.open(open); }

void SimSubscriber::carry_out(const protocol::action::CloseChannel&) { life_->fetcher.close(); }

void SimSubscriber::carry_out(const protocol::action::LeaveDoor& leave) {
  const auto door = life_->doors.find(leave.session);
  if (door == life_->doors.end()) return;
  hang_up(door->second);
  life_->doors.erase(door);
  life_->memories.erase(leave.session);
}

void SimSubscriber::carry_out(protocol::action::Install install) {
  auto mapped = std::make_shared<Mapped>();
  mapped->session = install.grant.session;
  mapped->number = install.grant.number;
  mapped->epoch = install.grant.epoch;
  life_->installing = mapped;
  if (install.grant.lease != 0) return fetch(install);
  map(install, mapped);
}

void SimSubscriber::map(const protocol::action::Install& install, const MappedPointer& mapped) {
  mapped->places = install.grant.places;
  mapped->device_places = install.grant.device_places;
  if (!mapped->device_places.empty() && kind_.device != kDevice) {
    host_.world.violated(format("{} was granted memory of {}", kind_.label, kDevice));
  }
  const auto memory = life_->memories.find(install.grant.session);
  if (memory != life_->memories.end()) mapped->memory = memory->second;
  life_->readable.insert(mapped);
  const Duration time = host_.world.between(microseconds(10), milliseconds(host_.world.chance(0.1) ? 50 : 2));
  process_.post(time, [this, mapped, taken = install] {
    if (mapped->abandoned) return;
    const Status status = check_mapped(taken.grant, mapped);
    finish(taken.grant, taken.stage, mapped, status);
  });
}

Status SimSubscriber::check_mapped(const protocol::Grant& grant, const MappedPointer& mapped) {
  if (mapped->memory == nullptr) return fail(Code::unavailable, "the door closed meanwhile");
  if (grant.slab_bytes.size() > mapped->memory->slabs.size()) host_.world.violated("a grant names a slab to come");
  FRESHET_ASSIGN(mapped->manifest, manifest_of(grant));
  if (host_.faults && host_.world.chance(0.01)) return fail(Code::unavailable, "a slab was lost");
  return maybe_refuse();
}

Status SimSubscriber::maybe_refuse() {
  if (!host_.faults || !host_.refusals || !host_.world.chance(0.02)) return {};
  return fail(Code::unsupported, "of a shape that cannot be served");
}

void SimSubscriber::fetch(const protocol::action::Install& install) {
  auto manifest = manifest_of(install.grant);
  if (!manifest) host_.world.violated(manifest.error().message());
  life_->fetching = install;
  life_->fetcher.fetch(install.grant, std::move(*manifest));
}

Fetcher::Events SimSubscriber::fetch_events() {
  return {.open =
              [this](protocol::SessionId session) {
                life_->machine.on_channel_open(session, host_.world.now());
                pump();
              },
          .closed =
              [this](protocol::SessionId session, Error why) {
                life_->machine.on_channel_closed(session, std::move(why), host_.world.now());
                pump();
              },
          .progress =
              [this](protocol::SessionId session) {
                life_->machine.on_channel_progress(session, host_.world.now());
                pump();
              },
          .done = [this](const Result<Fetcher::Fetched>& fetched) { on_fetch_done(fetched); }};
}

/// Not within the machine's own action, so that it is not answered while it speaks.
void SimSubscriber::on_fetch_done(const Result<Fetcher::Fetched>& fetched) {
  const protocol::action::Install install = *std::exchange(life_->fetching, std::nullopt);
  const MappedPointer mapped = life_->installing;
  if (fetched) {
    mapped->fetched = *fetched;
    mapped->manifest = fetched->manifest;
    mapped->memory = own_arena().memory();
    for (const SegmentIndex segment : fetched->plan.segments) mapped->places.push_back(own_arena().place(segment));
    life_->readable.insert(mapped);
  }
  const Status status = fetched ? maybe_refuse() : Status(tl::unexpected(fetched.error()));
  process_.post(Duration(0), [this, install, mapped, status] {
    if (!mapped->abandoned) finish(install.grant, install.stage, mapped, status);
  });
}

void SimSubscriber::finish(const protocol::Grant& grant, bool stage, const MappedPointer& mapped,
                           const Status& status) {
  if (!status) withdraw();
  if (!status) let_go(mapped);
  life_->installing.reset();
  if (status && stage) life_->staged = mapped;
  const std::uint64_t gaps = life_->machine.position().gaps();
  life_->machine.on_installed(grant.session, grant.number, status, host_.world.now());
  // A version that was refused counts in the next one's gap, wherever that comes from.
  if (!status && life_->machine.position().gaps() != gaps && stored_from_ != life_->incarnations.at(grant.session))
    stored_from_ = 0;
  if (status && !stage) {
    if (kind_.mode == Mode::every) account(grant, *mapped->manifest);
    if (mapped->fetched) on_fetched(*mapped, grant);
    serve(mapped, grant.epoch);
  }
  pump();
}

void SimSubscriber::carry_out(const protocol::action::Abandon& abandon) {
  const MappedPointer mapped = std::exchange(life_->installing, nullptr);
  if (mapped == nullptr || mapped->number != abandon.number) host_.world.violated("nothing is there to be abandoned");
  mapped->abandoned = true;
  withdraw();
  if (std::exchange(life_->fetching, std::nullopt)) life_->fetcher.abandon();
  let_go(mapped);
}

void SimSubscriber::carry_out(const protocol::action::SwapStaged& swap) {
  const MappedPointer mapped = std::exchange(life_->staged, nullptr);
  if (mapped == nullptr || mapped->number != swap.number) host_.world.violated("another version was staged");
  serve(mapped, swap.epoch);
}

void SimSubscriber::carry_out(const protocol::action::DropStaged& drop) {
  const MappedPointer mapped = std::exchange(life_->staged, nullptr);
  if (mapped == nullptr || mapped->number != drop.number) host_.world.violated("another version was staged");
  let_go_if_unread(mapped);
}

/// Nothing of it is read from now on.
void SimSubscriber::let_go(const MappedPointer& mapped) {
  if (life_->readable.erase(mapped) != 0 && mapped->fetched) own_arena().let_go(mapped->fetched->kept);
}

Result<std::shared_ptr<const Manifest>> SimSubscriber::manifest_of(const protocol::Grant& grant) {
  FRESHET_ASSIGN(const Digest digest, architecture_digest_of(grant.manifest));
  auto& architecture = life_->architectures[digest];
  if (architecture == nullptr) {
    FRESHET_ASSIGN(architecture, decode_architecture(grant.architecture));
    life_->machine.on_architecture_known(digest);
  }
  FRESHET_ASSIGN(Manifest manifest, decode_manifest(grant.manifest, architecture));
  if (manifest.name.number != grant.number) return fail(Code::corrupt, "another number");
  return std::make_shared<const Manifest>(std::move(manifest));
}

void SimSubscriber::see_higher(VersionNumber number) {
  life_->machine.on_higher_seen(number, host_.world.now());
  pump();
}

void SimSubscriber::serve(const MappedPointer& mapped, std::uint64_t epoch) {
  const std::pair pair(epoch, mapped->number);
  if (pair <= life_->highest) {
    host_.world.violated(format("{} sees ({}, {}) after ({}, {})", kind_.label, epoch, mapped->number,
                                life_->highest.first, life_->highest.second));
  }
  life_->highest = pair;
  ++installs_;
  if (!mapped->device_places.empty()) ++installs_on_device_;
  if (mapped->fetched) ++fetches_;
  const MappedPointer before = std::exchange(life_->served, mapped);
  look(*mapped);
  if (before != nullptr) let_go_if_unread(before);
  if (kind_.mode == Mode::every) hold(mapped, kind_.take_max, /*is_delivery=*/true);
}

void SimSubscriber::account(const protocol::Grant& grant, const Manifest& manifest) {
  const std::uint64_t gap = host_.sabotage == Sabotage::forget_gap ? 0 : grant.gap_before;
  const VersionNumber after = std::exchange(stored_, grant.number);
  const std::uint64_t writer = manifest.id.incarnation;
  const std::uint64_t source = life_->incarnations.at(grant.session);
  const bool same_life = std::exchange(stored_writer_, writer) == writer;
  const bool same_source = std::exchange(stored_from_, source) == source;
  gaps_ += gap;
  if (after == 0) return;
  const std::uint64_t missed = host_.oracle.count_between(after, grant.number, same_life ? writer : 0);
  // Of the lives before it, a publisher that lost its directory knows nothing.
  const bool may_fall_short = !same_life && host_.lost_directory;
  const bool exact =
      same_life && same_source ? gap == missed : (gap >= missed || may_fall_short) && gap <= grant.number - after - 1;
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
      const Knock knock = life_->doors.at(life_->memories.begin()->first);
      hang_up(knock);
      door_closed(knock);
    }
    if (life_->served) hold(life_->served, kind_.pin_max, /*is_delivery=*/false);
    if (life_->staged) hold(life_->staged, kind_.pin_max, /*is_delivery=*/false);
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
  const Oracle::Version* truth = host_.oracle.find(mapped.number, mapped.manifest->id.incarnation);
  if (truth == nullptr) host_.world.violated(format("{} reads {}, which nobody wrote", kind_.label, mapped.number));
  for (std::size_t tensor = 0; tensor < mapped.places.size(); ++tensor) {
    const MutableBytes bytes = mapped.memory->at(mapped.places[tensor]);
    const TensorBytes& wanted = truth->at(tensor);
    if (!std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end())) {
      host_.world.violated(format("{} reads {}: tensor {} is torn", kind_.label, mapped.number, tensor));
    }
    if (mapped.device_places.empty() || mapped.device_places[tensor].bytes == 0) continue;
    const MutableBytes on_device = mapped.memory->on_device->at(mapped.device_places[tensor]);
    if (!std::equal(on_device.begin(), on_device.end(), wanted.begin(), wanted.end())) {
      host_.world.violated(
          format("{} reads {}: tensor {} is torn in device memory", kind_.label, mapped.number, tensor));
    }
  }
}

void SimSubscriber::unpin(const MappedPointer& mapped) {
  --mapped->pins;
  let_go_if_unread(mapped);
}

void SimSubscriber::let_go_if_unread(const MappedPointer& mapped) {
  if (mapped->pins > 0 || mapped == life_->served || mapped == life_->staged) return;
  if (!life_->readable.contains(mapped)) return;
  if (host_.sabotage == Sabotage::never_unpin && host_.world.chance(0.05)) return;
  let_go(mapped);
  if (mapped->fetched) return;
  process_.post(host_.world.between(Duration(0), milliseconds(1)), [this, mapped] {
    life_->machine.on_unpinned(mapped->session, mapped->number, host_.world.now());
    pump();
  });
}

bool SimSubscriber::could_read(const ArenaMemory& memory, const SegmentPlace& place) const {
  if (!process_.alive()) return false;
  const auto overlaps = [&](const SegmentPlace& other) { return overlap(place, other); };
  return std::any_of(life_->readable.begin(), life_->readable.end(), [&](const MappedPointer& mapped) {
    if (mapped->memory == nullptr) return false;
    if (mapped->memory->on_device.get() == &memory) return std::ranges::any_of(mapped->device_places, overlaps);
    return mapped->memory.get() == &memory && std::ranges::any_of(mapped->places, overlaps);
  });
}

}  // namespace freshet::sim
