// SPDX-License-Identifier: Apache-2.0
#include "transport/subscriber.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "core/base/text.h"
#include "transport/ask/activation_request.h"
#include "transport/file/folder_follower.h"
#include "transport/subscribe/requests.h"
#include "transport/subscribe/subscriber_loop.h"
#include "transport/zmq/this_host.h"

namespace freshet {
namespace {

constexpr std::size_t kPinsMax = std::size_t{1} << 20;

std::string process_name() {
  std::string name;
  std::getline(std::ifstream("/proc/self/comm"), name);
  return name.empty() ? "subscriber" : printable(name);
}

Status check_options(const SubscriberOptions& options) {
  FRESHET_TRY(check_model_name(options.model));
  if (options.pins_max == 0 || options.pins_max > kPinsMax) {
    return fail(Code::invalid_argument, format("pins_max is {}, not in 1 to {}", options.pins_max, kPinsMax));
  }
  if (options.staged && options.every) {
    return fail(Code::invalid_argument,
                "a member of a group follows the current version: `staged` and `every` exclude each other");
  }
  if (!options.label.empty()) FRESHET_TRY(check_label("the label", options.label, protocol::kLabelBytesMax));
  // Written so that not-a-number is refused too.
  if (!(options.arena_copies >= 1.0 && options.arena_copies <= 64.0)) {
    return fail(Code::invalid_argument, format("arena_copies is {}, not in 1 to 64", options.arena_copies));
  }
  return {};
}

Result<std::unique_ptr<detail::Relay>> open_relay(const SubscriberOptions& options) {
  if (options.at.empty() && !is_remote_directory(options.directory)) {
    return fail(Code::invalid_argument, "a relay needs the address of its publisher or of the next relay (--at)");
  }
  const Clock& clock = options.clock != nullptr ? *options.clock : system_clock();
  return detail::Relay::open({.model = options.model,
                              .hub = options.relay,
                              .keep_versions = std::max<std::size_t>(options.relay_keep_versions, 1),
                              .unix_ns = static_cast<std::uint64_t>(clock.unix_ns())});
}

/// A folder's versions are published within this process, and what follows need not know of it.
Result<std::unique_ptr<file::FolderFollower>> follow_folder(SubscriberOptions& options) {
  FRESHET_ASSIGN(std::string folder, file::folder_of_address(options.at.front()));
  if (options.channel && options.channel != ChannelKind::file) {
    return fail(Code::invalid_argument,
                format("a folder is read by the channel file, not by {}", to_string(*options.channel)));
  }
  FRESHET_ASSIGN(
      auto follower,
      file::FolderFollower::open(
          {.folder = std::move(folder), .model = options.model, .every = options.every, .after = options.after}));
  options.at = {follower->address()};
  options.channel = ChannelKind::shm;
  return follower;
}

}  // namespace

class Subscriber::Impl {
 public:
  Impl(SubscriberLoop::Options options, std::unique_ptr<file::FolderFollower> follower,
       std::unique_ptr<Directory> directory, std::unique_ptr<detail::Relay> relay, zmq::context_t context, Wake wake)
      : every(options.subscriber.every),
        folder(std::move(follower)),
        member(options.subscriber.staged),
        refuses(options.subscriber.when_lapsed == WhenLapsed::refuse),
        clock(options.subscriber.clock != nullptr ? *options.subscriber.clock : system_clock()),
        loop(std::move(options), std::move(directory), std::move(relay), std::move(context), std::move(wake)) {}

  Status check_here() const { return check_not_inherited(mark, "the subscriber"); }
  Status take_turn(Time deadline, const std::stop_token& stop) FRESHET_EXCLUDES(turn_mutex);
  void give_turn() FRESHET_EXCLUDES(turn_mutex);

  const ForkMark mark;
  const bool every;
  /// One snapshot_of() at a time: a subscriber stages one version.
  Mutex turn_mutex;
  CondVar turn_changed;
  bool turn_taken FRESHET_GUARDED_BY(turn_mutex) = false;

  Mutex device_mutex;
  std::optional<gpu::Uuid> device FRESHET_GUARDED_BY(device_mutex);  ///< Whose memory it takes.

