// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A world of processes on a simulated clock, all of its chances drawn from one seed. Nothing here knows the protocol.

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"

namespace freshet::sim {

/// A property does not hold; ends the run.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs the simulation to its end, or to the first property that does not hold; that stands in the outcome.
template <typename Simulation>
auto outcome_of(Simulation&& simulation) {
  std::string violation;
  try {
    simulation.run();
  } catch (const Violation& found) {
    violation = found.what();
  }
  auto outcome = simulation.outcome();
  outcome.violation = std::move(violation);
  return outcome;
}

/// Time, chance, and what happens next. Events of the same time happen in the order in which they were scheduled.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  Time now() const { return now_; }
  std::uint64_t random(std::uint64_t below) { return random_() % below; }
  bool chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  Duration between(Duration low, Duration high);

  void after(Duration delay, std::function<void()> event);
  void run_until(Time end);
  /// Throws a Violation that names the time.
  [[noreturn]] void violated(const std::string& what) const;

 private:
  Time now_{std::chrono::seconds(1)};
  std::uint64_t scheduled_ = 0;
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> events_;
  std::mt19937_64 random_;
};

/// Something that runs, is stopped (SIGSTOP: whatever happens to it waits), continues, is killed and is started again.
class Process {
 public:
  explicit Process(World& world) : world_(world) {}

  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  std::uint64_t life() const { return life_; }

  void start();
  void kill();
  void stop() { stopped_ = alive_; }
  void resume();

  /// Happens to this life of the process, unless it ends before.
  void post(Duration delay, std::function<void()> event);
  /// Happens to whichever life the process has then.
  void post_any_life(Duration delay, std::function<void()> event);

 private:
  void happen(std::function<void()> event);

  World& world_;
  bool alive_ = false;
  bool stopped_ = false;
  std::uint64_t life_ = 0;
  std::vector<std::function<void()>> backlog_;
};

/// Loses, doubles, delays and reorders, until it is calm.
class Network {
 public:
  explicit Network(World& world) : world_(world) {}
  void set_faults(double loss, double doubled) { loss_ = loss, doubled_ = doubled; }
  /// Nothing is lost or doubled any more, and delays are short.
  void calm() { calm_ = true, loss_ = doubled_ = 0; }

  /// A message that may be lost.
  void send(Process& to, const std::function<void()>& deliver);
  /// The kernel's word (a connection, its end): comes late, but comes.
  Duration delay();

 private:
  World& world_;
  double loss_ = 0;
  double doubled_ = 0;
  bool calm_ = false;
};

}  // namespace freshet::sim
