// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/publisher_hub.h"

#include <limits.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <latch>
#include <system_error>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/ask/activation_request.h"
#include "transport/source/channel_servers.h"
#include "transport/zmq/hub/hub_files.h"
#include "transport/zmq/hub/subscriber_stat.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace {

constexpr std::size_t kModelsMax = 256;
/// Deltas are kept for whoever asks for the same: a group's members within moments, a group that goes back.
constexpr std::uint64_t kDeltaCacheBytesMax = std::uint64_t{256} << 20;
constexpr std::chrono::milliseconds kHubRound{1000};
/// How a model stands is told after each round where it has few sessions, else not more often than this.
constexpr std::size_t kSessionsToldAtOnce = 64;
constexpr Duration kTellingPause = std::chrono::milliseconds(50);
/// What waits for those who do not read.
constexpr SendBudget::Limits kSends{.peer_bytes = std::uint64_t{8} << 20, .all_bytes = std::uint64_t{64} << 20};

Time now() { return system_clock().now(); }

std::uint64_t random_word() {
  std::uint64_t word = 0;
  FRESHET_CHECK(::getrandom(&word, sizeof word, 0) == sizeof word);
  return word;
}

Result<std::vector<std::string>> advertised_addresses(const PublisherHubOptions& options,
                                                      const SocketAddress& control) {
  std::vector<std::string> addresses;
  for (const std::string& text : options.advertise) {
    FRESHET_ASSIGN(const SocketAddress address, SocketAddress::parse(text, false, Reach::any_host));
    addresses.push_back(address.text());
  }
  if (!addresses.empty()) return addresses;
  const bool elsewhere = control.is_tcp() && control.is_wildcard() && is_remote_directory(options.directory);
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (!elsewhere || ::gethostname(name.data(), name.size()) != 0) return std::vector{control.from_this_host()};
  return std::vector{control.at_host(name.data()).text()};
}

}  // namespace

Result<std::shared_ptr<PublisherHub>> PublisherHub::open(PublisherHubOptions options) {
  FRESHET_ASSIGN(const std::optional<ServerCredentials> credentials, server_credentials(options.security));
  const ServerCredentials* const proof = credentials ? &*credentials : nullptr;
  const Neighbours neighbours = neighbours_admitted(options.security, proof != nullptr);
  const Reach reach = credentials ? Reach::any_host : Reach::this_host;
  FRESHET_ASSIGN(std::unique_ptr<Directory> directory, open_directory(options.directory));
  FRESHET_ASSIGN(const HubFiles files, HubFiles::choose(directory->folder()));
  FRESHET_ASSIGN(SocketAddress control_address,
                 SocketAddress::parse(options.listen.empty() ? "ipc://" + files.control : options.listen, true, reach));
  // The door is first: from when its file is there until the process ends, others know the hub's files as living.
  FRESHET_ASSIGN(auto door, shm::DoorHost::open(files.door));
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  std::unique_ptr<Authenticator> authenticator;
  if (credentials) {
    FRESHET_ASSIGN(authenticator, Authenticator::open(context, credentials->allow_file));
  }
  FRESHET_ASSIGN(ZmqSocket control, bind_router(context, std::move(control_address), proof));
  FRESHET_ASSIGN(std::vector<std::string> advertised, advertised_addresses(options, control.address));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  std::shared_ptr<PublisherHub> hub;
  try {
    // A forked child has none of its threads to join, and leaves it as it is.
    hub.reset(new PublisherHub(Parts{.directory = std::move(directory),
                                     .host = this_host(),
                                     .context = std::move(context),
                                     .authenticator = std::move(authenticator),
                                     .control = std::move(control),
                                     .advertised = std::move(advertised),
                                     .door = std::move(door),
                                     .door_path = files.door,
                                     .wake = std::move(wake),
                                     .neighbours = neighbours}),
              [](PublisherHub* made) {
                if (!made->mark_.is_inherited()) delete made;
              });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a hub's thread: {}", error.what()));
  }
  // Its thread does not look at them before there is a model.
  FRESHET_ASSIGN(hub->channels_, serve::open_channel_servers({.kinds = options.channels,
                                                              .control = hub->control_.address.text(),
                                                              .trusted_fabric = options.security.trusted_fabric,
                                                              .neighbours = neighbours,
                                                              .credentials = credentials},
                                                             hub->desk_));
  return hub;
}

