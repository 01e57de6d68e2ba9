// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/local_level.h"

#include <algorithm>
#include <map>
#include <utility>

namespace freshet::levels {

Status LocalLevel::reach(const Due& due) {
  const std::shared_ptr<const Share> share = book_.borrow(due.version, true);
  if (share == nullptr) return fail(Code::not_found, "the version is not in memory any more");
  FRESHET_TRY(write(*share));
  kept_.set_newest(due.version);
  return {};
}

Status LocalLevel::write(const Share& share) {
  const ShareCut& cut = *job_.cut;
  FRESHET_TRY(job_.folders->write_table(*cut.table));
  ShardHeader header = header_of(cut, share, job_.options.model, job_.host);
  header.created_unix_ns = system_clock().unix_ns();
  std::map<Version, std::uint32_t> known;
  for (std::uint32_t i = 0; i < header.versions.size(); ++i) known.emplace(header.versions[i], i);
  const auto index_of = [&](const Version& version) {
    const auto [at, is_new] = known.try_emplace(version, static_cast<std::uint32_t>(header.versions.size()));
    if (is_new) header.versions.push_back(version);
    return at->second;
  };
  static constexpr std::byte kPadding[kPieceAlignment] = {};
  std::vector<Bytes> payload;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
    PieceRecord& record = header.records[i];
    if (newest_ && is_equal_piece(cut, i, share.digests, newest_->digests)) {
      record.store = index_of(newest_->versions[newest_->records[i].store]);
      record.offset = newest_->records[i].offset;
      continue;
    }
    const std::uint64_t bytes = cut.pieces[i].piece.bytes();
    record.store = 0;
    record.offset = at;
    payload.push_back(Bytes(share.memory.data() + cut.offsets[i], bytes));
    const std::uint64_t next = aligned_to_piece(at + bytes);
    if (next > at + bytes) payload.push_back(Bytes(kPadding).first(next - at - bytes));
    at = next;
  }
  header.payload_bytes = at;
  FRESHET_TRY(job_.folders->write(encode_shard_head(header), header.key, payload,
                                  [&] { job_.point("local_half", share.step); }));
  newest_ = std::move(header);
  job_.point("local_synced", share.step);
  return {};
}

void LocalLevel::inherit_from(const RestartPlan& plan, const Baseline& baseline) {
  const ShareCut& cut = *job_.cut;
  const std::uint32_t rank = job_.options.rank;
  const ShardKey key{.version = plan.version, .rank = rank, .ranks = job_.options.ranks};
  if (plan.ranks != job_.options.ranks) return;
  const auto head = job_.folders->read_header(key, ShardKind::own);
  if (!head || head->tensors != cut.table->digest || !check_records(*head, cut.pieces)) return;
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
    if (!is_equal_piece(cut, i, head->digests, baseline.digests)) return;
  }
  // Each rank reads what it stores from its own files first, so those that were not crossed off are proved.
  std::vector<Version> stores = head->needs();
  stores.push_back(plan.version);
  for (const Version& store : stores) {
    const Holder own{.version = store, .shard_rank = rank, .holder = rank};
    if (std::ranges::find(plan.holders, own) == plan.holders.end()) return;
  }
  newest_ = *head;
  kept_.set_newest(plan.version);
}

}  // namespace freshet::levels
