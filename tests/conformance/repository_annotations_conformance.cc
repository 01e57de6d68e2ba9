// SPDX-License-Identifier: Apache-2.0
/// Quality and tags that a version gets after its put, and pins.

#include "tests/conformance/repository_conformance.h"

namespace freshet {
namespace {

std::vector<std::string> texts_of(const std::vector<PinnedVersion>& pins) {
  std::vector<std::string> texts;
  for (const PinnedVersion& pin : pins) {
    texts.push_back(to_string(pin.version) + " " + pin.by + " " + std::to_string(pin.count) +
                    (pin.left ? " for a time" : " stays"));
  }
  return texts;
}

}  // namespace

TEST_P(RepositoryConformance, WhatIsSaidLaterCounts) {
  const std::vector<TestVersion> versions = line(3);
  const MatchQuery best{.graph = MatchGraph::of(*architecture_)};
  EXPECT_EQ(repository().match(best)->top.at(0).version, net(3));
  const std::uint64_t before = repository().match(best)->as_of;

  ASSERT_TRUE(
      repository().annotate(net(1), {.sets_quality = true, .quality = 7, .tags = {{"set", "yes"}, {"k", "v"}}}));
  const auto record = repository().get(net(1));
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(record->quality, 7);
  EXPECT_EQ(record->manifest.tags, (Tags{{"set", "yes"}, {"k", "v"}}));
  EXPECT_EQ(repository().match(best)->top.at(0).version, net(1));
  EXPECT_EQ(repository().match(best)->top.at(0).quality, 7);
  EXPECT_GE(repository().match(best)->as_of, several() ? before : before + 1);
  EXPECT_EQ(repository().versions("net")->at(0).quality, 7);
  MatchQuery tagged{.graph = best.graph, .tags = {{"set", "yes"}}};
  EXPECT_EQ(repository().match(tagged)->top.at(0).version, net(1));

  ASSERT_TRUE(repository().annotate(net(1), {.sets_quality = true, .tags = {{"set", std::nullopt}}}));
  EXPECT_EQ(repository().get(net(1))->quality, std::nullopt);
  EXPECT_EQ(repository().get(net(1))->manifest.tags, (Tags{{"k", "v"}}));
  EXPECT_TRUE(repository().match(tagged)->top.empty());
  EXPECT_EQ(repository().match(best)->top.at(0).version, net(3));
  // Without a word on it, the quality stays.
  ASSERT_TRUE(repository().annotate(net(3), {.tags = {{"k", "w"}}}));
  EXPECT_EQ(repository().get(net(3))->quality, 2.5);
  expect_bytes(versions[0]);
  expect_sound();
}

TEST_P(RepositoryConformance, TagsOfThePutKeepTheirPlace) {
  TestVersion tagged = version("net");
  tagged.manifest.tags = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  stored(tagged);
  ASSERT_TRUE(repository().annotate(net(1), {.tags = {{"b", "two"}, {"a", std::nullopt}, {"z", ""}}}));
  EXPECT_EQ(repository().get(net(1))->manifest.tags, (Tags{{"b", "two"}, {"c", "3"}, {"z", ""}}));
  ASSERT_TRUE(repository().annotate(net(1), {.tags = {{"a", "one"}, {"none", std::nullopt}}}));
  EXPECT_EQ(repository().get(net(1))->manifest.tags, (Tags{{"a", "one"}, {"b", "two"}, {"c", "3"}, {"z", ""}}));
  // Who inherits from it inherits tensors, and the tags that it is put with.
  TestVersion child = version("net", &tagged, {1});
  child.manifest.tags = {{"a", "1"}, {"b", "2"}};
  stored(child);
  EXPECT_EQ(repository().get(net(2))->manifest.tags, child.manifest.tags);
  ASSERT_TRUE(repository().retire(net(1), {}));
  EXPECT_EQ(repository().get(net(2))->manifest.tags, child.manifest.tags);
  expect_sound();
}

TEST_P(RepositoryConformance, NonsenseIsNotSaid) {
  line(2);
  EXPECT_TRUE(is_refused(repository().annotate(net(9), {.sets_quality = true, .quality = 1}), Code::not_found));
  EXPECT_TRUE(is_refused(repository().annotate(net(1), {.tags = {{"a", "1"}, {"a", "2"}}}), Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().annotate(net(1), {.tags = {{"", "1"}}}), Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().annotate(net(1), {.tags = {{"a", std::string(kLaterTagBytesMax + 1, 'x')}}}),
                         Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().annotate(net(1), {.tags = {{"a", "\xff"}}}), Code::invalid_argument));
  Annotations many;
  for (std::size_t i = 0; i <= kLaterTagsMax; ++i) many.tags.emplace_back("k" + std::to_string(i), "v");
  EXPECT_TRUE(is_refused(repository().annotate(net(1), many), Code::out_of_space));
  EXPECT_TRUE(repository().get(net(1))->manifest.tags.empty());
  ASSERT_TRUE(repository().retire(net(1), {}));
  EXPECT_TRUE(is_refused(repository().annotate(net(1), {.sets_quality = true, .quality = 1}), Code::not_found));
}

TEST_P(RepositoryConformance, AllPinsAreListed) {
  line(3);
  EXPECT_TRUE(repository().all_pins()->empty());
  ASSERT_TRUE(repository().pin(net(2), "me", {.stays = true, .lease = {}}));
  ASSERT_TRUE(repository().pin(net(2), "me", {.stays = true, .lease = {}}));
  ASSERT_TRUE(repository().pin(net(3), "somebody else", {.stays = true, .lease = {}}));
  ASSERT_TRUE(repository().pin(net(3), "worker", {.stays = false, .lease = PinLease{.high = 1, .low = 2}}));
  const auto pins = repository().all_pins();
  ASSERT_TRUE(pins) << pins.error().message();
  EXPECT_EQ(texts_of(*pins),
            (std::vector<std::string>{"net@2 me 2 stays", "net@3 somebody else 1 stays", "net@3 worker 1 for a time"}));
  EXPECT_LE(*pins->at(2).left, kPinLease);
  ASSERT_TRUE(repository().unpin(net(2), "me"));
  EXPECT_EQ(texts_of(*repository().all_pins()).at(0), "net@2 me 1 stays");
  ASSERT_TRUE(repository().unpin(net(2), "me"));
  EXPECT_EQ(repository().all_pins()->size(), 2u);
}

}  // namespace freshet
