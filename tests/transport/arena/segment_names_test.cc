// SPDX-License-Identifier: Apache-2.0
#include "transport/arena/segment_names.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace freshet {
namespace {

SegmentName name_of(std::uint64_t sequence, std::uint32_t tensor) {
  return {.writer = {.run = {.high = 1, .low = 2}, .incarnation = 3, .sequence = sequence}, .tensor = tensor};
}

std::set<SegmentIndex> found(const SegmentNames& names, const SegmentName& name) {
  std::set<SegmentIndex> segments;
  for (SegmentIndex at = names.first(name); at != SegmentNames::kNone; at = names.next(at)) segments.insert(at);
  return segments;
}

TEST(SegmentNames, FindsAllOfAName) {
  SegmentNames names;
  EXPECT_TRUE(found(names, name_of(1, 0)).empty());
  names.give(5, name_of(1, 0));
  names.give(900, name_of(1, 0));
  names.give(6, name_of(1, 1));
  EXPECT_EQ(found(names, name_of(1, 0)), (std::set<SegmentIndex>{5, 900}));
  EXPECT_EQ(names.first(name_of(1, 0)), 900u) << "the latest first";
  names.take(5);
  EXPECT_FALSE(names.has_name(5));
  EXPECT_EQ(found(names, name_of(1, 0)), (std::set<SegmentIndex>{900}));
  EXPECT_TRUE(found(names, name_of(2, 0)).empty());
  EXPECT_TRUE(found(names, name_of(1, ~0u)).empty());
}

TEST(SegmentNames, AgreesWithAMapOverManyRandomSteps) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  SegmentNames names;
  std::map<SegmentIndex, SegmentName> model;
  for (int step = 0; step < 20'000; ++step) {
    const SegmentIndex segment = random() % (step < 5'000 ? 50 : 700);
    if (model.erase(segment) != 0) {
      names.take(segment);
    } else {
      // Few names, so that lists are long, some of them far apart.
      const SegmentName name = name_of(random() % 3, random() % 2 == 0 ? random() % 40 : 0x8000'0000u + random() % 4);
      names.give(segment, name);
      model[segment] = name;
    }
    const SegmentName asked = name_of(random() % 3, random() % 40);
    std::set<SegmentIndex> expected;
    for (const auto& [index, name] : model) {
      if (name == asked) expected.insert(index);
    }
    ASSERT_EQ(found(names, asked), expected) << "step " << step;
  }
}

}  // namespace
}  // namespace freshet
