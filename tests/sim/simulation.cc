#include "tests/sim/simulation.h"

#include <memory>
#include <vector>

#include "core/format.h"
#include "tests/sim/publisher.h"
#include "tests/sim/subscriber.h"

namespace freshet::sim {
namespace {

using protocol::Mode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kStormFor = seconds(12);
/// Longer than the longest pin, so that whatever fills the arena in the storm is gone before the last version.
constexpr auto kTrainOnFor = seconds(4);
/// Within this time after the last publish everybody serves it; the longest pause of the protocol is 1.6 s.
constexpr auto kConvergeWithin = seconds(8);
constexpr auto kLongestPin = seconds(4);

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
    add({.label = "fast"});
    add({.label = "pinning", .pin_max = milliseconds(1000)});
    add({.label = "slow-every", .mode = Mode::every, .take_max = milliseconds(300)});
    add({.label = "sink", .mode = Mode::every, .stores = true, .take_max = milliseconds(20)});
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
    host_.world.run_until(host_.world.now() + seconds(2));
    if (!publisher_->machine().sessions().empty())
      host_.world.violated("a session outlived its goodbye: " + sessions());
  }

  Outcome outcome() const {
    Outcome outcome{.versions = host_.oracle.count(),
                    .skipped = publisher_->skipped(),
                    .shed = publisher_->shed(),
                    .incarnations = host_.incarnations};
    for (const auto& subscriber : subscribers_) {
      outcome.installs += subscriber->installs();
      outcome.gaps += subscriber->gaps();
    }
    return outcome;
  }

 private:
  void add(SimSubscriber::Kind kind) {
    subscribers_.push_back(std::make_unique<SimSubscriber>(host_, std::move(kind)));
    host_.subscribers.push_back(subscribers_.back().get());
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
    const Duration time = host_.world.between(milliseconds(1), seconds(host_.world.chance(0.3) ? 5 : 1));
    host_.world.after(time, [&process] { process.process().resume(); });
  }

  void storm() {
    if (!host_.faults) return;
    host_.world.after(host_.world.between(milliseconds(10), milliseconds(900)), [this] { storm(); });
    if (host_.world.chance(0.25)) return trouble(*publisher_);
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
  }

  void check_converged() {
    const VersionNumber newest = host_.oracle.newest();
    for (auto& subscriber : subscribers_) {
      if (subscriber->arrived() == newest) continue;
      host_.world.violated(format("{} serves {} and not {}: {}; {} of {} bytes are live, {} captures skipped; {}",
                                  subscriber->kind().label, subscriber->arrived(), newest,
                                  subscriber->machine().last_refusal(), publisher_->live_bytes(),
                                  publisher_->slab_bytes(), publisher_->skipped(), sessions()));
    }
  }

  void check_nothing_leaked() {
    const auto numbers = publisher_->machine().versions().numbers();
    if (numbers.size() != 1) {
      host_.world.violated(format("{} versions are kept, with nobody reading: {}", numbers.size(), sessions()));
    }
    const std::uint64_t live = publisher_->live_bytes();
    const std::uint64_t wanted = host_.architecture->bytes();
    if (live != wanted) host_.world.violated(format("{} bytes are live, the newest version has {}", live, wanted));
  }

  std::string sessions() const {
    std::string text;
    for (const auto& session : publisher_->machine().sessions()) {
      text += format("{}{} holds {} and waits for {}; ", session.label, session.silent ? " (silent)" : "",
                     fmt::join(session.held, ","), session.queued_versions);
    }
    return text;
  }

  Host host_;
  std::unique_ptr<SimPublisher> publisher_;
  std::vector<std::unique_ptr<SimSubscriber>> subscribers_;
};

}  // namespace

Outcome simulate(std::uint64_t seed, Sabotage sabotage) {
  Simulation simulation(seed, sabotage);
  std::string violation;
  try {
    simulation.run();
  } catch (const Violation& found) {
    violation = found.what();
  }
  Outcome outcome = simulation.outcome();
  outcome.violation = std::move(violation);
  return outcome;
}

}  // namespace freshet::sim
