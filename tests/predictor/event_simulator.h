// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A trainer, its deliveries and a server, played event by event. It knows the rules of the replay clock as prose has
/// them, and shares no code and no formula with predictor/.

#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <vector>

namespace freshet::test {

struct Scene {
  std::int64_t step = 1;
  std::int64_t stall = 0;
  std::int64_t delivery = 0;
  std::int64_t between_requests = 1;
  int warmup = 1;
  int rows = 2;
  int requests = 1;
};

/// For each row, how many requests its version answered.
inline std::vector<std::int64_t> play(const Scene& scene, const std::set<int>& publish_after) {
  // What happens at one time happens in this order: a version that arrives at the time of a request answers it.
  enum Kind { step_ends, stall_ends, version_arrives, request_comes };
  struct Event {
    std::int64_t time;
    Kind kind;
    int row;
    bool operator>(const Event& other) const {
      if (time != other.time) return time > other.time;
      if (kind != other.kind) return kind > other.kind;
      return row > other.row;
    }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::vector<std::int64_t> answered(static_cast<std::size_t>(scene.rows) + 1);
  int served = scene.warmup;
  int requests_left = scene.requests;
  const auto begin_step = [&](std::int64_t now, int row) {
    if (row <= scene.rows) events.push({now + scene.step, step_ends, row});
  };
  begin_step(0, scene.warmup + 1);
  events.push({scene.between_requests, request_comes, 0});
  while (requests_left > 0) {
    const Event event = events.top();
    events.pop();
    switch (event.kind) {
      case step_ends:
        if (publish_after.contains(event.row)) {
          events.push({event.time + scene.stall, stall_ends, event.row});
        } else {
          begin_step(event.time, event.row + 1);
        }
        break;
      case stall_ends:
        events.push({event.time + scene.delivery, version_arrives, event.row});
        begin_step(event.time, event.row + 1);
        break;
      case version_arrives: served = event.row; break;
      case request_comes:
        ++answered[static_cast<std::size_t>(served)];
        --requests_left;
        events.push({event.time + scene.between_requests, request_comes, 0});
        break;
    }
  }
  return answered;
}

}  // namespace freshet::test
