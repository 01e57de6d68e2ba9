// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/messages.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "transport/protocol/publisher/commit_log.h"

namespace freshet::protocol {
namespace {

std::vector<Message> one_of_each() {
  const Digest digest{.low = 1, .high = 2};
  const Current current{.epoch = 8, .version = 9, .hold = true};
  return {
      Hello{.session = 1,
            .model = "demo",
            .mode = Mode::every,
            .label = "srv",
            .pid = 5,
            .host = "boot/net",
            .highest_seen = 6,
            .after = 7,
            .door_token = 8,
            .channels = 5,
            .staged = true,
            .serves = "tcp://10.0.0.1:7",
            .device = "GPU-1"},
      Want{.session = 1,
           .request = 2,
           .after = 3,
           .known_architectures = {digest},
           .after_epoch = 4,
           .channel = ChannelKind::zmq,
           .exactly = 5,
           .waits = true,
           .serving = 6},
      Held{.session = 1, .grants_seen = 2, .numbers = {3, 4}},
      Ping{.session = 1, .serving = 2, .epoch = 3, .staged = 4, .sent_ns = -5, .channel_why = "zmq: on another host"},
      Bye{.session = 1},
      StatRequest{.model = "demo"},
      Welcome{
          .session = 1,
          .run = {.high = 2, .low = 3},
          .incarnation = 4,
          .door = "/d",
          .door_token = 5,
          .newest = 6,
          .channels = {{.kind = ChannelKind::ucx, .address = "ucx://a"}, {.kind = ChannelKind::file, .address = "/f"}},
          .lease_ms = 7,
          .current = {.epoch = 8, .version = 9, .hold = true},
          .membership_ms = 10,
          .keeps_wants = true},
      Grant{.session = 1,
            .request = 2,
            .grant = 3,
            .number = 4,
            .manifest = {std::byte{1}, std::byte{2}},
            .architecture = {std::byte{3}},
            .places = {{.slab = 1, .offset = 64, .bytes = 36}},
            .slab_bytes = {0, 100},
            .gap_before = 5,
            .publish_started_ns = 6,
            .announced_ns = 7,
            .device_places = {{.slab = 0, .offset = 32, .bytes = 4}},
            .device_slab_bytes = {36}},
      Grant{.grant = 3, .number = 4, .epoch = 8, .channel = ChannelKind::zmq, .lease = 9},
      Refusal{.session = 1, .request = 2, .code = Code::not_found, .message = "no", .newest = 3, .current = current},
      Pong{.session = 1, .incarnation = 2, .newest = 3, .current = current, .candidate = 4, .turn = 5, .ping_ns = -6},
      UnknownSession{.session = 1},
      StatReply{.json = "{}"},
      Announcement{
          .model = "demo", .incarnation = 1, .number = 2, .announced_ns = 3, .current = current, .candidate = 4},
      Staged{.session = 1, .number = 2, .turn = 3},
      Staged{.session = 1, .number = 2, .failed = Error(Code::corrupt, "torn")},
      Activate{.model = "demo",
               .request = 1,
               .expected = current,
               .desired = {.version = 1, .hold = true},
               .as_group = true,
               .within_ms = 5},
      Activated{.request = 1, .current = current, .members = 2, .mixed_ns = 3},
      Activated{.request = 1, .refused = Error(Code::failed_precondition, "moved on"), .current = current}};
}

bool is_corrupt(const Message& message) {
  const auto decoded = decode(encode(message));
  return !decoded && decoded.error().code() == Code::corrupt;
}

TEST(Messages, EachIsItselfAfterTheWire) {
  std::set<std::size_t> kinds;
  for (const Message& message : one_of_each()) {
    kinds.insert(message.index());
    const auto decoded = decode(encode(message));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), encode(message));
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Message>);
}

TEST(Messages, EveryFieldComesThrough) {
  const auto hello = std::get<Hello>(*decode(encode(one_of_each()[0])));
  EXPECT_EQ(hello.protocol, kProtocolVersion);
  EXPECT_EQ(hello.model, "demo");
  EXPECT_EQ(hello.mode, Mode::every);
  EXPECT_EQ(hello.label, "srv");
  EXPECT_EQ(hello.host, "boot/net");
  EXPECT_EQ(hello.pid, 5);
  EXPECT_EQ(hello.highest_seen, 6u);
  EXPECT_EQ(hello.after, 7u);
  EXPECT_EQ(hello.door_token, 8u);
  const auto grant = std::get<Grant>(*decode(encode(one_of_each()[7])));
  EXPECT_EQ(grant.request, 2u);
  EXPECT_EQ(grant.grant, 3u);
  EXPECT_EQ(grant.number, 4u);
  EXPECT_EQ(grant.manifest.size(), 2u);
  EXPECT_EQ(grant.architecture.size(), 1u);
  EXPECT_EQ(grant.places, (std::vector<SegmentPlace>{{.slab = 1, .offset = 64, .bytes = 36}}));
  EXPECT_EQ(grant.slab_bytes, (std::vector<std::uint64_t>{0, 100}));
  EXPECT_EQ(hello.device, "GPU-1");
  EXPECT_EQ(grant.device_places, (std::vector<SegmentPlace>{{.slab = 0, .offset = 32, .bytes = 4}}));
  EXPECT_EQ(grant.device_slab_bytes, std::vector<std::uint64_t>{36});
  EXPECT_EQ(grant.gap_before, 5u);
  EXPECT_EQ(grant.publish_started_ns, 6);
  EXPECT_EQ(grant.announced_ns, 7);
}

