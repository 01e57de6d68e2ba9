// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/supervisor.h"

#include <algorithm>
#include <csignal>

#include "core/base/format.h"
#include "examples/live_run/signals.h"

namespace freshet::live {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kServingRoles[] = {"trainer", "relay", "server"};
constexpr Duration kTick = milliseconds(20);
constexpr Duration kQuickDeath = seconds(10);
constexpr std::uint32_t kQuickDeathsMax = 5;
constexpr Duration kRestartPause = milliseconds(100);
constexpr Duration kStartPatience = seconds(120);
constexpr Duration kDrainPatience = seconds(60);
constexpr Duration kDrainPatienceInterrupted = seconds(5);
constexpr Duration kEndPatience = seconds(30);
constexpr std::uint64_t kBytesPerSecondAtLeast = 30'000'000;  ///< A large model takes its time to start.

double to_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Supervisor::Supervisor(const RunOptions& options, std::string run_folder, Progress& progress)
    : options_(options), progress_(progress), children_(std::move(run_folder)), started_(system_clock().now()) {}

double Supervisor::seconds() const {
  if (ready_at_ == Time{}) return 0;
  return to_seconds((ended_at_ == Time{} ? system_clock().now() : ended_at_) - ready_at_);
}

Status Supervisor::run() {
  FRESHET_TRY(start_all());
  enter(Phase::starting, started_,
        kStartPatience + std::chrono::seconds(options_.model_bytes / kBytesPerSecondAtLeast));
  const Children::Handlers handlers = {
      .on_line = [this](const std::string& line, std::uint32_t start) { on_line(line, start); },
      .on_exit = [this](const Children::Exit& exit) { on_exit(exit); }};
  while (phase_ != Phase::done && failure_) {
    children_.wait(kTick, handlers);
    const Time now = system_clock().now();
    restart_due_roles(now);
    advance(now);
    if (phase_ == Phase::running) progress_.show(tally_, seconds(), now);
  }
  return failure_;
}

Status Supervisor::start_all() {
  std::vector<ChildName> names = {{"repository", 0}, {"trainer", 0}};
  if (options_.hosts.count("relay") > 0) names.push_back({"relay", 0});
  for (std::uint32_t index = 0; index < options_.servers; ++index) names.push_back({"server", index});
  names.push_back({"load", 0});
  for (const ChildName& name : names) {
    roles_[name.text()].name = name;
    FRESHET_TRY(start(name));
  }
  return {};
}

Status Supervisor::start(const ChildName& name) {
  Record& record = roles_[name.text()];
  record.waiting = false;
  std::vector<std::string> arguments;
  if (name.role == "trainer" && options_.versions > 0) {
    const std::uint64_t done = std::min(tally_.versions_published(), options_.versions - 1);
    arguments.push_back(format("--versions-left={}", options_.versions - done));
  }
  return children_.start(name, ++record.lives, arguments);
}

void Supervisor::on_line(const std::string& line, std::uint32_t start) {
  const std::uint64_t resumed_before = tally_.resumed_from;
  const Status read = tally_.on_line(line, start, to_seconds(system_clock().now() - started_));
  if (!read) progress_.say(read.error().message());
  if (tally_.resumed_from != resumed_before) {
    progress_.say(format("trainer: goes on from {}@{}", kModelName, tally_.resumed_from));
  }
}

void Supervisor::on_exit(const Children::Exit& exit) {
  const bool ending = phase_ != Phase::starting && phase_ != Phase::running;
  if (ending) {
    if (!exit.clean) progress_.say(format("{} at the end: {}", exit.name.text(), exit.how));
    return;
  }
  Record& record = roles_[exit.name.text()];
  record.quick_deaths = exit.lived < kQuickDeath ? record.quick_deaths + 1 : 0;
  if (record.quick_deaths >= kQuickDeathsMax) {
    failure_ = fail(Code::unavailable, format("{} died {} times soon after its start ({}); giving up", exit.name.text(),
                                              record.quick_deaths, exit.how));
    return;
  }
  progress_.say(format("{}: {}; starting it again", exit.name.text(), exit.how));
  record.waiting = true;
  record.start_at = system_clock().now() + kRestartPause * record.quick_deaths;
}

void Supervisor::restart_due_roles(Time now) {
  if (phase_ != Phase::starting && phase_ != Phase::running) return;
  for (auto& [text, record] : roles_) {
    if (!record.waiting || record.start_at > now) continue;
    ++restarts_;
    if (Status started = start(record.name); !started) failure_ = std::move(started);
  }
}

void Supervisor::enter(Phase phase, Time now, Duration at_most) {
  phase_ = phase;
  phase_deadline_ = now + at_most;
}

bool Supervisor::limits_reached() const {
  if (options_.seconds > 0 && seconds() >= options_.seconds) return true;
  return options_.versions > 0 && tally_.versions_published() >= options_.versions;
}

bool Supervisor::drained() const {
  const bool possible = children_.alive("trainer") && children_.alive("repository");
  return !possible || (tally_.finished_at && tally_.newest_stored >= *tally_.finished_at);
}

void Supervisor::signal_serving(int signal_number) {
  for (const char* role : kServingRoles) children_.signal(role, signal_number);
}

bool Supervisor::serving_alive() const {
  return std::any_of(std::begin(kServingRoles), std::end(kServingRoles),
                     [this](const char* role) { return children_.alive(role); });
}

/// A phase ends when what it waits for is there, or its time is over; what is left then is killed.
void Supervisor::advance(Time now) {
  const bool interrupted = interrupt_count() > 0;
  if (interrupt_count() > 1) return enter(Phase::done, now, {});  // The destructor of Children kills the rest.
  switch (phase_) {
    case Phase::starting:
      if (interrupted) return end_run(now);
      if (tally_.load_ready) {
        ready_at_ = now;
        return enter(Phase::running, now, {});
      }
      if (past_deadline(now)) failure_ = fail(Code::timed_out, "no server had a version in time");
      return;
    case Phase::running:
      if (interrupted || limits_reached()) end_run(now);
      return;
    case Phase::ending_load:
      if (children_.alive("load") && !past_deadline(now)) return;
      children_.signal("load", SIGKILL);
      children_.signal("trainer", SIGUSR1);
      return enter(Phase::draining, now, interrupted ? kDrainPatienceInterrupted : kDrainPatience);
    case Phase::draining:
      if (!drained() && !past_deadline(now) && !(interrupted && tally_.newest_stored == 0)) return;
      signal_serving(SIGTERM);
      return enter(Phase::ending_serving, now, kEndPatience);
    case Phase::ending_serving:
      if (serving_alive() && !past_deadline(now)) return;
      signal_serving(SIGKILL);
      children_.signal("repository", SIGTERM);
      return enter(Phase::ending_repository, now, kEndPatience);
    case Phase::ending_repository:
      if (children_.alive("repository") && !past_deadline(now)) return;
      return enter(Phase::done, now, {});
    case Phase::done: return;
  }
}

void Supervisor::end_run(Time now) {
  ended_at_ = now;
  children_.signal("load", SIGTERM);
  enter(Phase::ending_load, now, milliseconds(options_.deadline_ms) + kEndPatience);
}

}  // namespace freshet::live