PublisherHub::PublisherHub(Parts parts)
    : directory_(std::move(parts.directory)),
      host_(std::move(parts.host)),
      door_path_(std::move(parts.door_path)),
      wake_(std::move(parts.wake)),
      address_(parts.control.address.from_this_host()),
      advertised_(std::move(parts.advertised)),
      context_(std::move(parts.context)),
      authenticator_(std::move(parts.authenticator)),
      control_(std::move(parts.control)),
      sends_(kSends),
      door_(std::move(parts.door)),
      desk_([this](protocol::LeaseId lease) { on_lease_closed(lease); }, kDeltaCacheBytesMax) {
  if (control_.monitor) listener_ = std::make_unique<Listener>(control_, parts.neighbours);
  thread_ = std::thread([this] { run(); });
}

PublisherHub::~PublisherHub() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
}

void PublisherHub::post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.wake();
}

void PublisherHub::post_and_wait(std::function<void()> task) {
  FRESHET_CHECK(std::this_thread::get_id() != thread_.get_id());
  std::latch done(1);
  post([&] {
    task();
    done.count_down();
  });
  // Ends: the loop never blocks, and runs all tasks before it ends.
  done.wait();
}

Status PublisherHub::add(ModelOptions options, HubModel& model) {
  Status status;
  post_and_wait([&] {
    if (models_.contains(options.model)) {
      status = fail(Code::already_exists, format("{} is already published by this process", options.model));
    } else if (models_.size() >= kModelsMax) {
      status = fail(Code::out_of_space, format("a hub serves at most {} models", kModelsMax));
    } else {
      models_[options.model] = Model{
          .name = options.model,
          .owner = &model,
          .machine = std::make_unique<protocol::PublisherMachine>(protocol::PublisherMachine::Options{
              .model = options.model,
              .run = options.run,
              .incarnation = options.incarnation,
              .first_number = options.first_number,
              .door = door_path_,
              .host = host_,
              .channels = offers(),
              .token_seed = random_word(),
              .every_queue_versions_max = options.every_queue_versions_max,
              .believed_number_max = options.believed_number_max,
              .retained_versions = options.keep_versions,
              .activation = options.activation,
          }),
          .slabs = std::make_shared<shm::SlabList>(),
          .segments = serve::ServedSegments::make(
              [&model](std::span<const SegmentIndex> segments) { model.on_free(segments); }),
      };
      tell_standing(models_.at(options.model));
    }
  });
  return status;
}

void PublisherHub::remove(const std::string& name) {
  post_and_wait([&] { remove_now(name); });
}

void PublisherHub::let_go(const std::string& name) {
  post([this, name] { remove_now(name); });
}

void PublisherHub::remove_now(const std::string& name) {
  const auto at = models_.find(name);
  if (at == models_.end()) return;
  door_->close_all_of(at->second.slabs);
  // Whoever fetches is cut off, so that nothing of the owner's memory is read when this returns.
  for (const protocol::SessionId session : desk_.close_all_of(*at->second.segments)) cut_off(session);
  desk_.wait_unread(*at->second.segments);
  at->second.segments->close();
  models_.erase(at);
  const MutexLock lock(mutex_);
  standings_.erase(name);
}

void PublisherHub::register_memory(Bytes memory) {
  // One that cannot be registered is sent from all the same, only not as fast.
  for (const auto& server : channels_) static_cast<void>(server->register_memory(memory));
}

void PublisherHub::forget_memory(const std::vector<Bytes>& memory) {
  for (const auto& server : channels_) {
    for (const Bytes slab : memory) server->forget_memory(slab);
  }
}

std::vector<channel::ChannelStat> PublisherHub::channel_stats() const {
  std::vector<channel::ChannelStat> stats;
  for (const auto& server : channels_) stats.push_back(server->stat());
  return stats;
}

PublisherHub::Model* PublisherHub::find(const std::string& name) {
  const auto at = models_.find(name);
  return at == models_.end() ? nullptr : &at->second;
}

void PublisherHub::commit(const std::string& name, protocol::CommittedVersion version,
                          std::vector<shm::SlabReference> slabs, std::function<void()> announced) {
  // A std::function must be copyable; the version should move.
  auto shared = std::make_shared<protocol::CommittedVersion>(std::move(version));
  post([this, name, shared, slabs = std::move(slabs), announced = std::move(announced)] {
    Model* const found = find(name);
    if (found == nullptr) return announced();
    Model& model = *found;
    *model.slabs = slabs;
    model.segments->add(shared->manifest->owners.owners(), shared->segments, model.owner->bytes_of(shared->segments));
    const VersionNumber number = shared->manifest->name.number;
    model.machine->on_committed(std::move(*shared), now());
    tell_standing(model);
    carry_out(model);
    if (model.coming != nullptr && model.coming->number() == number) {
      desk_.keep_deltas_of(*model.coming);
      model.coming.reset();
    }
    // After the news: a subscriber that hears of it has a way to go until it needs a new slab, and waits for it.
    door_->send_new_slabs();
    if (const std::uint64_t bytes = model.owner->room_wanted(); bytes > 0) {
      note_fetched();
      model.machine->shed_queues(bytes, now());
      carry_out(model);
    }
    announced();
  });
}

