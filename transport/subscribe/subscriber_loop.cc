// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/subscriber_loop.h"

#include <unistd.h>

#include <algorithm>

#include "core/base/format.h"
#include "transport/subscribe/elapsed.h"

namespace freshet {
namespace {

constexpr int kMessagesPerTurn = 256;
constexpr std::chrono::milliseconds kSubscriberRound{1000};
/// A reader that was between two loads while its version retired leaves without waking us (transport/subscribe/pins.h).
constexpr std::chrono::milliseconds kRetiredRound{50};
/// A relay's hub keeps the version before the newest, for deltas to start from.
constexpr double kRelayCopiesMin = 3.1;
constexpr Duration kSlabPatience = std::chrono::seconds(5);
constexpr std::size_t kReadAnnouncementsMax = 64;
/// Delivered but not yet taken: one for the taker, one on the way.
constexpr std::size_t kDeliveriesMax = 2;

/// A relay for other hosts serves what it has fetched; what it maps is its publisher's memory, and nothing to send.
std::uint32_t usable_for(const SubscriberLoop::Options& options, const detail::Relay* relay) {
  const std::uint32_t usable = usable_channels(options.openers);
  const bool fetches = relay != nullptr && relay->reaches_other_hosts();
  return fetches ? usable & ~protocol::bit(protocol::ChannelKind::shm) : usable;
}

protocol::SubscriberMachine::Options machine_options(const SubscriberLoop::Options& options,
                                                     const detail::Relay* relay) {
  return {.model = options.subscriber.model,
          .mode = options.subscriber.every ? protocol::Mode::every : protocol::Mode::latest,
          .label = options.label,
          .pid = static_cast<std::int32_t>(::getpid()),
          .host = options.host,
          .after = options.subscriber.after,
          .after_incarnation = options.subscriber.after_incarnation,
          .session_seed = options.session_seed,
          .installs_in_flight_max = options.subscriber.every ? kDeliveriesMax : 1,
          .channels = {.usable = usable_for(options, relay),
                       .trusted_fabric = options.subscriber.security.trusted_fabric,
                       .only = options.channel},
          .serves = relay != nullptr ? relay->address() : "",
          .staged = options.subscriber.staged};
}

detail::VersionFetcher::Options fetcher_options(const SubscriberLoop::Options& options, bool relays) {
  const bool whole = options.subscriber.whole || relays;
  return {.arena = {.name = options.subscriber.model,
                    .copies = std::max(options.subscriber.arena_copies, relays ? kRelayCopiesMin : 1.0),
                    .limit_bytes = options.subscriber.arena_limit_bytes,
                    .whole = whole,
                    .lock_memory = options.subscriber.lock_memory},
          // What others will rely on is proved in full.
          .install = {.limits = {.whole = whole}, .full_proof = relays},
          .openers = options.openers};
}

detail::ControlLine::Options line_options(const SubscriberLoop::Options& options, const Directory* directory) {
  return {.model = options.subscriber.model,
          .directory = directory != nullptr ? directory->text() : "",
          .at = options.at,
          .credentials = options.credentials,
          .neighbours = neighbours_admitted(options.subscriber.security, options.credentials.has_value())};
}

}  // namespace

SubscriberLoop::SubscriberLoop(Options options, std::unique_ptr<Directory> directory,
                               std::unique_ptr<detail::Relay> relay, zmq::context_t context, Wake wake)
    : options_(std::move(options)),
      model_(options_.subscriber.model),
      clock_(options_.subscriber.clock != nullptr ? *options_.subscriber.clock : system_clock()),
      directory_(std::move(directory)),
      wake_(std::move(wake)),
      shelf_(options_.subscriber.pins_max, wake_),
      relay_(std::move(relay)),
      report_(wake_),
      line_(line_options(options_, directory_.get()), std::move(context), shelf_, rejects_),
      fetcher_(fetcher_options(options_, relay_ != nullptr)),
      scrub_(options_.subscriber.scrub_interval),
      machine_(machine_options(options_, relay_.get())) {
  if (relay_ != nullptr) relay_->set_wake(wake_);
  machine_.set_elsewhere(line_.knows_others());
  if (options_.subscriber.applies) machine_.followers().applied(0);
  thread_ = std::thread([this] { run(); });
}

SubscriberLoop::~SubscriberLoop() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
}