template <typename T>
std::vector<T> all_after_the_wire() {
  std::vector<T> found;
  for (const Message& message : one_of_each()) {
    if (std::holds_alternative<T>(message)) found.push_back(std::get<T>(*decode(encode(message))));
  }
  return found;
}

TEST(Messages, WhatOtherHostsNeedComesThrough) {
  const Current current{.epoch = 8, .version = 9, .hold = true};
  const auto hello = all_after_the_wire<Hello>().at(0);
  EXPECT_EQ(hello.channels, 5u);
  EXPECT_TRUE(hello.staged);
  EXPECT_EQ(hello.serves, "tcp://10.0.0.1:7");
  const auto want = all_after_the_wire<Want>().at(0);
  EXPECT_EQ(want.after_epoch, 4u);
  EXPECT_EQ(want.channel, ChannelKind::zmq);
  EXPECT_EQ(want.exactly, 5u);
  EXPECT_EQ(want.serving, 6u);
  const auto ping = all_after_the_wire<Ping>().at(0);
  EXPECT_EQ(ping.epoch, 3u);
  EXPECT_EQ(ping.staged, 4u);
  EXPECT_EQ(ping.channel_why, "zmq: on another host");
  const auto welcome = all_after_the_wire<Welcome>().at(0);
  EXPECT_EQ(welcome.channels, (std::vector<ChannelOffer>{{.kind = ChannelKind::ucx, .address = "ucx://a"},
                                                         {.kind = ChannelKind::file, .address = "/f"}}));
  EXPECT_EQ(welcome.lease_ms, 7u);
  EXPECT_EQ(welcome.current, current);
  const auto grant = all_after_the_wire<Grant>().at(1);
  EXPECT_EQ(grant.epoch, 8u);
  EXPECT_EQ(grant.channel, ChannelKind::zmq);
  EXPECT_EQ(grant.lease, 9u);
  EXPECT_EQ(all_after_the_wire<Refusal>().at(0).current, current);
  const auto pong = all_after_the_wire<Pong>().at(0);
  EXPECT_EQ(pong.current, current);
  EXPECT_EQ(pong.candidate, 4u);
  const auto news = all_after_the_wire<Announcement>().at(0);
  EXPECT_EQ(news.current, current);
  EXPECT_EQ(news.candidate, 4u);
}

TEST(Messages, WhatGroupsNeedComesThrough) {
  const Current current{.epoch = 8, .version = 9, .hold = true};
  const auto staged = all_after_the_wire<Staged>();
  EXPECT_EQ(staged.at(0).number, 2u);
  EXPECT_FALSE(staged.at(0).failed);
  EXPECT_EQ(staged.at(1).failed->code(), Code::corrupt);
  EXPECT_EQ(staged.at(1).failed->message(), "torn");
  const auto activate = all_after_the_wire<Activate>().at(0);
  EXPECT_EQ(activate.model, "demo");
  EXPECT_EQ(activate.expected, current);
  EXPECT_EQ(activate.desired, (Current{.version = 1, .hold = true}));
  EXPECT_TRUE(activate.as_group);
  EXPECT_EQ(activate.within_ms, 5u);
  const auto activated = all_after_the_wire<Activated>();
  EXPECT_EQ(activated.at(0).current, current);
  EXPECT_EQ(activated.at(0).members, 2u);
  EXPECT_EQ(activated.at(0).mixed_ns, 3);
  EXPECT_EQ(activated.at(1).refused->code(), Code::failed_precondition);
}

