// SPDX-License-Identifier: Apache-2.0
#include "core/model/own_tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace freshet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(OwnTags, OnlySuchAsFreshetWritesMayBegin) {
  for (const auto& [key, value] : Tags{{"format", "pt"},
                                       {"freshet", "x"},
                                       {"freshetx.y", "x"},
                                       {"freshet.tied", "{}"},
                                       {"freshet.tied", R"({"head.w":"embed.w"})"},
                                       {"freshet.optimizers", "Adam, SGD"},
                                       {"freshet.schedulers", R"([{"kind":"StepLR","state":{"pairs":[[1,2]]}}])"},
                                       {"freshet.parts", "[]"},
                                       {"freshet.parts", R"(["a.rank1@3","a.b.rank10@1"])"},
                                       {"freshet.part_of", "a.b"}}) {
    EXPECT_TRUE(check_own_tags({{key, value}})) << key << " " << value;
  }
  for (const auto& [key, value] : Tags{{"freshet.", ""},
                                       {"freshet.other", "x"},
                                       {"freshet.tied", ""},
                                       {"freshet.tied", "{"},
                                       {"freshet.tied", "[]"},
                                       {"freshet.tied", R"({"a":1})"},
                                       {"freshet.tied", R"({"a":["b"]})"},
                                       {"freshet.tied", R"({"a":"b","a":"c"})"},
                                       {"freshet.optimizers", "Adam\n"},
                                       {"freshet.schedulers", "{}"},
                                       {"freshet.schedulers", "[Infinity]"},
                                       {"freshet.parts", "{}"},
                                       {"freshet.parts", R"(["prod@1"])"},
                                       {"freshet.parts", R"(["a.rank1"])"},
                                       {"freshet.parts", R"(["a.rank@1"])"},
                                       {"freshet.parts", R"(["a.rank1x@1"])"},
                                       {"freshet.parts", "[1]"},
                                       {"freshet.part_of", ""},
                                       {"freshet.part_of", "a/b"}}) {
    const Status checked = check_own_tags({{"before", "x"}, {key, value}});
    ASSERT_FALSE(checked) << key << " " << value;
    EXPECT_EQ(checked.error().code(), Code::invalid_argument);
    EXPECT_THAT(checked.error().message(), testing::HasSubstr("tag " + key)) << value;
    Tags tags = {{"before", "x"}, {key, value}};
    drop_bad_own_tags(tags);
    EXPECT_EQ(tags, (Tags{{"before", "x"}}));
  }
}

TEST(OwnTags, AFileSaysWhichOfItsTensorsAreTiedAndNothingElse) {
  const std::vector<TensorView> tensors = {{.spec = {.name = "a"}, .data = {}}, {.spec = {.name = "b"}, .data = {}}};
  const auto left = [&](Tags tags) {
    drop_own_tags_of_file(tags, tensors);
    return tags;
  };
  EXPECT_EQ(left({{"freshet.tied", R"({"c":"a"})"}}).size(), 1u);
  EXPECT_THAT(left({{"freshet.tied", R"({"c":"missing"})"}}), IsEmpty());
  EXPECT_THAT(left({{"freshet.tied", R"({"b":"a"})"}}), IsEmpty()) << "b is a tensor of its own";
  EXPECT_THAT(left({{"freshet.tied", "{"}}), IsEmpty());
  EXPECT_THAT(left({{"freshet.parts", R"(["a.rank1@1"])"}, {"freshet.part_of", "a"}}), IsEmpty());
  Tags tags = {{"format", "pt"}, {"freshet.tied", "{"}, {"freshet.new", ""}};
  EXPECT_THAT(drop_own_tags_of_file(tags, tensors), ElementsAre("freshet.tied", "freshet.new"));
  EXPECT_EQ(tags, (Tags{{"format", "pt"}}));
}

}  // namespace
}  // namespace freshet
