// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/simulation.h"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "core/base/format.h"
#include "tests/transport/sim/publisher.h"
#include "tests/transport/sim/relay.h"
#include "tests/transport/sim/subscriber.h"

namespace freshet::sim {
namespace {

using protocol::ChannelKind;
using protocol::Mode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kStormFor = seconds(12);
/// Longer than the longest pin, so that whatever fills the arena in the storm is gone before the last version.
constexpr auto kTrainOnFor = seconds(4);
/// Within this time after the last publish everybody serves it; the longest pause of the protocol is 1.6 s.
constexpr auto kConvergeWithin = seconds(8);
/// Sessions that can fetch outlive their doors for that long.
constexpr auto kLeaseSilence = seconds(4);
constexpr auto kLongestPin = seconds(4);

constexpr std::uint32_t kNetworks = protocol::bit(ChannelKind::ucx) | protocol::bit(ChannelKind::zmq);
constexpr std::uint32_t kAll = kNetworks | protocol::bit(ChannelKind::shm);

std::shared_ptr<const Architecture> make_architecture(World& world) {
  std::vector<TensorSpec> tensors;
  const std::uint64_t count = 2 + world.random(6);
  for (std::uint64_t i = 0; i < count; ++i) {
    tensors.push_back({.name = format("layer{}.weight", i), .dtype = DType::u8, .shape = {64 * (1 + world.random(3))}});
  }
  auto architecture = Architecture::guess_chain(std::move(tensors));
  if (!architecture) world.violated(architecture.error().message());
  return *architecture;
}

class Simulation {
 public:
  Simulation(std::uint64_t seed, Sabotage sabotage) : host_(seed, sabotage) {
    host_.refusals = host_.world.chance(0.5);
    host_.architecture = make_architecture(host_.world);
    publisher_ = std::make_unique<SimPublisher>(host_);
    host_.publisher = publisher_.get();
    host_.sources.push_back(publisher_.get());
    add_neighbours();
    add_others();
  }

  void run() {
    host_.network.set_faults(/*loss=*/0.002 * static_cast<double>(host_.world.random(100)),
                             /*doubled=*/0.002 * static_cast<double>(host_.world.random(50)));
    for (auto& subscriber : subscribers_) start_later(*subscriber);
    host_.world.after(host_.world.between(Duration(0), seconds(1)), [this] { publisher_->start(); });
    host_.world.after(seconds(1), [this] { storm(); });
    host_.world.run_until(Time(seconds(1)) + kStormFor);
    calm();
    host_.world.run_until(host_.world.now() + kTrainOnFor);
    publisher_->stop_training();
    host_.world.run_until(host_.world.now() + kConvergeWithin);
    check_converged();
    host_.reading = false;
    host_.world.run_until(host_.world.now() + kLongestPin);
    check_nothing_leaked();
    for (auto& subscriber : subscribers_) subscriber->leave();
    host_.world.run_until(host_.world.now() + kLeaseSilence);
    for (Source* source : host_.sources) {
      if (source == static_cast<Source*>(stopped_) || source->hub()->machine().sessions().empty()) continue;
      host_.world.violated("a session outlived its goodbye: " + sessions(*source));
    }
  }

  Outcome outcome() const {
    Outcome outcome{.versions = host_.oracle.count(),
                    .skipped = publisher_->skipped(),
                    .shed = publisher_->shed(),
                    .incarnations = host_.incarnations};
    for (const auto& subscriber : subscribers_) {
      outcome.installs += subscriber->installs();
      outcome.gaps += subscriber->gaps();
      outcome.fetches += subscriber->fetches();
      outcome.installs_on_device += subscriber->installs_on_device();
    }
    return outcome;
  }

 private:
  void add(std::unique_ptr<SimSubscriber> subscriber) {
    host_.subscribers.push_back(subscriber.get());
    subscribers_.push_back(std::move(subscriber));
  }
  void add(SimSubscriber::Kind kind) { add(std::make_unique<SimSubscriber>(host_, std::move(kind))); }

