// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/questions.h"

#include <gtest/gtest.h>

#include "tests/repo/world.h"

namespace freshet::rpc {
namespace {

template <typename Build>
WorkQueue queue_for(Build build) {
  Builder builder;
  const Encoded message = request(builder, 1, build(builder));
  return queue_of(*flatbuffers::GetRoot<wire::Request>(message.data()));
}

TEST(Questions, WhoTakesTheWritersTurnIsNotAmongTheQuick) {
  std::mt19937_64 random(1);
  const auto architecture = test_architecture({10});
  Manifest manifest = make_version("net", test_id(1), architecture, nullptr, {}, random).manifest;
  manifest.name.number = 1;
  const auto match = [&](const std::string& pin_by) {
    return queue_for([&](Builder& builder) {
      return rpc::put(builder, MatchQuery{.graph = MatchGraph::of(*architecture), .pin_by = pin_by});
    });
  };
  const auto wanted = [&](bool dedup) {
    return queue_for([&](Builder& builder) {
      return wire::CreateAskWanted(builder, rpc::put(builder, manifest, {.dedup = dedup}));
    });
  };
  EXPECT_EQ(match(""), WorkQueue::quick);
  EXPECT_EQ(match("me"), WorkQueue::write);
  EXPECT_EQ(wanted(false), WorkQueue::quick);
  EXPECT_EQ(wanted(true), WorkQueue::write);
  EXPECT_EQ(queue_for([](Builder& builder) { return wire::CreateAskWanted(builder); }), WorkQueue::quick);
  EXPECT_EQ(queue_for([](Builder& builder) { return wire::CreateAskStat(builder); }), WorkQueue::quick);
  EXPECT_EQ(queue_for([](Builder& builder) { return wire::CreateGc(builder); }), WorkQueue::slow);
  EXPECT_EQ(queue_for([](Builder& builder) { return wire::CreateAskVerify(builder); }), WorkQueue::verify);
}

}  // namespace
}  // namespace freshet::rpc
