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
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace {

constexpr std::size_t kModelsMax = 256;
constexpr std::chrono::milliseconds kHubRound{1000};

Time now() { return system_clock().now(); }

std::uint64_t random_word() {
  std::uint64_t word = 0;
  FRESHET_CHECK(::getrandom(&word, sizeof word, 0) == sizeof word);
  return word;
}

template <typename T>
concept NamesSession = requires(const T& message) {
  message.session;
};

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
  const Neighbours neighbours = neighbours_admitted(options.security, credentials.has_value());
  const Reach reach = credentials ? Reach::any_host : Reach::this_host;
  FRESHET_ASSIGN(std::unique_ptr<Directory> directory, open_directory(options.directory));
  FRESHET_ASSIGN(const HubFolder::Files files, HubFolder::choose(directory->folder()));
  FRESHET_ASSIGN(SocketAddress control_address,
                 SocketAddress::parse(options.listen.empty() ? "ipc://" + files.control : options.listen, true, reach));
  // The door is first: from when its file is there until the process ends, others know the hub's files as living.
  FRESHET_ASSIGN(auto door, shm::DoorHost::open(files.door));
  FRESHET_ASSIGN(auto control, ControlSocket::open(std::move(control_address), credentials, neighbours));
  FRESHET_ASSIGN(std::vector<std::string> advertised, advertised_addresses(options, control->address()));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  std::shared_ptr<PublisherHub> hub;
  try {
    // A forked child has none of its threads to join, and leaves it as it is.
    hub.reset(new PublisherHub(Parts{.directory = std::move(directory),
                                     .control = std::move(control),
                                     .advertised = std::move(advertised),
                                     .door = std::move(door),
                                     .door_path = files.door,
                                     .wake = std::move(wake)}),
              [](PublisherHub* made) {
                if (!made->mark_.is_inherited()) delete made;
              });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a hub's thread: {}", error.what()));
  }
  // Its thread does not look at them before there is a model.
  FRESHET_TRY(hub->channels_.open({.kinds = options.channels,
                                   .control = hub->control_->address().text(),
                                   .trusted_fabric = options.security.trusted_fabric,
                                   .neighbours = neighbours,
                                   .credentials = credentials,
                                   .collective = options.collective}));
  return hub;
}

PublisherHub::PublisherHub(Parts parts)
    : directory_(std::move(parts.directory)),
      door_path_(std::move(parts.door_path)),
      wake_(std::move(parts.wake)),
      address_(parts.control->address().from_this_host()),
      advertised_(std::move(parts.advertised)),
      control_(std::move(parts.control)),
      door_(std::move(parts.door)),
      channels_([this](protocol::LeaseId lease) {
        // Only the model that gave it out knows it.
        tasks_.post([this, lease] {
          for (auto& [name, model] : models_) {
            model.machine->on_lease_closed(lease, now());
            carry_out(model);
          }
        });
      }) {
  thread_ = std::thread([this] { run(); });
}

PublisherHub::~PublisherHub() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
}

void PublisherHub::post_to(const std::string& name, std::function<void(ServedModel&)> task) {
  tasks_.post([this, name, task = std::move(task)] {
    const auto at = models_.find(name);
    if (at == models_.end()) return;
    task(at->second);
    carry_out(at->second);
  });
}

void PublisherHub::post_and_wait(std::function<void()> task) {
  FRESHET_CHECK(std::this_thread::get_id() != thread_.get_id());
  std::latch done(1);
  tasks_.post([&] {
    task();
    done.count_down();
  });
  // Ends: the loop never blocks, and runs all tasks before it ends.
  done.wait();
}

Status PublisherHub::add(protocol::PublisherOptions options, HubModel& owner) {
  options.door = door_path_;
  // Whoever comes by a Unix socket is on this host, whatever network it has: containers may share a run folder alone.
  options.host = control_->address().is_tcp() ? this_host() : std::string();
  options.channels = channels_.offers();
  options.token_seed = random_word();
  Status status;
  post_and_wait([&] {
    const std::string name = options.model;
    if (models_.contains(name)) {
      status = fail(Code::already_exists, format("{} is already published by this process", name));
    } else if (models_.size() >= kModelsMax) {
      status = fail(Code::out_of_space, format("a hub serves at most {} models", kModelsMax));
    } else {
      models_.try_emplace(name, std::move(options), owner);
      for (auto& waiting : hellos_.take(name, now())) {
        if (control_->admits(waiting.key)) hear(waiting.peer, std::move(waiting.hello), waiting.key);
      }
      tell_standings();
    }
  });
  return status;
}

