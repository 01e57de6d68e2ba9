// SPDX-License-Identifier: Apache-2.0
#include "transport/option_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace freshet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename Value>
bool is_invalid(const Result<Value>& parsed) {
  return !parsed && parsed.error().code() == Code::invalid_argument;
}

TEST(OptionText, AChannelIsAKindOrTheBestOne) {
  EXPECT_EQ(parse_channel("").value(), std::nullopt);
  EXPECT_EQ(parse_channel("auto").value(), std::nullopt);
  for (const ChannelKind kind :
       {ChannelKind::shm, ChannelKind::ucx, ChannelKind::zmq, ChannelKind::file, ChannelKind::nccl}) {
    EXPECT_EQ(parse_channel(to_string(kind)).value(), kind);
  }
  EXPECT_TRUE(is_invalid(parse_channel("carrier-pigeon")));
  EXPECT_TRUE(is_invalid(parse_channel("ucx,zmq")));
}

TEST(OptionText, AChoiceOfChannelsKeepsItsOrder) {
  EXPECT_EQ(parse_channel_choice("auto").value(), std::nullopt);
  EXPECT_THAT(parse_channel_choice("none").value().value(), IsEmpty());
  EXPECT_THAT(parse_channel_choice("zmq,ucx").value().value(), ElementsAre(ChannelKind::zmq, ChannelKind::ucx));
  for (const char* text : {"", "pigeon", "zmq,", "zmq,,ucx", "none,zmq", " zmq"}) {
    EXPECT_TRUE(is_invalid(parse_channel_choice(text))) << text;
  }
}

TEST(OptionText, ANotifierIsThePublisherOrTheDirectory) {
  EXPECT_EQ(parse_notifier("").value(), Notifier::publisher);
  EXPECT_EQ(parse_notifier("zmq").value(), Notifier::publisher);
  EXPECT_EQ(parse_notifier("redis").value(), Notifier::directory);
  EXPECT_TRUE(is_invalid(parse_notifier("smoke")));
}

TEST(OptionText, AddressesHaveCommasBetweenThemAndAFolderMayHaveSome) {
  EXPECT_THAT(parse_addresses(""), IsEmpty());
  EXPECT_THAT(parse_addresses("tcp://a:1"), ElementsAre("tcp://a:1"));
  EXPECT_THAT(parse_addresses("tcp://a:1,ipc:///b"), ElementsAre("tcp://a:1", "ipc:///b"));
  EXPECT_THAT(parse_addresses("tcp://a:1,,tcp://b:2"), ElementsAre("tcp://a:1", "", "tcp://b:2"))
      << "whoever connects refuses the empty one";
  EXPECT_THAT(parse_addresses("file:///a,b"), ElementsAre("file:///a,b"));
}

}  // namespace
}  // namespace freshet
