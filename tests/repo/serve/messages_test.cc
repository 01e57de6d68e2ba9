// SPDX-License-Identifier: Apache-2.0
/// Messages that are not what a Writer writes: what is missing, what is there twice, what is too much. The reader or
/// the repository refuses them.

#include "repo/serve/wire/messages.h"

#include <gtest/gtest.h>

#include "repo/serve/server/answers.h"
#include "repo/serve/wire/questions.h"
#include "tests/repo/world.h"

namespace freshet::rpc {
namespace {

Result<Received<wire::Request>> received(const Encoded& message) {
  return Received<wire::Request>::open(std::as_bytes(std::span(message.data(), message.size())));
}

/// The code of the refusal of a repository, or of its server before; nothing when it was answered.
template <typename Asked>
std::optional<Code> refusal(const Asked& question) {
  const auto local = open_or_die(make_memory_backend());
  std::mt19937_64 random(1);
  EXPECT_TRUE(put(*local, make_version("net", test_id(1), test_architecture({10}), nullptr, {}, random)));
  const auto bulk = BulkService::open(*local, {.channels = ChannelChoice(std::vector<ChannelKind>{})}).value();
  RecordCache records;
  const auto request_message = received(request(1, question));
  if (!request_message) return request_message.error().code();
  const Outcome outcome =
      answer({.repository = *local, .records = records, .bulk = *bulk, .session = 1, .owner = "", .progress = {}},
             *request_message);
  if (outcome.upload != nullptr) return std::nullopt;
  const auto reply = Received<wire::Reply>::open(std::as_bytes(std::span(outcome.reply.data(), outcome.reply.size())));
  EXPECT_TRUE(reply);
  if (!reply || (*reply)->failed() == nullptr) return std::nullopt;
  return error_of(*(*reply)->failed()).code();
}

std::optional<Code> match_with(std::size_t tags, std::size_t key_bytes, std::size_t value_bytes) {
  MatchQuery query{.graph = MatchGraph::of(*test_architecture({10}))};
  query.tags.assign(tags, {std::string(key_bytes, 'k'), std::string(value_bytes, 'v')});
  return refusal(call_of<Match>(query));
}

std::optional<Code> annotate_with(std::size_t tags, std::size_t key_bytes, std::size_t value_bytes) {
  Annotations annotations;
  for (std::size_t i = 0; i < tags; ++i) {
    std::string key = std::to_string(1000 + i);
    key.resize(key_bytes, 'k');
    annotations.tags.emplace_back(std::move(key), std::string(value_bytes, 'v'));
  }
  return refusal(call_of<Annotate>(VersionName{.model = "net", .number = 1}, annotations));
}

std::optional<Code> change_with(std::size_t records, std::size_t value_bytes) {
  ChangeShared change;
  for (std::size_t i = 0; i < records; ++i) {
    change.changes.push_back({.key = std::to_string(i), .value = std::string(value_bytes, 'v')});
  }
  return refusal(change);
}

std::optional<Code> wanted_with(std::uint32_t moved, std::uint32_t elsewhere, std::size_t id_bytes) {
  std::mt19937_64 random(1);
  Manifest manifest = make_version("net", test_id(9), test_architecture({10, 10, 10}), nullptr, {}, random).manifest;
  manifest.name.number = 1;
  Placed placed{.placement = 1, .attempt = 1, .elsewhere = {}, .moved = {}};
  for (std::uint32_t i = 0; i < elsewhere; ++i) placed.elsewhere.push_back(i);
  for (std::uint32_t i = 0; i < moved; ++i) {
    placed.moved.push_back({.writer = test_id(20 + i), .provider = std::string(id_bytes, 'p')});
  }
  const Encoded message = request(1, AskWanted{{manifest, {.placed = placed}}});
  const auto read_back = read<AskWanted>(*received(message).value().said());
  return read_back ? std::nullopt : std::optional(read_back.error().code());
}

TEST(RpcMessages, AMatchHasSoManyTagsOfSuchALength) {
  EXPECT_EQ(match_with(kMatchTagsMax, kTagKeyBytesMax, kMatchTagBytesMax), std::nullopt);
  EXPECT_EQ(match_with(kMatchTagsMax + 1, 1, 1), Code::invalid_argument);
  EXPECT_EQ(match_with(1, kTagKeyBytesMax + 1, 1), Code::invalid_argument);
  EXPECT_EQ(match_with(1, 1, kMatchTagBytesMax + 1), Code::invalid_argument);
}

TEST(RpcMessages, SoManyTagsOfSuchALengthAreSaidLater) {
  EXPECT_EQ(annotate_with(10, kTagKeyBytesMax, kLaterTagBytesMax), std::nullopt);
  EXPECT_EQ(annotate_with(kLaterTagsMax + 1, 4, 1), Code::out_of_space);
  EXPECT_EQ(annotate_with(1, kTagKeyBytesMax + 1, 1), Code::invalid_argument);
  EXPECT_EQ(annotate_with(1, 4, kLaterTagBytesMax + 1), Code::invalid_argument);
}

TEST(RpcMessages, SoManySharedRecordsOfSuchALengthAreChangedInOneCall) {
  EXPECT_EQ(change_with(kSharedRecordsMax, 1), std::nullopt);
  EXPECT_EQ(change_with(kSharedRecordsMax + 1, 1), Code::invalid_argument);
  EXPECT_EQ(change_with(15, kSharedValueBytesMax), std::nullopt);
  EXPECT_EQ(change_with(16, kSharedValueBytesMax), Code::invalid_argument) << "with their keys";
}

// Who may only count asks it.
TEST(RpcMessages, ACountThatIsNoneIsRefused) {
  EXPECT_EQ(refusal(Count{{{}, {{.key = "placement", .value = "x"}}}}), Code::failed_precondition);
  Count many;
  for (int i = 0; i < 100; ++i) many.changes.push_back({.key = "n/" + std::to_string(i), .value = "1"});
  EXPECT_EQ(refusal(many), Code::failed_precondition);
}

TEST(RpcMessages, AVersionIsPlacedByNoMoreThanItHas) {
  EXPECT_EQ(wanted_with(3, 3, 64), std::nullopt);
  EXPECT_EQ(wanted_with(3, 4, 1), Code::invalid_argument);
  EXPECT_EQ(wanted_with(4, 3, 1), Code::invalid_argument);
  EXPECT_EQ(wanted_with(3, 3, 65), Code::invalid_argument);
}

/// A question of words and texts as they are given.
Encoded said_by_hand(std::uint16_t verb, const std::vector<std::uint64_t>& words,
                     const std::vector<std::string>& texts) {
  Builder builder;
  const auto text_list = builder.CreateVectorOfStrings(texts);
  const auto said = wire::CreateSaid(builder, verb, builder.CreateVector(words), text_list);
  builder.Finish(wire::CreateRequest(builder, 1, wire::Body::Said, said.Union()));
  return builder.Release();
}

TEST(RpcMessages, ATextThatIsNamedAgainAndAgainIsNotCopied) {
  const auto with_names = [](std::size_t times, std::size_t bytes = 1000) {
    Builder builder;
    const auto text = builder.CreateString(std::string(bytes, 't'));
    const auto texts = builder.CreateVector(std::vector<Offset<flatbuffers::String>>(times, text));
    const auto said = wire::CreateSaid(builder, kVerb<AskLatest>, {}, texts);
    builder.Finish(wire::CreateRequest(builder, 1, wire::Body::Said, said.Union()));
    return received(builder.Release()).has_value();
  };
  EXPECT_TRUE(with_names(1));
  EXPECT_FALSE(with_names(2));
  EXPECT_FALSE(with_names(1000));
  EXPECT_FALSE(with_names(1000, 0));
}

TEST(RpcMessages, AFieldAfterTheEndKeepsItsDefaultButNotWithinAList) {
  const auto retire = read<Retire>(*received(said_by_hand(kVerb<Retire>, {}, {"net"})).value().said());
  ASSERT_TRUE(retire);
  EXPECT_EQ(retire->name, (VersionName{.model = "net", .number = 0}));
  EXPECT_EQ(retire->wait, Duration::zero());
  const auto ranges = [](const std::vector<std::uint64_t>& words) {
    return read<AskSegments>(*received(said_by_hand(kVerb<AskSegments>, words, {})).value().said());
  };
  ASSERT_TRUE(ranges({1, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(ranges({1, 1, 2, 3, 4, 5, 6, 7})->ranges.at(0).bytes, 7u);
  EXPECT_EQ(ranges({1, 1, 2, 3, 4, 5, 6}).error().code(), Code::corrupt);
  EXPECT_EQ(ranges({~std::uint64_t{0}}).error().code(), Code::corrupt);
  EXPECT_EQ(ranges({9, 1, 2, 3, 4, 5, 6, 7}).error().code(), Code::corrupt);
}

TEST(RpcMessages, ALongListIsRefusedBeforeItIsCopied) {
  std::vector<std::uint64_t> words(6 + 3 * (kRangesMax + 1));  // A number, an identity, a count, ranges.
  const auto ask = [&] {
    return read<AskBytes>(*received(said_by_hand(kVerb<AskBytes>, words, {"net"})).value().said());
  };
  words[5] = kRangesMax + 1;
  EXPECT_EQ(ask().error().code(), Code::invalid_argument);
  words[5] = kRangesMax;
  ASSERT_TRUE(ask());
  EXPECT_EQ(ask()->ranges.size(), kRangesMax);
}

TEST(RpcMessages, ANumberThatDoesNotFitIsRefused) {
  const auto gc = [](std::uint64_t word) {
    return read<Gc>(*received(said_by_hand(kVerb<Gc>, {word}, {})).value().said());
  };
  EXPECT_TRUE(gc(1).value().dry_run);
  EXPECT_EQ(gc(2).error().code(), Code::corrupt);
}

}  // namespace
}  // namespace freshet::rpc
