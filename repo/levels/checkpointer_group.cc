// SPDX-License-Identifier: Apache-2.0
/// What a rank reads from others, and the level `group`: each rank keeps a copy of what the rank before it in the ring
/// has in its folder, or parity of what its group has.

#include <algorithm>
#include <deque>
#include <thread>

#include "core/base/format.h"
#include "repo/levels/checkpointer_impl.h"

namespace freshet {
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
    const Bytes chunk = bytes.first(std::min<std::size_t>(bytes.size(), levels::kChunkBytes));
    if (digest_of(chunk) != digest) return false;
    bytes = bytes.subspan(chunk.size());
  }
  return true;
}

/// The payload of `store` as far as `newest` tells it, without gaps up to `payload_bytes`.
std::vector<PayloadPart> parts_of(const levels::ShardHeader& newest, const levels::Version& store,
                                  std::span<const StoredPiece> pieces, std::uint64_t payload_bytes) {
  std::vector<std::size_t> stored;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (newest.versions[newest.records[i].store] == store) stored.push_back(i);
  }
  std::ranges::sort(stored, {}, [&](std::size_t i) { return newest.records[i].offset; });
  const std::vector<std::uint64_t> chunks = levels::first_chunks(pieces);
  std::vector<PayloadPart> parts;
  std::uint64_t at = 0;
  const auto fill_to = [&](std::uint64_t offset) {
    while (at < offset) {
      const std::uint64_t bytes = std::min(levels::kReadBytes, offset - at);
      parts.push_back({.offset = at, .bytes = bytes, .digests = {}});
      at += bytes;
    }
  };
  for (const std::size_t i : stored) {
    fill_to(newest.records[i].offset);
    std::uint64_t chunk = chunks[i];
    for (std::uint64_t left = pieces[i].piece.bytes(); left > 0;) {
      const std::uint64_t bytes = std::min(levels::kReadBytes, left);
      const std::uint64_t count = (bytes + levels::kChunkBytes - 1) / levels::kChunkBytes;
      parts.push_back({.offset = at, .bytes = bytes, .digests = std::span(newest.digests).subspan(chunk, count)});
      chunk += count;
      at += bytes;
      left -= bytes;
    }
  }
  fill_to(payload_bytes);
  return parts;
}

/// An answer that a group's question gives.
class AskedBytes final : public levels::ShardSource::Pending {
 public:
  AskedBytes(group::Group::Question question, Duration patience)
      : question_(std::move(question)), patience_(patience) {}
  levels::ShardSource::Bytes wait() override { return question_.wait(patience_); }

 private:
  group::Group::Question question_;
  const Duration patience_;
};

}  // namespace

levels::ShardSource::Bytes GroupSource::head(const levels::Holder& holder, std::uint32_t ranks) {
  const levels::Question question{.kind = levels::Question::Kind::head,
                                  .key = {.version = holder.version, .rank = holder.shard_rank, .ranks = ranks},
                                  .in_memory = holder.in_memory,
                                  .of = holder.kind};
  return group_.ask(holder.holder, encode(question)).wait(patience_);
}

levels::ShardSource::Bytes GroupSource::table(std::uint32_t holder, const Digest& digest) {
  const levels::Question question{.kind = levels::Question::Kind::table, .table = digest};
  return group_.ask(holder, encode(question)).wait(patience_);
}

std::unique_ptr<levels::ShardSource::Pending> GroupSource::read(const levels::Holder& holder, std::uint32_t ranks,
                                                                std::vector<levels::ByteRange> ranges) {
  const levels::Question question{.kind = levels::Question::Kind::read,
                                  .key = {.version = holder.version, .rank = holder.shard_rank, .ranks = ranks},
                                  .in_memory = holder.in_memory,
                                  .ranges = std::move(ranges),
                                  .of = holder.kind};
  return std::make_unique<AskedBytes>(group_.ask(holder.holder, encode(question)), patience_);
}

bool GroupSource::read_into(const levels::Holder& holder, std::uint32_t ranks,
                            std::span<const levels::PlacedRange> ranges) {
  if (folders_ == nullptr || holder.holder != self_) return false;
  return levels::FolderSource(*folders_).read_into(holder, ranks, ranges);
}

void Checkpointer::Impl::run_copier() {
  lower_own_priority();
  levels::Pace pace(options_.limit_bytes_per_second);
  for (;;) {
    const std::optional<Due> due = next_due(&Impl::to_copy_);
    if (!due) return;
    const Version& version = due->version;
    const std::uint64_t step = due->step;
    const Status copied = parity_ != nullptr ? make_parity(version, step, pace) : copy_shard(version, step, pace);
    if (copied) point("group_synced", step);
    say(LevelNote::Kind::done, version, step, Level::group,
        copied ? std::nullopt : std::optional<Error>(copied.error()));
  }
}

Status Checkpointer::Impl::make_parity(const Version& version, std::uint64_t step, levels::Pace& pace) {
  GroupSource source(*group_, options_.patience);
  const levels::ParityMaker::Hooks hooks{.half = [&] { point("group_half", step); },
                                         .stop = [&] { return group_->over().has_value(); }};
  FRESHET_TRY(parity_->make(source, *folders_, version, step, pace, hooks));
  const MutexLock lock(folder_mutex_);
  copy_needs_ = {version};  // The next one inherits blocks that this one has, or inherits.
  return {};
}

