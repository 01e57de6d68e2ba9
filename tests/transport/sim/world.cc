// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/world.h"

#include "core/base/format.h"

namespace freshet::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Duration World::between(Duration low, Duration high) {
  return low + Duration(static_cast<std::int64_t>(random(static_cast<std::uint64_t>((high - low).count()) + 1)));
}

void World::after(Duration delay, std::function<void()> event) {
  events_.emplace(std::pair(now_ + std::max(delay, Duration(0)), ++scheduled_), std::move(event));
}

void World::run_until(Time end) {
  while (!events_.empty() && events_.begin()->first.first <= end) {
    auto next = events_.extract(events_.begin());
    now_ = next.key().first;
    next.mapped()();
  }
  now_ = end;
}

void World::violated(const std::string& what) const {
  throw Violation(format("at {:.6f} s: {}", std::chrono::duration<double>(now_.time_since_epoch()).count(), what));
}

void Process::start() {
  ++life_;
  alive_ = true;
  stopped_ = false;
}

void Process::kill() {
  ++life_;
  alive_ = stopped_ = false;
  backlog_.clear();
}

void Process::resume() {
  stopped_ = false;
  for (auto& event : std::exchange(backlog_, {})) post(Duration(0), std::move(event));
}

void Process::post(Duration delay, std::function<void()> event) {
  world_.after(delay, [this, life = life_, event = std::move(event)] {
    if (life == life_) happen(event);
  });
}

void Process::post_any_life(Duration delay, std::function<void()> event) {
  world_.after(delay, [this, event = std::move(event)] { happen(event); });
}

void Process::happen(std::function<void()> event) {
  if (!alive_) return;
  if (stopped_) return backlog_.push_back(std::move(event));
  event();
}

void Network::send(Process& to, const std::function<void()>& deliver) {
  if (world_.chance(loss_)) return;
  to.post_any_life(delay(), deliver);
  if (world_.chance(doubled_)) to.post_any_life(delay(), deliver);
}

Duration Network::delay() {
  if (calm_ || !world_.chance(0.05)) return world_.between(microseconds(20), milliseconds(2));
  return world_.between(milliseconds(2), milliseconds(600));
}

}  // namespace freshet::sim