TEST(Messages, WhatIsBeyondALimitIsCorrupt) {
  EXPECT_TRUE(is_corrupt(Pong{.current = {.epoch = kEpochMax + 1}}));
  EXPECT_TRUE(is_corrupt(Pong{.current = {.version = kNumberMax + 1}}));
  EXPECT_TRUE(is_corrupt(Want{.session = 1, .channel = static_cast<ChannelKind>(kChannelKindLast + 1)}));
  EXPECT_TRUE(is_corrupt(Welcome{.channels = std::vector<ChannelOffer>(kChannelsMax + 1)}));
  EXPECT_TRUE(is_corrupt(Activate{.model = "demo", .within_ms = kWithinMsMax + 1}));
  EXPECT_TRUE(is_corrupt(
      Grant{.grant = 1, .number = 1, .places = {{.slab = 0, .offset = 0, .bytes = 1}}, .slab_bytes = {1}, .lease = 1}));
  EXPECT_TRUE(is_corrupt(Grant{.grant = 1, .number = 1, .device_places = {{}}})) << "more than there are tensors";
  EXPECT_TRUE(is_corrupt(Grant{.grant = 1,
                               .number = 1,
                               .places = {{.slab = 0, .offset = 0, .bytes = 1}},
                               .slab_bytes = {1},
                               .device_places = {{.slab = 0, .offset = 0, .bytes = 2}},
                               .device_slab_bytes = {1}}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .device = std::string(257, 'a')}));
  EXPECT_TRUE(is_corrupt(Hello{.model = ""}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "../etc"}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .label = std::string(257, 'a')}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .label = "bell\a"}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .host = "line\nbreak"}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .label = "no utf-8 \xFF"}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo",
                               .label = "a terminal obeys \xC2\x9B"
                                        "31m"}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo",
                               .serves = "tcp://\xE2\x80\xAE"
                                         "evil"}));
  EXPECT_TRUE(is_corrupt(Ping{.channel_why = "turned \xE2\x81\xA7 round"}));
  EXPECT_TRUE(is_corrupt(Welcome{.door = "/run/\xC3"}));
  EXPECT_TRUE(is_corrupt(Ping{.channel_why = "bell\a"}));
  EXPECT_TRUE(is_corrupt(Ping{.channel_why = std::string(257, 'a')}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .mode = static_cast<Mode>(2)}));
  EXPECT_TRUE(is_corrupt(Hello{.model = "demo", .highest_seen = kHighestSeenMax + 1}));
  EXPECT_TRUE(is_corrupt(Want{.after = ~std::uint64_t{0}}));
  EXPECT_TRUE(is_corrupt(Want{.serving = kNumberMax + 1}));
  EXPECT_TRUE(is_corrupt(Want{.known_architectures = std::vector<Digest>(17)}));
  EXPECT_TRUE(is_corrupt(Held{.numbers = std::vector<VersionNumber>(kHeldMax + 1)}));
  EXPECT_TRUE(is_corrupt(Refusal{.code = static_cast<Code>(200)}));
  EXPECT_TRUE(is_corrupt(Announcement{.model = "demo", .number = kNumberMax + 1}));
  EXPECT_TRUE(is_corrupt(Welcome{.door = std::string(kAddressBytesMax + 1, 'a')}));
  EXPECT_TRUE(is_corrupt(Grant{.grant = 1, .number = 0}));
  EXPECT_TRUE(is_corrupt(Grant{.grant = 0, .number = 1}));
  EXPECT_TRUE(is_corrupt(Grant{.grant = 1, .number = 1, .slab_bytes = std::vector<std::uint64_t>(kSlabsMax + 1)}));
}

TEST(Messages, WordsOfAnErrorCanBeSentWhateverTheyNameAndLabelsMayBeOfAnyScript) {
  const auto refusal = protocol::decode(encode(Refusal{.message = "open /tmp/\xFF\n\xC2\x9B"
                                                                  "31m: no"}));
  ASSERT_TRUE(refusal) << refusal.error().message();
  EXPECT_EQ(std::get<Refusal>(*refusal).message.find('\n'), std::string::npos);
  const auto hello = protocol::decode(encode(Hello{.model = "demo", .label = "Grüße, 服务器 – \xC2\xA0ok"}));
  ASSERT_TRUE(hello) << hello.error().message();
  EXPECT_EQ(std::get<Hello>(*hello).label, "Grüße, 服务器 – \xC2\xA0ok");
}

TEST(Messages, APlaceOutsideItsSlabIsCorrupt) {
  const auto with = [](SegmentPlace place) {
    return Grant{.grant = 1, .number = 1, .places = {place}, .slab_bytes = {100}};
  };
  EXPECT_FALSE(is_corrupt(with({.slab = 0, .offset = 100, .bytes = 0})));
  EXPECT_TRUE(is_corrupt(with({.slab = 1, .offset = 0, .bytes = 1})));
  EXPECT_TRUE(is_corrupt(with({.slab = 0, .offset = 64, .bytes = 37})));
  EXPECT_TRUE(is_corrupt(with({.slab = 0, .offset = ~std::uint64_t{0}, .bytes = 2})));
  EXPECT_TRUE(is_corrupt(with({.slab = 0, .offset = 2, .bytes = ~std::uint64_t{0}})));
}