void SubscriberLoop::run() {
  open_watches();
  machine_.on_start(now());
  carry_out();
  while (!stopping_) {
    poll_all();
    tick();
    reclaim();
    carry_out();
    shelf_.set_connection(machine_.session().connected(), machine_.news().newest(), machine_.position().gaps(),
                          machine_.position().numbers_since(), now());
    tell_standing();
  }
  // So that the publisher is told what is read on (protocol::Bye).
  shelf_.retire_all();
  reclaim();
  machine_.on_stop(now());
  carry_out();
}

void SubscriberLoop::open_watches() {
  line_.begin(now());
  if (directory_ == nullptr) return;
  // Watched before the first look, so that an entry made in between is not missed.
  const bool hears = options_.subscriber.notifier == Notifier::directory;
  // A relay follows the publisher, so that no two of them follow each other, and a member of the group has to.
  const bool relays = relay_ == nullptr && !options_.subscriber.staged && is_remote_directory(directory_->text());
  const auto order = relays ? std::optional(options_.session_seed) : std::nullopt;
  if (hears) {
    auto commits = directory_->watch_commits(model_);
    if (!commits) return shelf_.set_error(commits.error().message());
    commits_ = std::move(*commits);
  }
  if (!line_.finds()) return;
  auto watch = directory_->watch(model_);
  if (!watch) return shelf_.set_error(watch.error().message());
  line_.find_by(std::move(*watch), options_.host, order);
}

detail::ControlLine::Outcome SubscriberLoop::outcome() {
  return {.connected = machine_.session().connected(), .refused = !machine_.channel().refusal().empty()};
}

void SubscriberLoop::poll_all() {
  std::vector<zmq::pollitem_t> items;
  const auto watch_file = [&](int file) { items.push_back({nullptr, file, ZMQ_POLLIN, 0}); };
  watch_file(wake_.descriptor());
  line_.add_to(items);
  if (commits_) watch_file(commits_->descriptor());
  if (fetcher_.descriptor() >= 0) watch_file(fetcher_.descriptor());
  const std::size_t first_door = items.size();
  std::vector<protocol::SessionId> sessions;
  for (const auto& [session, door] : doors_) {
    watch_file(door->descriptor());
    sessions.push_back(session);
  }
  if (!poll(items, time_to_next_round())) rejects_.count("the poll failed", now());
  wake_.acknowledge();
  take_directory_news();
  line_.take_handshakes(now());
  take_control_messages();
  line_.take_handshakes(now());  // Also what the messages' senders turned out to be.
  if (line_.take_reached()) machine_.on_reached(now());
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    if (items[first_door + i].revents != 0) take_door(sessions[i]);
  }
  carry_on_fetch();
  if (relay_ != nullptr) take_relay_news();
  for (const VersionNumber number : shelf_.take_taken()) machine_.on_taken(number, now());
  report_.run_tasks();
  carry_out();
}

std::chrono::milliseconds SubscriberLoop::time_to_next_round() const {
  std::chrono::milliseconds wait = shelf_.has_retired() ? kRetiredRound : kSubscriberRound;
  const Time from = now();
  const auto no_later_than = [&](Time at) {
    // Compared before subtracting: a machine without a plan names the end of time.
    if (at >= from + wait) return;
    // Nor can the beginning of time, which says "at once", be subtracted from.
    wait = at <= from ? std::chrono::milliseconds(0) : std::chrono::ceil<std::chrono::milliseconds>(at - from);
  };
  no_later_than(machine_.next_tick());
  no_later_than(fetcher_.next_round());
  const bool scrubs = shelf_.current() != nullptr && shelf_.current()->fetched != nullptr && !fetcher_.is_fetching();
  if (scrubs) no_later_than(scrub_.next_step());
  no_later_than(line_.next_tick());
  if (waiting_) no_later_than(waiting_->granted_at + kSlabPatience);
  return wait;
}

void SubscriberLoop::take_control_messages() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    auto message = line_.receive(now());
    if (!message) return;
    if (!*message) continue;
    if (const auto* news = std::get_if<protocol::Announcement>(&**message)) {
      take_announcement(*news, now());
      carry_out();
      continue;
    }
    const auto* refusal = std::get_if<protocol::Refusal>(&**message);
    if (refusal != nullptr && refusal->code != Code::not_found) shelf_.set_error(refusal->message);
    if (const auto* welcome = std::get_if<protocol::Welcome>(&**message)) same_host_ = !welcome->door.empty();
    machine_.on_message(std::move(**message), now());
    if (outcome().refused) shelf_.set_error(machine_.channel().refusal());
    carry_out();
  }
}