void PublisherHub::remove(const std::string& name) {
  post_and_wait([&] { remove_now(name); });
}

void PublisherHub::let_go(const std::string& name) {
  tasks_.post([this, name] { remove_now(name); });
}

void PublisherHub::remove_now(const std::string& name) {
  const auto at = models_.find(name);
  if (at == models_.end()) return;
  at->second.machine->on_removed();
  carry_out(at->second);
  door_->close_all_of(at->second.slabs);
  channels_.close_all_of(*at->second.segments);
  at->second.segments->close();
  models_.erase(at);
  standings_.forget(name);
}

void PublisherHub::commit(const std::string& name, protocol::CommittedVersion version,
                          std::vector<shm::SlabReference> slabs, std::function<void()> announced) {
  // A std::function must be copyable; the version should move.
  auto shared = std::make_shared<protocol::CommittedVersion>(std::move(version));
  tasks_.post([this, name, shared, slabs = std::move(slabs), announced = std::move(announced)] {
    const auto at = models_.find(name);
    if (at == models_.end()) return announced();
    ServedModel& model = at->second;
    model.take_in(*shared, slabs);
    const VersionNumber number = shared->manifest->name.number;
    model.machine->on_committed(std::move(*shared), now());
    model.tell(standings_);
    carry_out(model);
    if (model.is_coming(number)) channels_.keep_deltas_of(*std::exchange(model.coming, nullptr));
    // After the news: a subscriber that hears of it has a way to go until it needs a new slab, and waits for it.
    door_->send_new_slabs();
    if (const std::uint64_t bytes = model.owner.room_wanted(); bytes > 0) {
      shed(model, bytes);
      carry_out(model);
    }
    announced();
  });
}

void PublisherHub::restore(const std::string& name, protocol::CommittedVersion version,
                           std::vector<shm::SlabReference> slabs, std::vector<SegmentIndex> fresh) {
  auto shared = std::make_shared<protocol::CommittedVersion>(std::move(version));
  post_to(name, [this, shared, slabs = std::move(slabs), fresh = std::move(fresh)](ServedModel& model) {
    if (model.machine->versions().find(shared->manifest->name.number) != nullptr) return model.owner.on_free(fresh);
    model.take_in(*shared, slabs);
    FRESHET_CHECK(model.machine->on_restored(std::move(*shared), now()));
    carry_out(model);
    door_->send_new_slabs();
  });
}

void PublisherHub::coming(const std::string& name, protocol::CommittedVersion version,
                          std::shared_ptr<source::ComingVersion> coming) {
  auto shared = std::make_shared<protocol::CommittedVersion>(std::move(version));
  post_to(name, [shared, coming = std::move(coming)](ServedModel& model) {
    // First: what was coming before has no more to do with this one's leases.
    if (model.coming != nullptr) model.machine->on_not_coming(model.coming->number(), now());
    model.coming = coming;
    model.machine->on_coming(std::move(*shared), now());
  });
}

void PublisherHub::not_coming(const std::string& name, VersionNumber number) {
  post_to(name, [this, number](ServedModel& model) {
    model.machine->on_not_coming(number, now());
    carry_out(model);
    if (model.is_coming(number)) model.coming.reset();
  });
}

void PublisherHub::shed_queues(const std::string& name, std::uint64_t bytes) {
  post_to(name, [this, bytes](ServedModel& model) { shed(model, bytes); });
}

void PublisherHub::shed(ServedModel& model, std::uint64_t bytes) {
  note_fetched();
  model.machine->shed_queues(bytes, now());
}

/// Only the model that gave a lease out knows it.
void PublisherHub::note_fetched() {
  for (const auto& [lease, bytes] : channels_.take_sent()) {
    for (auto& [name, model] : models_) model.machine->on_fetched(lease, bytes, now());
  }
}

Result<protocol::Activated> PublisherHub::activate(
    const std::string& name, std::function<Result<protocol::Activate>(const protocol::Current& current)> make_request,
    Duration at_most, const std::stop_token& stop) {
  const Time deadline = deadline_in(at_most);
  const protocol::Peer waiter = waiters_.begin();
  tasks_.post([this, name, waiter, make_request = std::move(make_request)] {
    const auto at = models_.find(name);
    auto request = make_request(at == models_.end() ? protocol::Current() : at->second.machine->activation().current());
    if (!request) return waiters_.answer(waiter, fail(std::move(request).error()));
    hear(waiter, std::move(*request), {});
  });
  auto answer = waiters_.wait(waiter, deadline, stop);
  if (!answer) return fail(Code::timed_out, format("whether {} was activated is not known yet", name));
  return std::move(*answer);
}