  const std::unique_ptr<file::FolderFollower> folder;  ///< Null unless versions come from one.
  const bool member;
  const bool refuses;
  const Clock& clock;
  SubscriberLoop loop;
};

Status Subscriber::Impl::take_turn(Time deadline, const std::stop_token& stop) {
  const StopWakes wakes(stop, turn_mutex, turn_changed);
  MutexLock lock(turn_mutex);
  while (turn_taken) {
    if (stop.stop_requested()) return fail(Code::cancelled, "the wait for a version was stopped by its caller");
    if (!turn_changed.wait_until(turn_mutex, deadline) && turn_taken) {
      return fail(Code::timed_out, "another call waits for a version by its number");
    }
  }
  turn_taken = true;
  return {};
}

void Subscriber::Impl::give_turn() {
  MutexLock lock(turn_mutex);
  turn_taken = false;
  turn_changed.notify_one();
}

Subscriber::Subscriber(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Subscriber::~Subscriber() {
  // A forked child has none of the threads that would have to end.
  if (impl_->mark.is_inherited()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Subscriber>> Subscriber::open(SubscriberOptions options) {
  FRESHET_TRY(check_options(options));
  std::unique_ptr<file::FolderFollower> folder;
  if (options.at.size() == 1 && file::is_folder_address(options.at.front())) {
    FRESHET_ASSIGN(folder, follow_folder(options));
  }
  FRESHET_ASSIGN(std::optional<ClientCredentials> credentials, client_credentials(options.security));
  const std::vector<std::string> addresses = options.at;
  for (const std::string& address : addresses) {
    FRESHET_TRY(SocketAddress::parse(address, false, credentials ? Reach::any_host : Reach::this_host));
  }
  const std::optional<ChannelKind> channel = options.channel;
  ChannelOpeners openers = channel_openers(options.security, credentials, options.collective);
  std::unique_ptr<Directory> directory;
  const bool hears_by_directory = options.notifier == Notifier::directory;
  if (options.at.empty() || hears_by_directory) {
    FRESHET_ASSIGN(directory, open_directory(options.directory));
  }
  if (hears_by_directory && !directory->carries_announcements()) {
    return fail(Code::unsupported, format("notifier redis: the directory {} is not on Redis", directory->text()));
  }
  std::unique_ptr<detail::Relay> relay;
  if (options.relay != nullptr) {
    FRESHET_ASSIGN(relay, open_relay(options));
  }
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  FRESHET_ASSIGN(Wake wake, Wake::open());
  SubscriberLoop::Options loop{.subscriber = std::move(options),
                               .credentials = std::move(credentials),
                               .host = this_host(),
                               .at = addresses,
                               .channel = channel,
                               .openers = std::move(openers),
                               .mapped_channel = folder != nullptr ? "file" : "shm"};
  if (::getrandom(&loop.session_seed, sizeof loop.session_seed, 0) != sizeof loop.session_seed) {
    return fail_errno(errno, "draw a session's id");
  }
  loop.label = loop.subscriber.label.empty() ? process_name() : loop.subscriber.label;
  try {
    return std::unique_ptr<Subscriber>(
        new Subscriber(std::make_unique<Impl>(std::move(loop), std::move(folder), std::move(directory),
                                              std::move(relay), std::move(context), std::move(wake))));
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a subscriber's thread: {}", error.what()));
  }
}

Snapshot Subscriber::snapshot() {
  if (impl_->mark.is_inherited()) return {};
  const detail::PinTable::Pin pin = impl_->loop.shelf().pin_current();
  // Looked at after the pin: what is not marked was not stale when it was taken.
  Snapshot snapshot(pin.version, pin.slot, impl_->member && impl_->loop.report().is_lapsed(impl_->clock.now()));
  return snapshot.stale() && impl_->refuses ? Snapshot() : std::move(snapshot);
}

Result<Snapshot> Subscriber::snapshot_at_least(const SnapshotRequest& request, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  const Time asked = impl_->clock.now();
  const Time deadline = deadline_in(request.at_most);
  for (;;) {
    FRESHET_TRY(detail::wait_until_new_enough(impl_->loop, request, asked, deadline, stop));
    Snapshot taken = snapshot();
    if (!taken && impl_->refuses && impl_->loop.report().is_lapsed(impl_->clock.now())) {
      return fail(Code::unavailable,
                  "this member of a group has lapsed and may not know the current version, so it gives no snapshot");
    }
    if (!taken && impl_->loop.shelf().serves()) {
      return fail(Code::out_of_space, "all pins are in use: drop a snapshot first");
    }
    // It may have been gone back from, or withdrawn, in between.
    if (taken && taken.version() >= request.min_version) return taken;
  }
}

Result<Snapshot> Subscriber::snapshot_of(VersionNumber version, Duration at_most, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  if (version == 0) return fail(Code::invalid_argument, "a snapshot of a version needs the version's number");
  const Time deadline = deadline_in(at_most);
  FRESHET_TRY(impl_->take_turn(deadline, stop));
  const Result<detail::PinTable::Pin> pin = detail::bring(impl_->loop, version, deadline, stop);
  impl_->give_turn();
  if (!pin) return fail(pin.error());
  return Snapshot(pin->version, pin->slot, /*stale=*/false);
}

Status Subscriber::stage(VersionNumber version, Duration at_most, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  return detail::stage(impl_->loop, version, at_most, stop);
}

Result<Snapshot> Subscriber::staged_snapshot() {
  FRESHET_TRY(impl_->check_here());
  FRESHET_ASSIGN(const detail::PinTable::Pin pin, impl_->loop.shelf().pin_staged());
  return Snapshot(pin.version, pin.slot, impl_->member && impl_->loop.report().is_lapsed(impl_->clock.now()));
}

Result<VersionNumber> Subscriber::commit_staged(const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  return detail::commit_staged(impl_->loop, stop);
}

Status Subscriber::wait_for(VersionNumber version, Duration at_most, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  return impl_->loop.shelf().wait_for(version, at_most, stop);
}

void Subscriber::applied(VersionNumber version) {
  if (impl_->mark.is_inherited()) return;
  SubscriberLoop& loop = impl_->loop;
  static_cast<void>(loop.report().post([&loop, version] { loop.applied(version); }));
}

Status Subscriber::take_device_memory(std::shared_ptr<gpu::Device> device) {
  FRESHET_TRY(impl_->check_here());
  if (device == nullptr) return fail(Code::invalid_argument, "take device memory: no device");
  {
    MutexLock lock(impl_->device_mutex);
    if (impl_->device == device->info().uuid) return {};
    const gpu::Uuid& taken = impl_->device.emplace(impl_->device.value_or(device->info().uuid));
    if (taken != device->info().uuid) {
      return fail(Code::failed_precondition, format("take memory of device {}: this subscriber takes that of device {}",
                                                    device->info().uuid.text(), taken.text()));
    }
  }
  SubscriberLoop& loop = impl_->loop;
  static_cast<void>(loop.report().post([&loop, device = std::move(device)] { loop.take_device(device); }));
  return {};
}

Result<int> Subscriber::updates_descriptor() {
  FRESHET_TRY(impl_->check_here());
  return impl_->loop.shelf().updates_descriptor();
}

Result<Subscriber::Delivery> Subscriber::next(Duration at_most, const std::stop_token& stop) {
  FRESHET_TRY(impl_->check_here());
  if (!impl_->every) {
    return fail(Code::failed_precondition, "next() is for subscribers of every version; this one takes the latest");
  }
  FRESHET_ASSIGN(const detail::PinTable::Pin pin, impl_->loop.shelf().take_next(at_most, stop));
  return Delivery{.snapshot = Snapshot(pin.version, pin.slot, /*stale=*/false), .update = pin.version->update};
}

SubscriberStatus Subscriber::status() const {
  if (Status here = impl_->check_here(); !here) return SubscriberStatus{.last_error = here.error().message()};
  SubscriberStatus status = impl_->loop.shelf().status(impl_->clock.now());
  status.directory = impl_->loop.directory_health();
  const detail::LoopReport::News news = impl_->loop.report().news();
  status.epoch = news.serving_epoch;
  status.current = news.current;
  status.staged = news.staged;
  status.stale = impl_->member && impl_->loop.report().is_lapsed(impl_->clock.now());
  return status;
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : version_(std::exchange(other.version_, nullptr)),
      slot_(std::exchange(other.slot_, nullptr)),
      stale_(std::exchange(other.stale_, false)) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  if (this != &other) {
    drop();
    version_ = std::exchange(other.version_, nullptr);
    slot_ = std::exchange(other.slot_, nullptr);
    stale_ = std::exchange(other.stale_, false);
  }
  return *this;
}

Snapshot::~Snapshot() { drop(); }

void Snapshot::drop() {
  if (slot_ != nullptr) slot_->table->unpin(*slot_);
  slot_ = nullptr;
  version_ = nullptr;
}

VersionNumber Snapshot::version() const { return version_ == nullptr ? 0 : version_->number(); }
const Manifest& Snapshot::manifest() const { return *version_->manifest; }
Bytes Snapshot::bytes(std::uint32_t tensor) const { return version_->tensors[tensor]; }
Bytes Snapshot::device_bytes(std::uint32_t tensor, const gpu::Uuid& device) const {
  return version_->device == device ? version_->device_tensors[tensor] : Bytes();
}

const detail::ReceivedDelta* Snapshot::delta(std::uint32_t tensor) const {
  if (version_->fetched == nullptr) return nullptr;
  const auto& deltas = version_->fetched->version().deltas;
  return tensor < deltas.size() ? deltas[tensor].get() : nullptr;
}

std::vector<Snapshot::Piece> Snapshot::pieces() const {
  std::vector<Piece> pieces;
  for (const auto& slab : version_->slabs)
    pieces.push_back({.descriptor = slab->descriptor(), .memory = slab->memory(), .mapping = slab});
  if (version_->fetched != nullptr) {
    const std::shared_ptr<const detail::FetchArena> arena = version_->fetched->arena();
    const std::vector<SlabReference> slabs = arena->slabs();
    const std::vector<Bytes> memory = arena->slab_memory();  // Slabs are only added.
    for (std::size_t slab = 0; slab < slabs.size(); ++slab) {
      pieces.push_back({.descriptor = slabs[slab].descriptor, .memory = memory[slab], .mapping = arena});
    }
  }
  return pieces;
}

Result<TensorView> Snapshot::tensor(std::string_view name) const {
  if (version_ == nullptr) return fail(Code::not_found, "no version has come yet");
  const auto index = manifest().architecture->tensor_named(name);
  if (!index) return fail(Code::not_found, format("{} has no tensor {}", to_string(manifest().name), name));
  const TensorSpec& spec = manifest().architecture->tensors()[*index];
  if (!is_served(spec.role) && bytes(*index).empty() && spec.bytes() > 0) {
    return fail(Code::not_found, format("{}: tensor {} has the role {}, which servers do not take",
                                        to_string(manifest().name), name, name_of(spec.role)));
  }
  return TensorView{.spec = spec, .data = bytes(*index)};
}

}  // namespace freshet