  void add_relay(SimSubscriber::Kind kind) {
    auto relay = std::make_unique<SimRelay>(host_, std::move(kind));
    relays_.push_back(relay.get());
    host_.sources.push_back(relay.get());
    add(std::move(relay));
  }

  /// On the trainer's host. In half of the runs they can fetch too, should their doors not open.
  void add_neighbours() {
    const std::uint32_t channels = host_.world.chance(0.5) ? kAll : protocol::bit(ChannelKind::shm);
    add({.label = "fast", .channels = channels, .device = kDevice});
    add({.label = "pinning", .pin_max = milliseconds(1000), .channels = channels, .device = kDevice});
    add({.label = "other-gpu", .channels = channels, .device = kOtherDevice});
    add({.label = "slow-every", .mode = Mode::every, .take_max = milliseconds(300), .channels = channels});
    add({.label = "sink", .mode = Mode::every, .stores = true, .take_max = milliseconds(20), .channels = channels});
  }

  /// On other hosts: a relay, those behind it on its host, another relay behind that, and some on hosts of their own.
  void add_others() {
    add_relay({.label = "relay", .mode = Mode::every, .host = "there", .channels = kNetworks});
    add_relay({.label = "next-relay",
               .mode = Mode::every,
               .host = "beyond",
               .channels = kNetworks,
               .sources = {"relay", "trainer"}});
    add({.label = "beyond", .host = "beyond", .channels = kAll, .sources = {"next-relay", "relay"}});
    add({.label = "farthest", .host = "far off", .channels = kNetworks, .sources = {"next-relay", "relay", "trainer"}});
    add({.label = "behind", .host = "there", .channels = kAll, .sources = {"relay", "trainer"}});
    add({.label = "behind-every",
         .mode = Mode::every,
         .take_max = milliseconds(100),
         .host = "there",
         .channels = kAll,
         .sources = {"relay", "trainer"}});
    add({.label = "far", .host = "elsewhere", .channels = kNetworks, .sources = {"trainer", "relay"}});
    add({.label = "far-sink",
         .mode = Mode::every,
         .stores = true,
         .host = "elsewhere",
         .channels = kNetworks,
         .sources = {host_.world.chance(0.5) ? "trainer" : "relay"}});
  }

  template <typename P>
  void start_later(P& process) {
    host_.world.after(host_.world.between(milliseconds(1), seconds(1)), [&process] {
      if (!process.process().alive()) process.start();
    });
  }

  template <typename P>
  void trouble(P& process) {
    if (!process.process().alive()) return;
    if (host_.world.chance(0.4)) {
      process.kill();
      return start_later(process);
    }
    process.process().stop();
    const Duration time = host_.world.between(milliseconds(1), seconds(host_.world.chance(0.4) ? 6 : 1));
    host_.world.after(time, [&process] { process.process().resume(); });
  }

  void storm() {
    if (!host_.faults) return;
    host_.world.after(host_.world.between(milliseconds(10), milliseconds(900)), [this] { storm(); });
    if (host_.world.chance(0.2)) return trouble(*publisher_);
    if (host_.world.chance(0.2)) {
      Hub* hub = host_.sources[host_.world.random(host_.sources.size())]->hub();
      if (hub != nullptr) hub->data().break_one();
      return;
    }
    SimSubscriber& victim = *subscribers_[host_.world.random(subscribers_.size())];
    if (host_.world.chance(0.2)) return victim.reconnect();
    trouble(victim);
  }

  void calm() {
    host_.faults = false;
    host_.network.calm();
    const auto revive = [](auto& process) {
      process.process().resume();
      if (!process.process().alive()) process.start();
    };
    revive(*publisher_);
    for (auto& subscriber : subscribers_) revive(*subscriber);
    // One may be stopped for good: whoever knows another place goes around it.
    if (!host_.world.chance(0.3)) return;
    stopped_ = relays_[host_.world.random(relays_.size())];
    stopped_->process().stop();
  }

