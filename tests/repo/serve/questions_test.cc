// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/wire/questions.h"

#include <gtest/gtest.h>

#include <set>

namespace freshet::rpc {
namespace {

template <typename Asked>
WorkQueue queue_of() {
  return terms_of(kVerb<Asked>).queue;
}

TEST(Questions, WhoTakesTheWritersTurnIsNotAmongTheQuick) {
  EXPECT_EQ(queue_of<Match>(), WorkQueue::quick);
  EXPECT_EQ(queue_of<MatchAndPin>(), WorkQueue::write);
  EXPECT_EQ(queue_of<AskWanted>(), WorkQueue::quick);
  EXPECT_EQ(queue_of<AskWantedDedup>(), WorkQueue::write);
  EXPECT_EQ(queue_of<AskStat>(), WorkQueue::quick);
  EXPECT_EQ(queue_of<Gc>(), WorkQueue::slow);
  EXPECT_EQ(queue_of<AskVerify>(), WorkQueue::verify);
}

template <typename... Asked>
void expect_own_verbs_and_terms(std::type_identity<std::tuple<Asked...>>) {
  std::set<std::uint16_t> verbs{kVerb<Asked>...};
  EXPECT_EQ(verbs.size(), sizeof...(Asked));
  EXPECT_EQ(*verbs.begin(), kFirstQuestion);
  const std::vector<Terms> by_type{terms_of<Asked>()...};
  const std::vector<Terms> by_verb{terms_of(kVerb<Asked>)...};
  for (std::size_t i = 0; i < by_type.size(); ++i) {
    EXPECT_EQ(by_type[i].right, by_verb[i].right) << i;
    EXPECT_EQ(by_type[i].verb, by_verb[i].verb) << i;
    EXPECT_TRUE(by_type[i].right != Right::read || !by_type[i].changes) << "a reader changes nothing: " << i;
    EXPECT_TRUE(by_type[i].right == Right::read || by_type[i].verb != "this") << "a refusal has no word: " << i;
  }
}

TEST(Questions, EachHasAVerbOfItsOwnWithItsTerms) {
  expect_own_verbs_and_terms(std::type_identity<Questions>());
  EXPECT_LE(kFirstStep + std::tuple_size_v<Steps>, std::size_t{kFirstQuestion});
}

TEST(Questions, WhatThisBuildDoesNotKnowTakesAnOperator) {
  for (const std::uint16_t verb :
       {0, 1, kFirstQuestion - 1, kFirstQuestion + int{std::tuple_size_v<Questions>}, 65535}) {
    EXPECT_EQ(terms_of(verb).right, Right::operate) << verb;
    EXPECT_EQ(terms_of(verb).bytes_max(), kMessageBytesMax) << verb;
  }
}

}  // namespace
}  // namespace freshet::rpc