Status Checkpointer::Impl::copy_shard(const Version& version, std::uint64_t step, levels::Pace& pace) {
  GroupSource source(*group_, options_.patience);
  const std::uint32_t from = ring_.keeps_copy_of;
  const levels::ShardKey key{version, from, options_.ranks};
  FRESHET_ASSIGN(const group::Answer bytes, source.head({version, from, from}, options_.ranks));
  FRESHET_ASSIGN(const levels::ShardHeader newest, levels::decode_shard_head(bytes.bytes()));
  if (newest.key != key || newest.tensors != cut_->table->digest) {
    return fail(Code::corrupt, format("rank {} answered with another shard's head", from));
  }
  const std::vector<StoredPiece> pieces = stored_pieces(cut_->table->tensors, options_.ranks, from);
  FRESHET_TRY(check_records(newest, pieces));
  FRESHET_TRY(folders_->write_table(*cut_->table));
  const std::vector<Version> needs = newest.needs();
  {
    const MutexLock lock(folder_mutex_);
    copy_needs_.insert(needs.begin(), needs.end());
  }
  // First what the shard needs, so that the copy is whole as soon as it is there.
  const auto copy_all = [&]() -> Status {
    for (const Version& needed : needs) {
      if (has_bytes_for(newest, needed, pieces)) continue;
      FRESHET_TRY(copy_payload(source, newest, needed, pieces, step, pace));
    }
    return copy_payload(source, newest, version, pieces, step, pace);
  };
  const Status copied = copy_all();
  if (copied) {
    newest_copy_ = version;
    copied_ = {needs.begin(), needs.end()};
    copied_.insert(version);
  }
  const MutexLock lock(folder_mutex_);
  copy_needs_.clear();
  if (newest_copy_) copy_needs_.insert(*newest_copy_);
  return copied;
}

/// A copy that an earlier life made for another shard, or cleaned, has only some of the payload's bytes.
bool Checkpointer::Impl::has_bytes_for(const levels::ShardHeader& newest, const Version& store,
                                       std::span<const StoredPiece> pieces) const {
  const levels::ShardKey key{store, newest.key.rank, options_.ranks};
  if (!folders_->has_copy(key)) return false;
  if (copied_.contains(store) || folders_->has_whole_copy(key)) return true;
  return std::ranges::all_of(parts_of(newest, store, pieces, 0), [&](const PayloadPart& part) {
    if (part.digests.empty()) return true;
    if (group_->over()) return false;
    const levels::ByteRange range{part.offset, part.bytes};
    const auto bytes = folders_->read(key, std::span(&range, 1), levels::ShardKind::copy);
    return bytes && is_whole(part, *bytes);
  });
}

Status Checkpointer::Impl::copy_payload(levels::ShardSource& source, const levels::ShardHeader& newest,
                                        const Version& store, std::span<const StoredPiece> pieces, std::uint64_t step,
                                        levels::Pace& pace) {
  const std::uint32_t from = ring_.keeps_copy_of;
  const levels::Holder holder{store, from, from};
  const levels::ShardKey key{store, from, options_.ranks};
  const bool is_newest = store == newest.key.version;
  FRESHET_ASSIGN(const group::Answer head, source.head(holder, options_.ranks));
  FRESHET_ASSIGN(const levels::ShardHeader header, levels::decode_shard_head(head.bytes()));
  if (header.key != key) return fail(Code::corrupt, format("rank {} answered with another shard's head", from));
  const std::vector<PayloadPart> parts = parts_of(newest, store, pieces, header.payload_bytes);
  struct UnderWay {
    const PayloadPart* part;
    std::unique_ptr<levels::ShardSource::Pending> read;
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
    if (is_newest || !folders_->has_copy(key)) return Bytes(gap);
    const levels::ByteRange range{part.offset, part.bytes};
    auto kept = folders_->read(key, std::span(&range, 1), levels::ShardKind::copy);
    if (kept) {
      gap = *std::move(kept);
    } else if (kept.error().code() == Code::out_of_space || levels::is_no_damage(kept.error())) {
      return fail(std::move(kept).error());  // No descriptor was free, say: the bytes are there, and must stay.
    }
    return Bytes(gap);
  };
  const auto next = [&]() -> Result<std::optional<Bytes>> {
    if (!told && written * 2 >= header.payload_bytes) {
      told = true;
      point("group_half", step);
    }
    constexpr std::size_t kUnderWay = 8;
    while (asked < parts.size() && under_way.size() < kUnderWay) {
      const PayloadPart& part = parts[asked++];
      if (!part.digests.empty()) {
        constexpr Duration kNap = std::chrono::milliseconds(50);
        for (Duration left = pace.before(part.bytes); left > Duration::zero(); left -= kNap) {
          if (group_->over()) return fail(*group_->over());
          std::this_thread::sleep_for(std::min(left, kNap));
        }
        under_way.push_back({&part, source.read(holder, options_.ranks, {{part.offset, part.bytes}})});
      } else {
        under_way.push_back({&part, nullptr});
      }
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
  const std::vector<std::byte> own_head(head.bytes().begin(), head.bytes().end());
  return folders_->write_streamed(own_head, key, levels::ShardKind::copy, !is_newest, next);
}

}  // namespace freshet
