// SPDX-License-Identifier: Apache-2.0
/// What a rank answers to the questions of others: bytes of its folders, of its memory, and of the repository.

#include "repo/levels/checkpointer_impl.h"

namespace freshet {

Result<std::vector<std::byte>> Checkpointer::Impl::on_ask(Bytes bytes) {
  using Kind = levels::Question::Kind;
  FRESHET_ASSIGN(const levels::Question question, levels::decode_question(bytes));
  switch (question.kind) {
    case Kind::head:
    case Kind::read: {
      if (question.in_memory) return answer_from_memory(question);
      if (question.kind == Kind::head) return folders_->read_head(question.key, question.of);
      bool half = false;
      std::uint64_t step = 0;
      {
        // The rank that sends dies where it was told to, in tests, with its first answer.
        const MutexLock lock(mutex_);
        half = options_.rank != 0 && sending_ == question.key.version.number && question.key.ranks == options_.ranks;
        step = sending_step_;
      }
      if (half) point("external_half", step);
      return folders_->read(question.key, question.ranges, question.of);
    }
    case Kind::table:
      if (question.table == cut_->table->digest) return cut_->table->encoded;
      for (const auto* repository : {&external_, &to_read_}) {
        if (*repository == nullptr) continue;
        if (auto table = (*repository)->table(question.table)) return table;
      }
      return folders_->read_table(question.table);
    case Kind::bring: take_request(question); return std::vector<std::byte>();
    case Kind::stored_head:
      if (external_ != nullptr) return external_->head(question.key.version);
      if (to_read_ != nullptr) return to_read_->head(question.key.version);
      break;
    case Kind::stored_read:
      if (external_ != nullptr) return external_->read(question.key.version, question.key.rank, question.ranges);
      if (to_read_ != nullptr) return to_read_->read(question.key.version, question.key.rank, question.ranges);
      break;
  }
  return fail(Code::unsupported, "only rank 0 has the repository");
}

Result<std::vector<std::byte>> Checkpointer::Impl::answer_from_memory(const levels::Question& question) {
  std::shared_ptr<Share> share;
  {
    const MutexLock lock(mutex_);
    const auto at = versions_.find(question.key.version.number);
    if (at != versions_.end() && at->second.share != nullptr && at->second.share->version == question.key.version &&
        question.key.rank == options_.rank && question.key.ranks == options_.ranks) {
      share = at->second.share;
      ++share->users;
    }
  }
  if (share == nullptr) return fail(Code::not_found, "it is not in memory any more");
  std::vector<std::byte> answer;
  Status status;
  if (question.kind == levels::Question::Kind::head) {
    answer = encode_shard_head(header_of(*cut_, *share, options_.model, host_));
  } else {
    const std::uint64_t all = cut_->offsets.back();
    for (const levels::ByteRange& range : question.ranges) {
      if (range.offset > all || range.bytes > all - range.offset) {
        status = refuse("outside of the share");
        break;
      }
      const std::byte* const from = share->memory.data() + range.offset;
      answer.insert(answer.end(), from, from + range.bytes);
    }
  }
  {
    const MutexLock lock(mutex_);
    --share->users;
    changed_.notify_all();
  }
  if (!status) return fail(status.error());
  return answer;
}

}  // namespace freshet