void SubscriberLoop::take_announcement(const protocol::Announcement& announcement, Time read_at) {
  if (announcement.model != model_) return rejects_.count("news of another model", read_at);
  read_announcements_.push_back(
      {.number = announcement.number, .took = detail::elapsed_since(announcement.announced_ns, read_at)});
  if (read_announcements_.size() > kReadAnnouncementsMax) read_announcements_.pop_front();
  machine_.on_announcement(announcement, read_at);
}

void SubscriberLoop::take_directory_news() {
  if (commits_) {
    if (commits_->take()) {
      if (const auto record = commits_->current()) machine_.on_record(*record, now());
    }
    for (const std::string& encoded : commits_->take_announcements()) {
      const auto message = protocol::decode(std::as_bytes(std::span(encoded)));
      const auto* const announcement = message ? std::get_if<protocol::Announcement>(&*message) : nullptr;
      if (announcement != nullptr) {
        take_announcement(*announcement, now());
      } else {
        rejects_.count("an announcement is malformed", now());
      }
    }
  }
  line_.take_news(outcome(), now());
  machine_.set_elsewhere(line_.knows_others());
  // In a folder of this host nobody but the publisher changes it, who tells us sooner.
  if (directory_ == nullptr || !directory_->carries_announcements()) return;
  if (const auto record = line_.take_current()) machine_.on_record(*record, now());
}

void SubscriberLoop::tick() {
  const Time at = now();
  if (waiting_ && at >= waiting_->granted_at + kSlabPatience) {
    refuse(*std::exchange(waiting_, std::nullopt),
           Error(Code::unavailable, "the publisher granted memory whose file descriptors did not come"));
  }
  line_.tick(at);
  scrub();
  if (machine_.next_tick() <= at) machine_.on_tick(at);
  carry_out();
}

void SubscriberLoop::carry_out() {
  // Carrying one out may make the machine want more, so until it is content.
  for (auto actions = machine_.take_actions(); !actions.empty(); actions = machine_.take_actions()) {
    for (auto& action : actions) {
      if (auto* send_action = std::get_if<protocol::action::SendControl>(&action)) {
        line_.say(std::move(send_action->message), outcome(), now());
        machine_.set_elsewhere(line_.knows_others());
      } else if (auto* open = std::get_if<protocol::action::OpenDoor>(&action)) {
        auto door = shm::DoorGuest::knock(open->door, {.session = open->session, .token = open->token});
        if (door) (*door)->take_device(device_);
        if (door) doors_[open->session] = std::move(*door);
        if (!door) close_door(open->session, door.error());
      } else if (auto* leave = std::get_if<protocol::action::LeaveDoor>(&action)) {
        doors_.erase(leave->session);
      } else if (auto* channel = std::get_if<protocol::action::OpenChannel>(&action)) {
        open_channel(*channel);
      } else if (auto* closed = std::get_if<protocol::action::CloseChannel>(&action)) {
        fetcher_.close(closed->session);
      } else if (auto* install_action = std::get_if<protocol::action::Install>(&action)) {
        if (install_action->grant.channel != protocol::ChannelKind::shm) {
          begin_fetch(std::move(*install_action));
          continue;
        }
        waiting_ = std::move(*install_action);
        install();
      } else if (auto* abandon = std::get_if<protocol::action::Abandon>(&action)) {
        this->abandon(*abandon);
      } else if (auto* swap = std::get_if<protocol::action::SwapStaged>(&action)) {
        swap_staged(*swap);
      } else if (auto* drop = std::get_if<protocol::action::DropStaged>(&action)) {
        shelf_.drop_staged(drop->number);
      }
    }
  }
}

void SubscriberLoop::take_door(protocol::SessionId session) {
  const auto at = doors_.find(session);
  if (at == doors_.end()) return;
  const bool welcomed_before = at->second->welcomed();
  const auto received = at->second->receive();
  if (!received) return close_door(session, received.error());
  if (!welcomed_before && at->second->welcomed()) machine_.on_door_open(session, now());
  if (*received) install();
  carry_out();
}