  /// It is stopped for good, or knows nobody else.
  bool is_stuck(const SimSubscriber& subscriber) const {
    const auto& sources = subscriber.kind().sources;
    return stopped_ != nullptr &&
           (&subscriber == stopped_ || (sources.size() == 1 && sources.front() == stopped_->name()));
  }

  void check_converged() {
    const VersionNumber newest = publisher_->newest();
    for (auto& subscriber : subscribers_) {
      if (subscriber->arrived() == newest || is_stuck(*subscriber)) continue;
      // A trainer whose directory was lost, and who found no room since: at least it knows to number above.
      const bool is_ahead = host_.lost_directory && subscriber->arrived() > newest;
      if (is_ahead && publisher_->machine().number_floor() >= subscriber->arrived()) continue;
      host_.world.violated(format(
          "{} serves {} and not {}: {}; {} of {} bytes are live, {} captures skipped; {}; {}", subscriber->kind().label,
          subscriber->arrived(), newest, subscriber->machine().session().last_refusal(), publisher_->live_bytes(),
          publisher_->slab_bytes(), publisher_->skipped(), sessions(*publisher_), sessions(*relays_.front())));
    }
  }

  void check_nothing_leaked() {
    check_kept(*publisher_, publisher_->live_bytes() + publisher_->live_bytes_on_device());
    for (SimRelay* relay : relays_) {
      if (relay != stopped_) check_kept(*relay, relay->arena().live_bytes());
    }
    for (const auto& subscriber : subscribers_) {
      if (is_stuck(*subscriber)) continue;
      const OwnArena& arena = subscriber->arena();
      if (arena.versions() > 1) {
        host_.world.violated(
            format("{} keeps {} versions, with nobody reading", subscriber->kind().label, arena.versions()));
      }
      if (std::find(relays_.begin(), relays_.end(), subscriber.get()) != relays_.end()) continue;
      const std::uint64_t wanted = arena.versions() * host_.architecture->bytes();
      if (arena.live_bytes() == wanted) continue;
      host_.world.violated(
          format("{} bytes are live at {}, its version has {}", arena.live_bytes(), subscriber->kind().label, wanted));
    }
  }

  /// No more versions than are retained, and no more bytes than those have.
  void check_kept(Source& source, std::uint64_t live) {
    const VersionTable& versions = source.hub()->machine().versions();
    if (versions.numbers().size() > source.hub()->retained_versions()) {
      host_.world.violated(format("{} versions are kept at {}, with nobody reading: {}", versions.numbers().size(),
                                  source.name(), sessions(source)));
    }
    std::set<SegmentIndex> named;
    std::uint64_t wanted = 0;
    for (const VersionNumber number : versions.numbers()) {
      const auto& segments = versions.find(number)->segments;
      for (std::uint32_t i = 0; i < segments.size(); ++i) {
        if (!named.insert(segments[i]).second) continue;
        const bool is_on_device = (segments[i] & kOnDevice) != 0;
        wanted += is_on_device ? publisher_->bytes_on_device(segments[i]) : host_.architecture->tensors()[i].bytes();
      }
    }
    if (live == wanted) return;
    host_.world.violated(format("{} bytes are live at {}, its versions have {}", live, source.name(), wanted));
  }

  static std::string sessions(Source& source) {
    if (source.hub() == nullptr) return source.name() + " is dead";
    std::string text = source.name() + ": ";
    for (const auto& session : source.hub()->machine().sessions()) {
      text += format("{}{} holds {} and waits for {}; ", session.label, session.silent ? " (silent)" : "",
                     fmt::join(session.held, ","), session.queued_versions);
    }
    return text;
  }

  Host host_;
  std::unique_ptr<SimPublisher> publisher_;
  std::vector<std::unique_ptr<SimSubscriber>> subscribers_;
  std::vector<SimRelay*> relays_;
  SimRelay* stopped_ = nullptr;  ///< For good.
};

}  // namespace

Outcome simulate(std::uint64_t seed, Sabotage sabotage) { return outcome_of(Simulation(seed, sabotage)); }

}  // namespace freshet::sim
