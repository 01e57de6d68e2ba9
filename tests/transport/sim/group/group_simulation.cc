// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "core/base/format.h"
#include "tests/transport/sim/group/group_member.h"
#include "tests/transport/sim/group/group_publisher.h"

namespace freshet::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kGroupStormFor = seconds(20);
constexpr auto kCalmFor = seconds(6);
/// After the last publish: the membership time, a candidate's deadline, and the longest pauses of the protocol.
constexpr auto kGroupConvergeWithin = seconds(12);
constexpr auto kLookEvery = milliseconds(20);

class GroupSimulation {
 public:
  GroupSimulation(std::uint64_t seed, GroupSabotage sabotage) : host_(seed, sabotage) {
    host_.group_commit = host_.world.chance(0.5);
    host_.membership = milliseconds(host_.world.chance(0.5) ? 800 : 2000);
    publisher_ = std::make_unique<GroupPublisher>(host_);
    host_.publisher = publisher_.get();
    add({.label = "one"});
    add({.label = "two"});
    add({.label = "slow", .install_max = milliseconds(400)});
    add({.label = "follower", .staged = false});
    add({.label = "late", .staged = false, .install_max = milliseconds(5)});
  }

  void run() {
    World& world = host_.world;
    host_.network.set_faults(0.002 * static_cast<double>(world.random(100)),
                             0.002 * static_cast<double>(world.random(50)));
    for (auto& member : members_) start_later(*member);
    world.after(world.between(Duration(0), seconds(1)), [this] { publisher_->start(); });
    world.after(seconds(1), [this] { storm(); });
    world.after(seconds(1), [this] { operate(); });
    world.after(seconds(1), [this] { look(); });
    world.run_until(Time(seconds(1)) + kGroupStormFor);
    calm();
    world.run_until(world.now() + kCalmFor);
    publisher_->stop_training();
    world.run_until(world.now() + kGroupConvergeWithin);
    check_converged();
  }

  GroupOutcome outcome() const {
    return {.commits = host_.commits,
            .given_up = host_.given_up,
            .rollbacks = host_.rollbacks,
            .swaps = host_.swaps,
            .lapses = host_.lapses,
            .behind = host_.behind};
  }

 private:
  void add(GroupMember::Kind kind) {
    members_.push_back(std::make_unique<GroupMember>(host_, std::move(kind)));
    host_.members.push_back(members_.back().get());
  }

  template <typename P>
  void start_later(P& process) {
    host_.world.after(host_.world.between(milliseconds(1), seconds(2)), [&process] {
      if (!process.process().alive()) process.start();
    });
  }

  template <typename P>
  void trouble(P& process) {
    if (!process.process().alive()) return;
    World& world = host_.world;
    if (world.chance(0.2)) return process.jump(world.between(Duration(0), seconds(3)));
    if (world.chance(0.4)) {
      process.kill();
      return start_later(process);
    }
    process.process().stop();
    const Duration time = world.between(milliseconds(1), seconds(world.chance(0.3) ? 5 : 1));
    world.after(time, [&process] { process.process().resume(); });
  }

  void storm() {
    if (!host_.faults) return;
    World& world = host_.world;
    world.after(world.between(milliseconds(50), milliseconds(1500)), [this] { storm(); });
    if (!publisher_->process().alive()) start_later(*publisher_);  // Killed in the middle of a swap.
    if (world.chance(0.2)) return trouble(*publisher_);
    GroupMember& victim = *members_[world.random(members_.size())];
    if (world.chance(0.5)) return trouble(victim);
    victim.cut(world.chance(0.7), world.chance(0.7));
    world.after(world.between(milliseconds(10), seconds(4)), [&victim] { victim.cut(false, false); });
  }

  void operate() {
    if (!host_.faults) return;
    host_.world.after(host_.world.between(milliseconds(100), milliseconds(2500)), [this] { operate(); });
    if (running(*publisher_)) publisher_->ask(/*only_release=*/false);
  }

  static bool running(GroupPublisher& publisher) {
    return publisher.process().alive() && !publisher.process().stopped();
  }

  void look() {
    host_.world.after(kLookEvery, [this] { look(); });
    for (const auto& member : members_) member->look();
  }

  void calm() {
    host_.faults = false;
    host_.network.calm();
    const auto revive = [](auto& process) {
      process.process().resume();
      if (!process.process().alive()) process.start();
    };
    revive(*publisher_);
    for (auto& member : members_) {
      member->cut(false, false);
      revive(*member);
    }
    release();
  }

  /// Until there is no hold any more: somebody else's activation may still be under way.
  void release() {
    const auto& current = publisher_->machine().activation().current();
    if (current.hold) publisher_->ask(/*only_release=*/true);
    host_.world.after(milliseconds(500), [this] { release(); });
  }

  void check_converged() {
    const protocol::Activation& activation = publisher_->machine().activation();
    const protocol::Current& current = activation.current();
    if (activation.candidate() != 0) host_.world.violated(format("@{} is still staged", activation.candidate()));
    if (current.hold || current != host_.record) {
      host_.world.violated(format("({}, {}) is current, ({}, {}) is recorded", current.epoch, current.version,
                                  host_.record.epoch, host_.record.version));
    }
    if (current.version != host_.last_number) {
      host_.world.violated(
          format("@{} is current and not @{}: {}", current.version, host_.last_number, activation.last_failure()));
    }
    for (const auto& member : members_) {
      const auto [epoch, number] = member->served();
      // What was merely published under an epoch a member does not take by itself.
      const bool has_come = number == current.version || (member->kind().staged && !host_.group_commit);
      if (epoch == current.epoch && has_come) continue;
      host_.world.violated(format("{} serves ({}, {}) and not ({}, {}): {}", member->label(), epoch, number,
                                  current.epoch, current.version, member->machine().session().last_refusal()));
    }
  }

  GroupHost host_;
  std::unique_ptr<GroupPublisher> publisher_;
  std::vector<std::unique_ptr<GroupMember>> members_;
};

}  // namespace

GroupOutcome simulate_group(std::uint64_t seed, GroupSabotage sabotage) {
  return outcome_of(GroupSimulation(seed, sabotage));
}

}  // namespace freshet::sim