TEST(Messages, AGrantOfAsManyTensorsAsAModelMayHaveComesThrough) {
  Grant grant{.grant = 1, .number = 1, .places = std::vector<SegmentPlace>(kTensorsMax), .slab_bytes = {1}};
  EXPECT_FALSE(is_corrupt(grant));
  grant.places.emplace_back();
  EXPECT_TRUE(is_corrupt(grant));
}

TEST(Messages, TruncatedAndFlippedOnesNeverCrash) {
  std::mt19937_64 random(20);
  for (const Message& message : one_of_each()) {
    const auto whole = encode(message);
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) (void)decode(Bytes(whole).first(bytes));
    for (int i = 0; i < 2000; ++i) {
      auto flipped = whole;
      flipped[random() % flipped.size()] ^= static_cast<std::byte>(1u << (random() % 8));
      if (const auto decoded = decode(flipped)) {
        EXPECT_FALSE(is_corrupt(*decoded)) << "what was let in must be sendable";
      }
    }
  }
}

TEST(Messages, NeedNotBeAligned) {
  for (const Message& message : one_of_each()) {
    const auto whole = encode(message);
    for (std::size_t shift = 1; shift < 8; ++shift) {
      std::vector<std::byte> shifted(shift);
      shifted.insert(shifted.end(), whole.begin(), whole.end());
      EXPECT_TRUE(decode(Bytes(shifted).subspan(shift)));
    }
  }
}

TEST(CommitLog, CountsAgainstAPlainList) {
  std::mt19937_64 random(7);
  CommitLog log;
  std::vector<VersionNumber> committed;
  VersionNumber number = 30;
  for (int i = 0; i < 200; ++i) {
    number += 1 + (random() % 4 == 0 ? random() % 5 : 0);
    log.append(number);
    committed.push_back(number);
  }
  for (VersionNumber after = 1; after < number; ++after) {
    std::uint64_t between = 0;
    for (const VersionNumber one : committed) between += one > after && one < number;
    const std::uint64_t lives_before = after < committed[0] ? committed[0] - 1 - after : 0;
    EXPECT_EQ(log.missed_between(after, number), between + lives_before) << after;
  }
  EXPECT_EQ(log.missed_between(0, number), 0u);
  EXPECT_EQ(log.missed_from_start(number), log.count_up_to(number) - 1);
  EXPECT_EQ(log.count_up_to(29), 0u);
  EXPECT_EQ(log.count_up_to(number + 1000), 200u);
}

TEST(CommitLog, AVersionThatWasNeverCommittedIsNotCounted) {
  CommitLog log;
  for (const VersionNumber number : {10, 11, 20}) log.append(number);
  // 15 came back after a rollback, and so did 5, which is older than the log.
  EXPECT_EQ(log.missed_between(10, 15), 1u);
  EXPECT_EQ(log.missed_between(11, 15), 0u);
  EXPECT_EQ(log.missed_between(15, 20), 0u);
  EXPECT_EQ(log.missed_between(2, 5), 2u) << "3 and 4 may have been the life's before";
  EXPECT_EQ(log.missed_from_start(15), 2u);
  EXPECT_EQ(log.missed_from_start(5), 0u);
}

TEST(CommitLog, CountsWhatARelayMissedItself) {
  std::mt19937_64 random(8);
  CommitLog log;
  std::vector<VersionNumber> upstream;  // Committed there; those that were missed lie right before the next.
  VersionNumber number = 30;
  log.append(number);
  upstream.push_back(number);
  std::vector<VersionNumber> ends{number};
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t unused = random() % 3;
    const std::uint64_t missed = random() % 3;
    number += unused + missed + 1;
    for (std::uint64_t back = missed; back > 0; --back) upstream.push_back(number - back);
    upstream.push_back(number);
    ends.push_back(number);
    log.append(number, missed);
  }
  for (VersionNumber after = 30; after < number; ++after) {
    for (const VersionNumber next : ends) {
      if (next <= after) continue;
      std::uint64_t between = 0;
      for (const VersionNumber one : upstream) between += one > after && one < next;
      ASSERT_EQ(log.missed_between(after, next), between) << after << " to " << next;
    }
  }
  log.append(number + 3, /*missed=*/100);
  EXPECT_EQ(log.missed_between(number, number + 3), 2u) << "no more than there are numbers";
}

}  // namespace
}  // namespace freshet::protocol
