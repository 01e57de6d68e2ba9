// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/group_level.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "core/base/format.h"
#include "repo/levels/restart/group_source.h"

namespace freshet::levels {
namespace {

/// A part of a payload: so many bytes from there on, proved by their chunks' digests, or padding that says nothing.
struct PayloadPart {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::span<const Digest> digests;  ///< None: zeros, which nobody needs.
};

/// Whether the bytes are those that were written.
bool is_whole(const PayloadPart& part, Bytes bytes) {
  if (bytes.size() != part.bytes) return false;
  for (const Digest& digest : part.digests) {
    const Bytes chunk = bytes.first(std::min<std::size_t>(bytes.size(), kChunkBytes));
    if (digest_of(chunk) != digest) return false;
    bytes = bytes.subspan(chunk.size());
  }
  return true;
}

/// The payload of `store` as far as `newest` tells it, without gaps up to `payload_bytes`.
std::vector<PayloadPart> parts_of(const ShardHeader& newest, const Version& store, std::span<const StoredPiece> pieces,
                                  std::uint64_t payload_bytes) {
  std::vector<std::size_t> stored;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (newest.versions[newest.records[i].store] == store) stored.push_back(i);
  }
  std::ranges::sort(stored, {}, [&](std::size_t i) { return newest.records[i].offset; });
  const std::vector<std::uint64_t> chunks = first_chunks(pieces);
  std::vector<PayloadPart> parts;
  std::uint64_t at = 0;
  const auto fill_to = [&](std::uint64_t offset) {
    while (at < offset) {
      const std::uint64_t bytes = std::min(kReadBytes, offset - at);
      parts.push_back({.offset = at, .bytes = bytes, .digests = {}});
      at += bytes;
    }
  };
  for (const std::size_t i : stored) {
    fill_to(newest.records[i].offset);
    std::uint64_t chunk = chunks[i];
    for (std::uint64_t left = pieces[i].piece.bytes(); left > 0;) {
      const std::uint64_t bytes = std::min(kReadBytes, left);
      const std::uint64_t count = (bytes + kChunkBytes - 1) / kChunkBytes;
      parts.push_back({.offset = at, .bytes = bytes, .digests = std::span(newest.digests).subspan(chunk, count)});
      chunk += count;
      at += bytes;
      left -= bytes;
    }
  }
  fill_to(payload_bytes);
  return parts;
}

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
  FRESHET_TRY(check_records(newest, pieces));
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

/// A copy that an earlier life made for another shard, or cleaned, has only some of the payload's bytes.
bool GroupLevel::has_bytes_for(const ShardHeader& newest, const Version& store,
                               std::span<const StoredPiece> pieces) const {
  const ShardKey key{store, newest.key.rank, job_.options.ranks};
  if (!job_.folders->has_copy(key)) return false;
  if (copied_.contains(store) || job_.folders->has_whole_copy(key)) return true;
  return std::ranges::all_of(parts_of(newest, store, pieces, 0), [&](const PayloadPart& part) {
    if (part.digests.empty()) return true;
    if (job_.group->over()) return false;
    const ByteRange range{part.offset, part.bytes};
    const auto bytes = job_.folders->read(key, std::span(&range, 1), ShardKind::copy);
    return bytes && is_whole(part, *bytes);
  });
}

Status GroupLevel::copy_payload(ShardSource& source, const ShardHeader& newest, const Version& store,
                                std::span<const StoredPiece> pieces, std::uint64_t step) {
  const std::uint32_t from = ring_.keeps_copy_of;
  const Holder holder{store, from, from};
  const ShardKey key{store, from, job_.options.ranks};
  const bool is_newest = store == newest.key.version;
  FRESHET_ASSIGN(const ShardHeader header, read_head(source, holder, job_.options.ranks));
  const std::vector<PayloadPart> parts = parts_of(newest, store, pieces, header.payload_bytes);
  struct UnderWay {
    const PayloadPart* part;
    std::unique_ptr<ShardSource::Pending> read;
  };
  std::deque<UnderWay> under_way;
  std::size_t asked = 0;
  std::uint64_t written = 0;
  bool told = !is_newest;
  std::optional<group::Answer> current;
  std::vector<std::byte> gap;
  // What `newest` does not need. Copies of older shards may need it, and the copy here may have it.
  const auto fill_gap = [&](const PayloadPart& part) -> Result<Bytes> {
    gap.assign(part.bytes, std::byte{0});
    if (is_newest || !job_.folders->has_copy(key)) return Bytes(gap);
    const ByteRange range{part.offset, part.bytes};
    auto kept = job_.folders->read(key, std::span(&range, 1), ShardKind::copy);
    if (kept) {
      gap = *std::move(kept);
    } else if (kept.error().code() == Code::out_of_space || is_no_damage(kept.error())) {
      return fail(std::move(kept).error());  // No descriptor was free, say: the bytes are there, and must stay.
    }
    return Bytes(gap);
  };
  const auto next = [&]() -> Result<std::optional<Bytes>> {
    if (!told && written * 2 >= header.payload_bytes) {
      told = true;
      job_.point("group_half", step);
    }
    constexpr std::size_t kUnderWay = 8;
    while (asked < parts.size() && under_way.size() < kUnderWay) {
      const PayloadPart& part = parts[asked++];
      under_way.push_back({&part, nullptr});
      if (part.digests.empty()) continue;
      const Status waited = pace_.wait_for(part.bytes, [&] { return job_.group->over().has_value(); });
      if (!waited) return fail(*job_.group->over());
      under_way.back().read = source.read(holder, job_.options.ranks, {{part.offset, part.bytes}});
    }
    if (under_way.empty()) return std::optional<Bytes>();
    UnderWay first = std::move(under_way.front());
    under_way.pop_front();
    written += first.part->bytes;
    if (first.read == nullptr) {
      FRESHET_ASSIGN(const Bytes filled, fill_gap(*first.part));
      return std::optional(filled);
    }
    FRESHET_ASSIGN(current, first.read->wait());
    if (!is_whole(*first.part, current->bytes())) {
      return fail(Code::corrupt, format("version {}: the bytes that rank {} sent differ from those that it wrote",
                                        store.number, from));
    }
    return std::optional(current->bytes());
  };
  return job_.folders->write_streamed(encode_shard_head(header), key, ShardKind::copy, !is_newest, next);
}

}  // namespace freshet::levels
