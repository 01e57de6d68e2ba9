// SPDX-License-Identifier: Apache-2.0
#include "repo/object_store/exclusion.h"

#include <array>
#include <barrier>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kRaces = 32;
constexpr std::size_t kRacers = 4;
/// Races side by side: a store may let a creation that loses wait for a second (SeaweedFS does).
constexpr std::size_t kLanes = 4;
constexpr std::uint64_t kProbeBytesMax = 64;

Creation create_probe(ObjectStore& store, const std::string& key, std::size_t racer, Time deadline) {
  const std::string text = format("racer {}", racer);
  return store.create(key, bytes_of(text.data(), text.size()), deadline);
}

Status no_exclusion(const ObjectStore& store, std::string_view what) {
  return fail(
      Code::unsupported,
      format("{}: {}; the store's conditional puts (If-None-Match: *) do not exclude each other, so it can keep "
             "no repository",
             store.place(), what));
}

/// What the creations of one name by several racers, in any order, tell.
Status judge_race(const ObjectStore& store, const std::string& key, const std::vector<Creation>& creations,
                  Time deadline) {
  std::size_t winners = 0;
  std::size_t winner = 0;
  for (std::size_t racer = 0; racer < creations.size(); ++racer) {
    const Creation& creation = creations[racer];
    if (creation.outcome == Created::created) {
      ++winners;
      winner = racer;
    } else if (creation.outcome != Created::exists) {
      return fail(creation.error);
    }
  }
  if (winners > 1) return no_exclusion(store, format("{} requests made object {}", winners, key));
  FRESHET_ASSIGN(const Object object, store.get(key, kProbeBytesMax, deadline));
  // With no winner, one made it, lost the answer, and was told at its next try that the object exists.
  if (winners == 1 && object.bytes != format("racer {}", winner)) {
    return no_exclusion(store, format("object {} was replaced after its creation", key));
  }
  return {};
}

Status create_twice(ObjectStore& store, const std::string& key, Time deadline) {
  std::vector<Creation> creations;
  for (std::size_t racer = 0; racer < 2; ++racer) creations.push_back(create_probe(store, key, racer, deadline));
  return judge_race(store, key, creations, deadline);
}

Status race(ObjectStore& store, const std::vector<std::string>& keys, Time deadline) {
  std::vector<std::vector<Creation>> creations(keys.size(), std::vector<Creation>(kRacers));
  std::barrier start(static_cast<std::ptrdiff_t>(kRacers));
  const auto run = [&](std::size_t racer) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      start.arrive_and_wait();
      creations[i][racer] = create_probe(store, keys[i], racer, deadline);
    }
  };
  std::vector<std::jthread> racers;
  try {
    for (std::size_t racer = 0; racer < kRacers; ++racer) racers.emplace_back(run, racer);
  } catch (const std::system_error& error) {
    // Those who started wait for the missing ones.
    for (std::size_t missing = racers.size(); missing < kRacers; ++missing) start.arrive_and_drop();
    return fail(Code::unavailable, format("start a thread: {}", error.what()));
  }
  racers.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) FRESHET_TRY(judge_race(store, keys[i], creations[i], deadline));
  return {};
}

Status race_side_by_side(ObjectStore& store, const std::vector<std::string>& keys, Time deadline) {
  std::array<Status, kLanes> raced;
  std::vector<std::jthread> lanes;
  try {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&, lane] {
        std::vector<std::string> own;
        for (std::size_t i = lane; i < keys.size(); i += kLanes) own.push_back(keys[i]);
        raced[lane] = race(store, own, deadline);
      });
    }
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a thread: {}", error.what()));
  }
  lanes.clear();
  for (Status& one : raced) FRESHET_TRY(std::move(one));
  return {};
}

}  // namespace

Status check_exclusion(ObjectStore& store, std::string_view folder, Time deadline) {
  const std::string place = format("{}/{:016x}", folder, random_u64(system_env()));
  std::vector<std::string> keys;
  for (std::size_t i = 0; i <= kRaces; ++i) keys.push_back(format("{}/{}", place, i));
  Status checked = create_twice(store, keys.back(), deadline);
  const std::vector<std::string> raced(keys.begin(), keys.end() - 1);
  if (checked) checked = race_side_by_side(store, raced, deadline);
  // What cannot be removed stays: a few bytes under a name that nobody reads.
  if (checked || checked.error().code() == Code::unsupported) {
    for (const std::string& key : keys) static_cast<void>(store.remove(key, deadline));
  }
  return checked;
}

}  // namespace freshet
