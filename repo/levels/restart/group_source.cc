// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/group_source.h"

#include <utility>

#include "repo/levels/restart/question.h"

namespace freshet::levels {
namespace {

/// An answer that a group's question gives.
class AskedBytes final : public ShardSource::Pending {
 public:
  AskedBytes(group::Group::Question question, Duration patience)
      : question_(std::move(question)), patience_(patience) {}
  ShardSource::Bytes wait() override { return question_.wait(patience_); }

 private:
  group::Group::Question question_;
  const Duration patience_;
};

}  // namespace

ShardSource::Bytes GroupSource::head(const Holder& holder, std::uint32_t ranks) {
  const Question question{
      .kind = Question::Kind::head, .key = holder.key(ranks), .in_memory = holder.in_memory, .of = holder.kind};
  return group_.ask(holder.holder, encode(question)).wait(patience_);
}

ShardSource::Bytes GroupSource::table(std::uint32_t holder, const Digest& digest) {
  const Question question{.kind = Question::Kind::table, .table = digest};
  return group_.ask(holder, encode(question)).wait(patience_);
}

std::unique_ptr<ShardSource::Pending> GroupSource::read(const Holder& holder, std::uint32_t ranks,
                                                        std::vector<ByteRange> ranges) {
  const Question question{.kind = Question::Kind::read,
                          .key = holder.key(ranks),
                          .in_memory = holder.in_memory,
                          .ranges = std::move(ranges),
                          .of = holder.kind};
  return std::make_unique<AskedBytes>(group_.ask(holder.holder, encode(question)), patience_);
}

bool GroupSource::read_into(const Holder& holder, std::uint32_t ranks, std::span<const PlacedRange> ranges) {
  if (folders_ == nullptr || holder.holder != self_ || holder.kind == ShardKind::stored) return false;
  return FolderSource(*folders_).read_into(holder, ranks, ranges);
}

}  // namespace freshet::levels