void PublisherHub::restore(const std::string& name, protocol::CommittedVersion version,
                           std::vector<shm::SlabReference> slabs, std::vector<SegmentIndex> fresh) {
  auto shared = std::make_shared<protocol::CommittedVersion>(std::move(version));
  post([this, name, shared, slabs = std::move(slabs), fresh = std::move(fresh)] {
    Model* const found = find(name);
    if (found == nullptr) return;
    Model& model = *found;
    if (model.machine->versions().find(shared->manifest->name.number) != nullptr) return model.owner->on_free(fresh);
    *model.slabs = slabs;
    model.segments->add(shared->manifest->owners.owners(), shared->segments, model.owner->bytes_of(shared->segments));
    FRESHET_CHECK(model.machine->on_restored(std::move(*shared), now()));
    carry_out(model);
    door_->send_new_slabs();
  });
}

void PublisherHub::coming(const std::string& name, protocol::CommittedVersion version,
                          std::shared_ptr<serve::ComingVersion> coming) {
  auto shared = std::make_shared<protocol::CommittedVersion>(std::move(version));
  post([this, name, shared, coming = std::move(coming)] {
    Model* const found = find(name);
    if (found == nullptr) return;
    Model& model = *found;
    // First: what was coming before has no more to do with this one's leases.
    if (model.coming != nullptr) model.machine->on_not_coming(model.coming->number(), now());
    model.coming = coming;
    model.machine->on_coming(std::move(*shared), now());
    carry_out(model);
  });
}

void PublisherHub::not_coming(const std::string& name, VersionNumber number) {
  post([this, name, number] {
    Model* const found = find(name);
    if (found == nullptr) return;
    Model& model = *found;
    model.machine->on_not_coming(number, now());
    carry_out(model);
    if (model.coming != nullptr && model.coming->number() == number) model.coming.reset();
  });
}

void PublisherHub::look_again() {
  for (const auto& server : channels_) server->look_again();
}

void PublisherHub::shed_queues(const std::string& name, std::uint64_t bytes) {
  post([this, name, bytes] {
    const auto at = models_.find(name);
    if (at == models_.end()) return;
    note_fetched();
    at->second.machine->shed_queues(bytes, now());
    carry_out(at->second);
  });
}

std::shared_ptr<const ModelStanding> PublisherHub::standing(const std::string& name) const {
  {
    const MutexLock lock(mutex_);
    const auto at = standings_.find(name);
    if (at != standings_.end()) return at->second;
  }
  // Not there any more when the name was lost to another publisher.
  return std::make_shared<const ModelStanding>();
}

ModelStanding PublisherHub::standing_of(const Model& model) {
  const protocol::Activation& activation = model.machine->activation();
  const VersionNumber current = activation.current().version;
  return {.sessions = model.machine->sessions(),
          .current = activation.current(),
          .current_kept = current == 0 || model.machine->versions().find(current) != nullptr,
          .candidate = activation.candidate(),
          .activation_failure = activation.last_failure(),
          .mixed = activation.last_mixed()};
}

void ModelStanding::put_into(PublisherStat& stat) const {
  stat.current = current;
  stat.current_kept = current_kept;
  stat.candidate = candidate;
  stat.activation_failure = activation_failure;
  stat.mixed = mixed;
}

void PublisherHub::tell_standing(Model& model) {
  model.has_changed = false;
  model.told_at = now();
  auto standing = std::make_shared<const ModelStanding>(standing_of(model));
  const MutexLock lock(mutex_);
  standings_[model.name].swap(standing);  // The one before goes when the lock is free.
}

void PublisherHub::tell_standings() {
  const Time at = now();
  for (auto& [name, model] : models_) {
    if (!model.has_changed) continue;
    const bool is_cheap = model.machine->sessions_count() <= kSessionsToldAtOnce;
    if (is_cheap || at >= model.told_at + kTellingPause) tell_standing(model);
  }
}

