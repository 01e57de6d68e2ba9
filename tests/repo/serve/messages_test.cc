// SPDX-License-Identifier: Apache-2.0
/// Messages whose rows are one row, named again and again: a small message that would be a large value. The reader
/// refuses it, so it is never copied.

#include "repo/serve/wire/messages.h"

#include <gtest/gtest.h>

#include "tests/repo/world.h"

namespace freshet::rpc {
namespace {

template <typename Row>
Offset<flatbuffers::Vector<Offset<Row>>> repeated(Builder& builder, Offset<Row> row, std::size_t times) {
  return builder.CreateVector(std::vector<Offset<Row>>(times, row));
}

/// The code of the refusal; nothing when the message was read.
template <typename Root, typename Build, typename Read>
std::optional<Code> refusal(Build build, Read read_root) {
  Builder builder;
  builder.Finish(build(builder));
  const auto answer = read_root(*flatbuffers::GetRoot<Root>(builder.GetBufferPointer()));
  return answer ? std::nullopt : std::optional(answer.error().code());
}

Offset<wire::Tag> tag(Builder& builder, std::size_t key_bytes, std::size_t value_bytes) {
  const auto key = builder.CreateString(std::string(key_bytes, 'k'));
  return wire::CreateTag(builder, key, builder.CreateString(std::string(value_bytes, 'v')));
}

std::optional<Code> match_with(std::size_t tags, std::size_t key_bytes, std::size_t value_bytes) {
  const auto build = [&](Builder& builder) {
    const auto graph = rpc::put(builder, *MatchGraph::of(*test_architecture({10})));
    const auto list = repeated(builder, tag(builder, key_bytes, value_bytes), tags);
    return wire::CreateMatch(builder, graph, 0, 1, false, {}, list);
  };
  return refusal<wire::Match>(build, [](const wire::Match& match) { return read(match); });
}

std::optional<Code> annotate_with(std::size_t tags, std::size_t key_bytes, std::size_t value_bytes) {
  const auto build = [&](Builder& builder) {
    const auto name = rpc::put(builder, VersionName{.model = "net", .number = 1});
    const auto list = repeated(builder, tag(builder, key_bytes, value_bytes), tags);
    return wire::CreateAnnotate(builder, name, false, {}, list);
  };
  return refusal<wire::Annotate>(build, [](const wire::Annotate& annotate) { return read(annotate); });
}

std::optional<Code> change_with(std::size_t records, std::size_t value_bytes) {
  const auto build = [&](Builder& builder) {
    const auto record = rpc::put(builder, SharedRecord{.key = "k", .value = std::string(value_bytes, 'v')});
    return wire::CreateChangeShared(builder, 0, repeated(builder, record, records));
  };
  return refusal<wire::ChangeShared>(build,
                                     [](const wire::ChangeShared& change) { return read_changed(change.changes()); });
}

std::optional<Code> put_with(std::size_t moved, std::size_t elsewhere, std::size_t id_bytes) {
  const auto build = [&](Builder& builder) {
    const wire::Id writer = wire_id(test_id(1));
    const auto provider = builder.CreateString(std::string(id_bytes, 'p'));
    const auto list = repeated(builder, wire::CreateMoved(builder, &writer, provider), moved);
    const auto tensors = builder.CreateVector(std::vector<std::uint32_t>(elsewhere));
    return wire::CreatePut(builder, 0, {}, true, wire::CreatePlaced(builder, 1, 1, tensors, list));
  };
  return refusal<wire::Put>(build, [](const wire::Put& put) { return read_options(put, /*tensors=*/3); });
}

TEST(RpcMessages, AMatchHasSoManyTagsOfSuchALength) {
  EXPECT_EQ(match_with(kMatchTagsMax, kTagKeyBytesMax, kTagValueBytesMax), std::nullopt);
  EXPECT_EQ(match_with(kMatchTagsMax + 1, 1, 1), Code::invalid_argument);
  EXPECT_EQ(match_with(1, kTagKeyBytesMax + 1, 1), Code::invalid_argument);
  EXPECT_EQ(match_with(1, 1, kTagValueBytesMax + 1), Code::invalid_argument);
}

TEST(RpcMessages, SoManyTagsOfSuchALengthAreSaidLater) {
  EXPECT_EQ(annotate_with(kLaterTagsMax, kTagKeyBytesMax, kLaterTagBytesMax), std::nullopt);
  EXPECT_EQ(annotate_with(kLaterTagsMax + 1, 1, 1), Code::out_of_space);
  EXPECT_EQ(annotate_with(1, kTagKeyBytesMax + 1, 1), Code::invalid_argument);
  EXPECT_EQ(annotate_with(1, 1, kLaterTagBytesMax + 1), Code::invalid_argument);
}

TEST(RpcMessages, SoManySharedRecordsOfSuchALengthAreChangedInOneCall) {
  EXPECT_EQ(change_with(kSharedRecordsMax, 1), std::nullopt);
  EXPECT_EQ(change_with(kSharedRecordsMax + 1, 1), Code::invalid_argument);
  EXPECT_EQ(change_with(15, kSharedValueBytesMax), std::nullopt);
  EXPECT_EQ(change_with(16, kSharedValueBytesMax), Code::invalid_argument) << "with their keys";
}

TEST(RpcMessages, AVersionIsPlacedByNoMoreThanItHas) {
  EXPECT_EQ(put_with(3, 3, 64), std::nullopt);
  EXPECT_EQ(put_with(4, 3, 1), Code::invalid_argument);
  EXPECT_EQ(put_with(3, 4, 1), Code::invalid_argument);
  EXPECT_EQ(put_with(3, 3, 65), Code::invalid_argument);
}

}  // namespace
}  // namespace freshet::rpc
