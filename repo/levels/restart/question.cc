// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/question.h"

#include <algorithm>

#include "repo/levels/terms/wire.h"
#include "transport/group/messages.h"

namespace freshet::levels {

std::vector<std::byte> encode(const Question& question) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> lengths;
  for (const ByteRange& range : question.ranges) {
    offsets.push_back(range.offset);
    lengths.push_back(range.bytes);
  }
  const auto offset_list = builder.CreateVector(offsets);
  const auto length_list = builder.CreateVector(lengths);
  const auto token = question.token.empty() ? 0 : builder.CreateString(question.token);
  const auto tensors = question.tensors.empty() ? 0 : builder.CreateVector(question.tensors);
  const wire::Version version = wire_of(question.key.version);
  const wire::Digest table(question.table.low, question.table.high);
  builder.Finish(wire::CreateQuestion(builder, static_cast<std::uint8_t>(question.kind), &version, question.key.rank,
                                      question.key.ranks, question.in_memory, &table, offset_list, length_list,
                                      static_cast<std::uint8_t>(question.of), token, tensors),
                 kQuestionId);
  return bytes_in(builder);
}

Result<Question> decode_question(Bytes bytes) {
  FRESHET_ASSIGN(const auto from, root_of<wire::Question>(bytes, kQuestionId));
  const std::size_t ranges = from->offsets() == nullptr ? 0 : from->offsets()->size();
  const std::size_t lengths = from->lengths() == nullptr ? 0 : from->lengths()->size();
  if (from->kind() > static_cast<std::uint8_t>(Question::Kind::bring) || from->version() == nullptr ||
      from->table() == nullptr || ranges != lengths || ranges > kRangesMax ||
      from->of() > static_cast<std::uint8_t>(ShardKind::stored)) {
    return fail(Code::corrupt, "a question about shards is malformed");
  }
  Question question{.kind = static_cast<Question::Kind>(from->kind()),
                    .key = {.version = version_from(*from->version()), .rank = from->rank(), .ranks = from->ranks()},
                    .in_memory = from->in_memory(),
                    .table = {.low = from->table()->low(), .high = from->table()->high()},
                    .of = static_cast<ShardKind>(from->of())};
  if (from->token() != nullptr) question.token = from->token()->str();
  const std::size_t tensors = from->tensors() == nullptr ? 0 : from->tensors()->size();
  for (std::size_t i = 0; i < tensors; ++i) {
    question.tensors.push_back(from->tensors()->Get(static_cast<flatbuffers::uoffset_t>(i)));
  }
  if (!std::ranges::is_sorted(question.tensors))
    return fail(Code::corrupt, "a question about shards lists tensors out of order");
  std::uint64_t left = group::kAnswerBytesMax;
  for (std::size_t i = 0; i < ranges; ++i) {
    const auto at = static_cast<flatbuffers::uoffset_t>(i);
    const ByteRange range{.offset = from->offsets()->Get(at), .bytes = from->lengths()->Get(at)};
    if (range.bytes > left || range.offset > UINT64_MAX / 2) {
      return fail(Code::corrupt, "a question about shards asks for too much");
    }
    left -= range.bytes;
    question.ranges.push_back(range);
  }
  return question;
}

}  // namespace freshet::levels
