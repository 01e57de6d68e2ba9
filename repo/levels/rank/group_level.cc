// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/group_level.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "repo/levels/parity/image.h"
#include "repo/levels/restart/group_source.h"
#include "repo/levels/restart/readable.h"

namespace freshet::levels {
namespace {

/// Of a shard that is copied, asked for before it is written.
constexpr std::uint64_t kCopyBytesAhead = 8 * kReadBytes;

}  // namespace

GroupLevel::GroupLevel(const Job& job, KeptShards& kept)
    : job_(job),
      kept_(kept),
      ring_(place_in_ring(job.groups, job.options.rank)),
      pace_(job.options.limit_bytes_per_second) {
  if (job.options.group.kind != GroupScheme::Kind::parity) return;
  parity_ = std::make_unique<ParityMaker>(ParityMaker::Group{.model = job.options.model,
                                                             .host = job.host,
                                                             .rank = job.options.rank,
                                                             .ranks = job.options.ranks,
                                                             .members = group_of(job.groups, job.options.rank),
                                                             .losses = job.options.group.losses,
                                                             .table = job.cut->table});
}

Status GroupLevel::reach(const Due& due) {
  FRESHET_TRY(parity_ != nullptr ? make_parity(due.version, due.step) : copy_shard(due.version, due.step));
  job_.point("group_synced", due.step);
  return {};
}

Status GroupLevel::make_parity(const Version& version, std::uint64_t step) {
  GroupSource source(*job_.group, job_.options.patience);
  const ParityMaker::Hooks hooks{.half = [&] { job_.point("group_half", step); },
                                 .stop = [&] { return job_.group->over().has_value(); }};
  FRESHET_TRY(parity_->make(source, *job_.folders, version, step, pace_, hooks));
  kept_.need_only(version);  // The next one inherits blocks that this one has, or inherits.
  return {};
}

Status GroupLevel::copy_shard(const Version& version, std::uint64_t step) {
  GroupSource source(*job_.group, job_.options.patience);
  const std::uint32_t from = ring_.keeps_copy_of;
  FRESHET_ASSIGN(const ShardHeader newest, read_head(source, {version, from, from}, job_.options.ranks));
  if (newest.tensors != job_.cut->table->digest) return fail(Code::corrupt, format("rank {} has other tensors", from));
  const std::vector<StoredPiece> pieces = stored_pieces(job_.cut->table->tensors, job_.options.ranks, from);
  FRESHET_TRY(check(newest, pieces));
  FRESHET_TRY(job_.folders->write_table(*job_.cut->table));
  const std::vector<Version> needs = newest.needs();
  kept_.need(needs);
  // First what the shard needs, so that the copy is whole as soon as it is there.
  const auto copy_all = [&]() -> Status {
    for (const Version& needed : needs) {
      if (has_bytes_for(newest, needed, pieces)) continue;
      FRESHET_TRY(copy_payload(source, newest, needed, pieces, step));
    }
    return copy_payload(source, newest, version, pieces, step);
  };
  const Status copied = copy_all();
  if (copied) {
    newest_copy_ = version;
    copied_ = {needs.begin(), needs.end()};
    copied_.insert(version);
  }
  kept_.need_only(newest_copy_);
  return copied;
}

Status GroupLevel::check(const ShardHeader& header, std::span<const StoredPiece> pieces) const {
  Status checked = check_records(header, pieces);
  if (checked) return checked;
  return fail(std::move(checked).error().with_context(
      format("{} of rank {}", whole_file(header.key, ShardKind::own), ring_.keeps_copy_of)));
}

Status GroupLevel::read_kept(const ShardKey& key, std::uint64_t at, MutableBytes out) const {
  return read_readable(at, out, [&](std::uint64_t from, MutableBytes part) {
    const PlacedRange range{.offset = from, .out = part};
    return job_.folders->read_into(key, std::span(&range, 1), ShardKind::copy);
  });
}

/// A copy that an earlier life made for another shard, or cleaned, has only some of the payload's bytes.
bool GroupLevel::has_bytes_for(const ShardHeader& newest, const Version& store,
                               std::span<const StoredPiece> pieces) const {
  const ShardKey key{store, newest.key.rank, job_.options.ranks};
  if (!job_.folders->has_copy(key)) return false;
  if (copied_.contains(store) || job_.folders->has_whole_copy(key)) return true;
  const auto needed = image_of_payload(newest, pieces, {.version = store, .shard_rank = key.rank}, UINT64_MAX);
  return needed && std::ranges::all_of(needed->chunks, [&](const ImageChunk& chunk) {
           if (job_.group->over()) return false;
           const ByteRange range{chunk.offset, chunk.bytes};
           const auto bytes = job_.folders->read(key, std::span(&range, 1), ShardKind::copy);
           return bytes && digest_of(*bytes) == chunk.digest;
         });
}

Status GroupLevel::copy_payload(ShardSource& source, const ShardHeader& newest, const Version& store,
                                std::span<const StoredPiece> pieces, std::uint64_t step) {
  const std::uint32_t from = ring_.keeps_copy_of;
  const Holder holder{store, from, from};
  const ShardKey key{store, from, job_.options.ranks};
  const bool is_newest = store == newest.key.version;
  FRESHET_ASSIGN(const ShardHeader header, read_head(source, holder, job_.options.ranks));
  FRESHET_TRY(check(header, pieces));
  const std::uint64_t all = header.payload_bytes;
  FRESHET_ASSIGN(ImageChunks chunks, image_of_payload(newest, pieces, holder, all));
  ShardImage payload(source, job_.options.ranks, std::move(chunks));
  const bool has_copy = !is_newest && job_.folders->has_copy(key);
  std::vector<std::byte> bytes;
  std::uint64_t asked = 0;
  std::uint64_t taken = 0;
  AtHalf at_half(all, [&] {
    if (is_newest) job_.point("group_half", step);
  });
  const auto next = [&]() -> Result<std::optional<Bytes>> {
    at_half.reached(taken);
    for (; asked < all && asked - taken < kCopyBytesAhead; asked += std::min(kReadBytes, all - asked)) {
      const std::uint64_t now = payload.begin(asked, std::min(kReadBytes, all - asked));
      const Status waited = pace_.wait_for(now, [&] { return job_.group->over().has_value(); });
      if (!waited) return fail(*job_.group->over());
    }
    if (taken == all) return std::optional<Bytes>();
    bytes.assign(std::min(kReadBytes, all - taken), std::byte{0});
    // What `newest` does not need: copies of older shards may need it, and the copy here may have it.
    if (has_copy) FRESHET_TRY(read_kept(key, taken, bytes));
    std::vector<BadShard> bad;
    FRESHET_TRY(payload.take(bytes, bad, false));
    taken += bytes.size();
    return std::optional(Bytes(bytes));
  };
  return job_.folders->write_streamed(encode_shard_head(header), key, ShardKind::copy, !is_newest, next);
}

}  // namespace freshet::levels