void SubscriberLoop::close_door(protocol::SessionId session, const Error& why) {
  // A publisher that ends is no error of any version; whatever else closes a door is worth telling.
  if (why.code() != Code::unavailable) shelf_.set_error(why.message());
  // Closed only when no version that came through it is left.
  doors_.erase(session);
  line_.hurry();
  if (waiting_ && waiting_->grant.session == session) refuse(*std::exchange(waiting_, std::nullopt), why);
  machine_.on_door_closed(session, now());
}

/// Once all of what it is made of is there: grants come through one socket and slabs through another.
void SubscriberLoop::install() {
  if (!waiting_) return;
  const auto door = doors_.find(waiting_->grant.session);
  const bool is_closed = door == doors_.end();
  const auto are_missing = [](const detail::Slabs& slabs, const auto& granted) {
    return slabs.size() < granted.size();
  };
  if (!is_closed && (are_missing(door->second->slabs(), waiting_->grant.slab_bytes) ||
                     are_missing(door->second->device_slabs(), waiting_->grant.device_slab_bytes))) {
    return;
  }
  const protocol::action::Install install = *std::exchange(waiting_, std::nullopt);
  if (is_closed) return refuse(install, Error(Code::unavailable, "the publisher's door is closed"));
  const protocol::Grant& grant = install.grant;
  detail::DeviceSlabs on_device{.slabs = door->second->device_slabs(), .device = std::nullopt};
  if (const auto& device = door->second->device()) on_device.device = device->info().uuid;
  auto version = detail::make_served_version(model_, grant, door->second->slabs(), architectures_, on_device);
  if (!version) return refuse(install, std::move(version).error());
  machine_.on_architecture_known((*version)->manifest->architecture->digest());
  if (!options_.subscriber.whole) detail::leave_unserved(**version);
  (*version)->door = door->second;
  Update& update = (*version)->update = update_of(**version);
  // A grant that was waited for is the news itself.
  if (!options_.subscriber.every && update.notify == Duration(0))
    update.notify = detail::elapsed_since(grant.announced_ns, install.granted_at);
  update.latency = detail::elapsed_since(grant.publish_started_ns, std::max(now(), install.granted_at));
  finish(install, std::move(*version));
}

void SubscriberLoop::finish(const protocol::action::Install& install, std::unique_ptr<detail::ServedVersion> version) {
  const protocol::Grant& grant = install.grant;
  version->session = grant.session;
  version->update.gap_before = grant.gap_before;
  version->update.epoch = grant.epoch;
  if (install.stage) {
    staged_at_ = now();
    shelf_.stage(std::move(version));
    // Kept before the machine is told: it may want it swapped in at once.
    return machine_.on_installed(grant.session, grant.number, {}, now());
  }
  const Update update = version->update;
  shelf_.serve(std::move(version), options_.subscriber.every);
  machine_.on_installed(grant.session, grant.number, {}, now());
  tell_served(update);
  reclaim();
}

void SubscriberLoop::refuse(const protocol::action::Install& install, Error why) {
  const protocol::Grant& grant = install.grant;
  const bool is_fetched = grant.channel != protocol::ChannelKind::shm;
  if (is_fetched && relay_ != nullptr) relay_->withdraw(why);
  const Error error = std::move(why).with_context(
      is_fetched ? format("fetch {}@{} by {}", model_, grant.number, protocol::to_string(grant.channel))
                 : format("install {}@{}", model_, grant.number));
  shelf_.count_failure(error.message());
  machine_.on_installed(grant.session, grant.number, fail(error), now());
}

Update SubscriberLoop::update_of(const detail::ServedVersion& version) const {
  const Manifest& manifest = *version.manifest;
  const detail::ServedVersion* before = shelf_.current();
  const bool comparable =
      before != nullptr && before->manifest->architecture->digest() == manifest.architecture->digest();
  Update update{.version = manifest.name.number,
                .channel = version.device ? std::string(to_string(ChannelKind::cuda_ipc)) : options_.mapped_channel};
  for (const std::uint32_t tensor : manifest.owners.changed_since(comparable ? before->manifest->owners : OwnerMap())) {
    if (!options_.subscriber.whole && !is_served(manifest.architecture->tensors()[tensor].role)) continue;
    ++update.tensors_fetched;
    update.bytes_fetched += version.tensors[tensor].size();
  }
  for (const ReadAnnouncement& read : read_announcements_) {
    if (read.number == update.version) update.notify = read.took;
  }
  return update;
}

void SubscriberLoop::reclaim() {
  for (const auto& [session, number] : shelf_.reclaim()) machine_.on_unpinned(session, number, now());
}

}  // namespace freshet
