// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The versions that the program crash_writer puts, so that the test that kills it knows every byte.

#include "tests/repo/world.h"

namespace freshet {

/// Version `sequence`: the number alone decides its bytes. Some are small, some too large for the log.
inline TestVersion crash_version(std::uint64_t sequence) {
  const auto architecture = test_architecture({100, 300'000, 3'000'000});
  std::mt19937_64 first_random(1);
  TestVersion version = make_version("crash", test_id(1), architecture, nullptr, {}, first_random);
  for (std::uint64_t next = 2; next <= sequence; ++next) {
    std::mt19937_64 random(next);
    std::vector<std::uint32_t> changed = {0};
    if (next % 2 == 0) changed.push_back(1);
    if (next % 3 == 0) changed.push_back(2);
    if (next % 5 == 0) changed = {1, 2};
    const TestVersion base = std::move(version);
    version = make_version("crash", test_id(next), architecture, &base, changed, random);
  }
  version.manifest.name.number = sequence;
  if (sequence > 1) version.manifest.ancestor_name = {.model = "crash", .number = sequence - 1};
  return version;
}

}  // namespace freshet
