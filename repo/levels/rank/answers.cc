// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/answers.h"

#include <utility>

#include "core/base/format.h"

namespace freshet::levels {

Result<std::vector<std::byte>> Answers::answer(Bytes bytes) {
  using Kind = Question::Kind;
  FRESHET_ASSIGN(const Question question, decode_question(bytes));
  switch (question.kind) {
    case Kind::head:
    case Kind::read:
      if (question.of == ShardKind::stored) return from_repository(question);
      return question.in_memory ? from_memory(question) : from_folders(question);
    case Kind::table: return table(question.table);
    case Kind::bring: break;
  }
  bringer_.take_request(question);
  return std::vector<std::byte>();
}

Result<std::vector<std::byte>> Answers::from_repository(const Question& question) {
  if (external() == nullptr) return fail(Code::unsupported, "only rank 0 has the repository");
  if (question.kind == Question::Kind::head) return external()->head(question.key.version);
  return external()->read(question.key.version, question.ranges);
}

Result<std::vector<std::byte>> Answers::from_folders(const Question& question) {
  if (question.kind == Question::Kind::head) return job_.folders->read_head(question.key, question.of);
  // The rank that sends dies where it was told to, in tests, with its first answer.
  const auto step = job_.options.rank != 0 ? bringer_.step_of_sending(question.key) : std::nullopt;
  if (step) job_.point("external_half", *step);
  return job_.folders->read(question.key, question.ranges, question.of);
}

Result<std::vector<std::byte>> Answers::table(const Digest& digest) {
  if (digest == job_.cut->table->digest) return job_.cut->table->encoded;
  if (external() != nullptr) {
    if (auto table = external()->table(digest)) return table;
  }
  return job_.folders->read_table(digest);
}

Result<std::vector<std::byte>> Answers::from_memory(const Question& question) {
  std::shared_ptr<const Share> share;
  if (question.key.rank == job_.options.rank && question.key.ranks == job_.options.ranks) {
    share = book_.borrow(question.key.version);
  }
  if (share == nullptr) return fail(Code::not_found, "the version is not in memory any more");
  if (question.kind == Question::Kind::head) {
    return encode_shard_head(header_of(*job_.cut, *share, job_.options.model, job_.host));
  }
  const std::uint64_t all = job_.cut->offsets.back();
  std::vector<std::byte> answer;
  for (const ByteRange& range : question.ranges) {
    if (range.offset > all || range.bytes > all - range.offset) return refuse("outside of the share");
    const std::byte* const from = share->memory.data() + range.offset;
    answer.insert(answer.end(), from, from + range.bytes);
  }
  return answer;
}

group::Rank Answers::open_to_read() {
  if (job_.options.rank == 0 || !job_.options.external_is_shared) return 0;
  auto repository = job_.options.external();
  if (!repository) {
    job_.warn(format("rank {} restores through rank 0: {}", job_.options.rank, repository.error().message()));
    return 0;
  }
  to_read_ = std::make_unique<ExternalLevel>(*std::move(repository), job_.options.model);
  return job_.options.rank;
}

}  // namespace freshet::levels