void PublisherHub::run() {
  std::vector<zmq::pollitem_t> items = {
      {.socket = control_.socket.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0},
      {.socket = nullptr, .fd = wake_.descriptor(), .events = ZMQ_POLLIN, .revents = 0},
      {.socket = nullptr, .fd = door_->descriptor(), .events = ZMQ_POLLIN, .revents = 0},
  };
  if (listener_) listener_->watch(items);
  // Without a context nobody can be served any more, but tasks must still end.
  while (!stopping_) {
    if (!poll(items, time_to_next_tick())) rejects_.count("the poll failed", now());
    run_tasks();
    // First: a message's descriptor is one that the listener has heard of.
    tend();
    take_control_messages();
    take_door_events();
    tick();
    tell_standings();
  }
  run_tasks();
}

std::chrono::milliseconds PublisherHub::time_to_next_tick() const {
  const Time from = now();
  std::chrono::milliseconds wait = kHubRound;
  for (const auto& [name, model] : models_) {
    Time next = model.machine->next_tick();
    if (model.has_changed) next = std::min(next, model.told_at + kTellingPause);
    // Compared before subtracting: a machine without a plan names the end of time.
    if (next >= from + wait) continue;
    wait = std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(next - from));
  }
  return wait;
}

void PublisherHub::run_tasks() {
  wake_.acknowledge();
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void PublisherHub::take_door_events() {
  const shm::DoorHost::Events events = door_->poll();
  for (const shm::DoorHost::Knocked& knocked : events.knocked) {
    const shm::Knock& knock = knocked.knock;
    const auto at = std::find_if(models_.begin(), models_.end(), [&](auto& entry) {
      return entry.second.machine->on_door_open(knock.session, knock.token, now());
    });
    if (at == models_.end()) {
      rejects_.count("a connection to the door has no session", now());
      door_->turn_away(knocked.door);
      continue;
    }
    door_->admit(knocked.door, knock.session, at->second.slabs);
    carry_out(at->second);
  }
  for (const protocol::SessionId session : events.closed) {
    for (auto& [name, model] : models_) {
      if (!model.machine->knows(session)) continue;
      model.machine->on_door_closed(session, now());
      carry_out(model);
    }
  }
}

void PublisherHub::tick() {
  const Time at = now();
  for (auto& [name, model] : models_) {
    const protocol::Current recorded = model.owner->recorded();
    if (recorded.epoch > model.machine->activation().current().epoch) {
      model.machine->on_current_seen(recorded, at);
      carry_out(model);
    }
    if (model.machine->next_tick() > at) continue;
    note_fetched();
    if (model.machine->next_tick() > at) continue;  // It waited for a lease by which something came.
    model.machine->on_tick(at);
    carry_out(model);
  }
}

void PublisherHub::carry_out(Model& model) {
  model.has_changed = true;
  for (auto& action : model.machine->take_actions()) {
    if (auto* send_action = std::get_if<protocol::action::Send>(&action)) {
      // Whoever is told what is current finds it so in stat().
      if (std::holds_alternative<protocol::Activated>(send_action->message)) tell_standing(model);
      send_to(send_action->peer, send_action->message);
    } else if (auto* news = std::get_if<protocol::action::Announce>(&action)) {
      announce(*news);
    } else if (auto* free = std::get_if<protocol::action::Free>(&action)) {
      model.segments->free(free->segments);
    } else if (auto* lease = std::get_if<protocol::action::OpenLease>(&action)) {
      open_lease(model, *lease);
    } else if (auto* ended = std::get_if<protocol::action::CloseLease>(&action)) {
      close_lease(*ended);
    } else if (auto* swap = std::get_if<protocol::action::SwapCurrent>(&action)) {
      model.owner->swap_current(swap->expected, swap->desired);
    } else if (auto* close = std::get_if<protocol::action::CloseDoor>(&action)) {
      door_->close(close->session);
    }
  }
  model.owner->on_number_floor(model.machine->number_floor());
}

std::vector<protocol::ChannelOffer> PublisherHub::offers() const {
  std::vector<protocol::ChannelOffer> offers;
  for (const auto& server : channels_) offers.push_back({.kind = server->kind(), .address = server->address()});
  return offers;
}

Result<std::shared_ptr<PublisherHub>> open_publisher_hub(PublisherHubOptions options) {
  return PublisherHub::open(std::move(options));
}

std::string address_of(const PublisherHub& hub) { return hub.address(); }

}  // namespace freshet