void PublisherHub::current_swapped(const std::string& name, Result<protocol::Current> record) {
  post_to(name, [record = std::move(record)](ServedModel& model) { model.machine->on_current_swapped(record, now()); });
}

void PublisherHub::current_seen(const std::string& name, const protocol::Current& pair) {
  post_to(name, [pair](ServedModel& model) { model.machine->on_current_seen(pair, now()); });
}

void PublisherHub::tell_standings() {
  const Time at = now();
  for (auto& [name, model] : models_) {
    if (at >= model.tell_at()) model.tell(standings_);
  }
}

void PublisherHub::run() {
  std::vector<zmq::pollitem_t> items = {
      {.socket = nullptr, .fd = wake_.descriptor(), .events = ZMQ_POLLIN, .revents = 0},
      {.socket = nullptr, .fd = door_->descriptor(), .events = ZMQ_POLLIN, .revents = 0},
  };
  control_->watch(items);
  // Without a context nobody can be served any more, but tasks must still end.
  while (!stopping_) {
    if (!poll(items, time_to_next_tick())) control_->reject("the poll failed");
    wake_.acknowledge();
    tasks_.run();
    control_->tend(now());
    folder_.tend(now(), *directory_, *door_, *control_, [this] { return tend_models(); });
    control_->take([this](const protocol::Peer& peer, protocol::Message message, std::string_view key) {
      hear(peer, std::move(message), key);
    });
    take_door_events();
    tick();
    tell_standings();
  }
  tasks_.run();
}

std::chrono::milliseconds PublisherHub::time_to_next_tick() const {
  const Time from = now();
  std::chrono::milliseconds wait = kHubRound;
  for (const auto& [name, model] : models_) {
    const Time next = model.next_tick();
    // Compared before subtracting: a machine without a plan names the end of time.
    if (next >= from + wait) continue;
    wait = std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(next - from));
  }
  return wait;
}

Result<bool> PublisherHub::tend_models() {
  bool any = false;
  for (auto& [name, model] : models_) {
    const Result<bool> again = model.owner.tend();
    if (again) {
      any = any || *again;
    } else if (again.error().code() == Code::failed_precondition) {
      log_line(LogLevel::warning, again.error().message());
      let_go(name);
    } else {
      return again;
    }
  }
  return any;
}

ServedModel* PublisherHub::model_of(const protocol::Message& message, protocol::SessionId* session) {
  *session = std::visit(
      [](const auto& any) -> protocol::SessionId {
        if constexpr (NamesSession<decltype(any)>) return any.session;
        return 0;
      },
      message);
  const auto* const hello = std::get_if<protocol::Hello>(&message);
  const auto* const ask = std::get_if<protocol::Activate>(&message);
  const auto at =
      hello != nullptr || ask != nullptr
          ? models_.find(hello != nullptr ? hello->model : ask->model)
          : std::ranges::find_if(models_, [&](const auto& entry) { return entry.second.machine->knows(*session); });
  return at == models_.end() ? nullptr : &at->second;
}

void PublisherHub::hear(const protocol::Peer& peer, protocol::Message message, std::string_view key) {
  if (const auto* request = std::get_if<protocol::StatRequest>(&message)) return answer_stat(peer, *request);
  protocol::SessionId session = 0;
  ServedModel* const model = model_of(message, &session);
  if (const auto* const ask = std::get_if<protocol::Activate>(&message)) {
    const Status may = ActivationWaiters::is_one(peer) ? Status() : control_->may_activate(key);
    if (!may) {
      control_->reject(
          format("an activation of {}@{} is refused: {}", ask->model, ask->desired.version, may.error().message()));
    }
    if (!may || model == nullptr) {
      return send(
          peer, protocol::Activated{
                    .request = ask->request,
                    .refused = may ? Error(Code::not_found, format("{} is not published at {}", ask->model, address()))
                                   : Error(Code::failed_precondition,
                                           format("{}: this key may subscribe, but not activate versions: put the "
                                                  "word operator before the key in the publisher's allow-list",
                                                  ask->model))});
    }
  }
  // Doors are known by their sessions: one that two models had would end for one of them unheard.
  if (model != nullptr && std::ranges::any_of(models_, [&](const auto& other) {
        return &other.second != model && other.second.machine->knows(session);
      })) {
    return control_->reject("a session belongs to another model");
  }
  if (model != nullptr) {
    model->machine->on_message(peer, std::move(message), now(), key);
    carry_out(*model);
  } else if (const auto* hello = std::get_if<protocol::Hello>(&message)) {
    hellos_.add(peer, *hello, key, now());
    send(peer, protocol::Refusal{.session = session,
                                 .request = 0,
                                 .code = Code::not_found,
                                 .message = format("{} is not published at {}", hello->model, address())});
  } else if (session != 0) {
    if (std::holds_alternative<protocol::Bye>(message)) hellos_.forget(peer, session);
    send(peer, protocol::UnknownSession{.session = session});
  } else {
    control_->reject("a message is not for a publisher");
  }
}

void PublisherHub::answer_stat(const protocol::Peer& peer, const protocol::StatRequest& request) {
  if (!control_->may_answer(peer)) return;
  std::vector<PublisherStat> stats;
  for (const auto& [name, model] : models_) {
    if (!request.model.empty() && request.model != name) continue;
    const ModelStanding standing = model.standing();
    standing.put_into(stats.emplace_back(model.owner.stat(standing.sessions)), now());
  }
  send(peer, protocol::StatReply{.json = to_json(stats)});
}

void PublisherHub::take_door_events() {
  const shm::DoorHost::Events events = door_->poll();
  for (const shm::DoorHost::Knocked& knocked : events.knocked) {
    const shm::Knock& knock = knocked.knock;
    const auto at = std::find_if(models_.begin(), models_.end(), [&](auto& entry) {
      return entry.second.machine->on_door_open(knock.session, knock.token, now());
    });
    if (at == models_.end()) {
      control_->reject("a connection to the door has no session");
      door_->turn_away(knocked.door);
      continue;
    }
    door_->admit(knocked.door, knock.session, at->second.slabs, at->second.device_slabs);
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
    const protocol::Current recorded = model.owner.recorded();
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

void PublisherHub::carry_out(ServedModel& model) {
  model.has_changed = true;
  for (auto& action : model.machine->take_actions()) {
    if (auto* message = std::get_if<protocol::action::Send>(&action)) {
      // Whoever is told what is current finds it so in stat().
      if (std::holds_alternative<protocol::Activated>(message->message)) model.tell(standings_);
      // Its subscriber waits for the slabs that the grant names.
      const auto* const grant = std::get_if<protocol::Grant>(&message->message);
      if (grant != nullptr && !grant->device_places.empty()) door_->lend_device_slabs(grant->session);
      send(message->peer, message->message);
    } else if (auto* news = std::get_if<protocol::action::Announce>(&action)) {
      announce(*news);
    } else if (auto* free = std::get_if<protocol::action::Free>(&action)) {
      model.segments->free(free->segments);
    } else if (auto* lease = std::get_if<protocol::action::OpenLease>(&action)) {
      channels_.open_lease(lease->lease, model.lent(*lease));
    } else if (auto* ended = std::get_if<protocol::action::CloseLease>(&action)) {
      channels_.close_lease(*ended);
    } else if (auto* swap = std::get_if<protocol::action::SwapCurrent>(&action)) {
      model.owner.swap_current(swap->expected, swap->desired);
    } else if (auto* close = std::get_if<protocol::action::CloseDoor>(&action)) {
      door_->close(close->session);
    }
  }
  model.owner.on_number_floor(model.machine->number_floor());
}

void PublisherHub::announce(const protocol::action::Announce& news) {
  const auto encoded =
      std::make_shared<const std::vector<std::byte>>(protocol::encode(protocol::Message(news.announcement)));
  for (const protocol::Peer& peer : news.peers) control_->send(peer, encoded);
  if (!directory_->carries_announcements()) return;
  directory_->announce(news.announcement.model, {reinterpret_cast<const char*>(encoded->data()), encoded->size()});
}

void PublisherHub::send(const protocol::Peer& peer, const protocol::Message& message) {
  if (!ActivationWaiters::is_one(peer)) return control_->send(peer, message);
  if (const auto* const activated = std::get_if<protocol::Activated>(&message)) waiters_.answer(peer, *activated);
}

Result<std::shared_ptr<PublisherHub>> open_publisher_hub(PublisherHubOptions options) {
  return PublisherHub::open(std::move(options));
}

std::string address_of(const PublisherHub& hub) { return hub.address(); }

}  // namespace freshet
