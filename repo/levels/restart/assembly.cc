// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/assembly.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>
#include <tuple>

#include "core/base/format.h"
#include "repo/levels/restart/question.h"

namespace freshet::levels {

namespace {

Level level_of(const Holder& holder) {
  if (holder.in_memory) return Level::memory;
  if (holder.kind == ShardKind::stored) return Level::external;
  return holder.kind == ShardKind::copy ? Level::group : Level::local;
}

}  // namespace

/// One chunk, and who wants something of it.
struct ShardedVersion::Task {
  std::uint32_t piece = 0;  ///< Of the shard's.
  std::uint64_t begin = 0;  ///< Of the chunk, among the piece's bytes.
  std::uint64_t bytes = 0;
  std::optional<Digest> digest;
  std::uint32_t wanted = 0;

  bool is_whole(::freshet::Bytes read) const { return !digest || digest_of(read) == *digest; }
};

/// Chunks of one shard that are read at once.
struct ShardedVersion::Batch {
  std::uint32_t rank = 0;
  Version store;
  std::uint64_t bytes = 0;
  std::vector<Task> tasks;
  std::vector<Holder> holders;  ///< In the order in which they are tried.
};

Result<ShardHeader> read_head(ShardSource& source, const Holder& holder, std::uint32_t ranks) {
  FRESHET_ASSIGN(const group::Answer bytes, source.head(holder, ranks));
  FRESHET_ASSIGN(ShardHeader header, decode_shard_head(bytes.bytes()));
  if (header.key != holder.key(ranks) || header.parity.has_value() != (holder.kind == ShardKind::parity)) {
    return fail(Code::corrupt, format("rank {} answered with another shard's head", holder.holder));
  }
  return header;
}

BadShard bad_at(const Holder& holder, std::string_view why) {
  const VersionNumber number = holder.version.number;
  if (holder.kind == ShardKind::stored) return {holder, format("version {} in the repository: {}", number, why)};
  return {holder, format("version {}, {} of rank {} at rank {}: {}", number,
                         holder.kind == ShardKind::parity ? "parity" : "shard", holder.shard_rank, holder.holder, why)};
}

ShardSource::Bytes ShardSource::answer(Result<std::vector<std::byte>> bytes) {
  if (!bytes) return fail(std::move(bytes).error());
  return group::Answer(*std::move(bytes));
}

std::unique_ptr<ShardSource::Pending> ShardSource::done(Bytes bytes) {
  struct Done final : Pending {
    explicit Done(Bytes result) : result_(std::move(result)) {}
    Bytes wait() override { return std::move(result_); }
    Bytes result_;
  };
  return std::make_unique<Done>(std::move(bytes));
}

ShardSource::Bytes FolderSource::head(const Holder& holder, std::uint32_t ranks) {
  return answer(folders_.read_head(holder.key(ranks), holder.kind));
}

ShardSource::Bytes FolderSource::table(std::uint32_t, const Digest& digest) {
  return answer(folders_.read_table(digest));
}

std::unique_ptr<ShardSource::Pending> FolderSource::read(const Holder& holder, std::uint32_t ranks,
                                                         std::vector<ByteRange> ranges) {
  return done(answer(folders_.read(holder.key(ranks), ranges, holder.kind)));
}

bool FolderSource::read_into(const Holder& holder, std::uint32_t ranks, std::span<const PlacedRange> ranges) {
  return static_cast<bool>(folders_.read_into(holder.key(ranks), ranges, holder.kind));
}

Status Pace::wait_for(std::uint64_t bytes, const std::function<bool()>& stop) {
  constexpr Duration kNap = std::chrono::milliseconds(50);
  if (bytes_per_second_ == 0) return {};
  const Time now = clock_.now();
  free_at_ = std::max(free_at_, now);
  Duration left = free_at_ - now;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  free_at_ += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  for (; left > Duration::zero(); left -= kNap) {
    if (stop && stop()) return fail(Code::cancelled, "stopped");
    std::this_thread::sleep_for(std::min(left, kNap));
  }
  return {};
}

Result<std::shared_ptr<const TensorTable>> find_table(ShardSource& source, const RestartPlan& plan, std::uint32_t first,
                                                      const Digest& digest) {
  std::vector<std::uint32_t> asked = {first};
  for (const Holder& holder : plan.holders) {
    if (std::ranges::find(asked, holder.holder) == asked.end()) asked.push_back(holder.holder);
  }
  std::optional<Error> why;
  for (const std::uint32_t holder : asked) {
    const auto take = [&]() -> Result<std::shared_ptr<const TensorTable>> {
      FRESHET_ASSIGN(const group::Answer bytes, source.table(holder, digest));
      FRESHET_ASSIGN(auto table, TensorTable::decode(bytes.bytes(), digest));
      FRESHET_TRY(check_table(*table, plan.ranks));
      return table;
    };
    auto table = take();
    if (table || is_no_damage(table.error())) return table;
    if (!why) why = table.error();
  }
  return fail(*why);
}

Result<ShardedVersion> ShardedVersion::open(ShardSource& source, const RestartPlan& plan, std::uint32_t self,
                                            std::vector<BadShard>& bad) {
  ShardedVersion opened;
  opened.plan_ = &plan;
  for (const Holder& holder : plan.holders) {
    opened.holders_[{holder.version, holder.shard_rank}].push_back(holder);
  }
  for (auto& [which, holders] : opened.holders_) {
    // Memory first, then this process's own folder; the rest so that not all ask the same one.
    std::ranges::sort(holders, {}, [&](const Holder& holder) {
      const std::size_t turn = (holder.holder + plan.ranks * 4096 - self) % (plan.ranks * 4096 + 1);
      return std::tuple(!holder.in_memory, holder.holder != self, holder.kind, turn);
    });
  }
  bool whole = true;
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    bool found = false;
    for (const Holder& holder : opened.holders_of(plan.version, rank)) {
      const auto take = [&]() -> Result<ShardHeader> {
        FRESHET_ASSIGN(ShardHeader header, read_head(source, holder, plan.ranks));
        if (opened.table_ == nullptr) {
          FRESHET_ASSIGN(opened.table_, find_table(source, plan, holder.holder, header.tensors));
        }
        if (header.tensors != opened.table_->digest)
          return fail(Code::corrupt, "its tensors differ from those of rank 0's shard");
        FRESHET_TRY(check_records(header, stored_pieces(opened.table_->tensors, plan.ranks, rank), holder.kind));
        return header;
      };
      Result<ShardHeader> header = take();
      if (header) {
        opened.heads_.push_back(*std::move(header));
        found = true;
        break;
      }
      if (is_no_damage(header.error())) return fail(std::move(header).error());
      bad.push_back(bad_at(holder, header.error().message()));
    }
    whole = whole && found;
    if (!found) break;
  }
  if (!whole) return fail(Code::corrupt, bad.empty() ? "a shard has no holder" : bad.back().why);
  for (std::uint32_t rank = 0; plan.each_has_its_own && rank < plan.ranks; ++rank) {
    for (const Version& needed : opened.heads_[rank].needs()) opened.holders_[{needed, rank}] = {{needed, rank, rank}};
  }
  std::vector<std::optional<Version>> writers(opened.table_->tensors.size());
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    opened.cuts_.emplace_back(opened.table_, plan.ranks, rank);
    add_writers(opened.heads_[rank], opened.cuts_.back().pieces, writers);
  }
  for (const std::optional<Version>& writer : writers) opened.writers_.push_back(writer.value_or(plan.version));
  return opened;
}

const std::vector<Holder>& ShardedVersion::holders_of(const Version& version, std::uint32_t rank) const {
  static const std::vector<Holder> none;
  const auto at = holders_.find({version, rank});
  return at == holders_.end() ? none : at->second;
}

std::vector<ShardedVersion::Batch> ShardedVersion::plan_batches(std::span<const WantedPiece> wanted) const {
  std::vector<Batch> batches;
  for (std::uint32_t rank = 0; rank < heads_.size(); ++rank) {
    const ShardHeader& head = heads_[rank];
    const std::vector<StoredPiece>& pieces = cuts_[rank].pieces;
    std::map<std::uint32_t, Batch> open;  // By store.
    const auto close = [&](Batch& batch) {
      if (!batch.tasks.empty()) batches.push_back(std::move(batch));
    };
    for (std::uint32_t w = 0; w < wanted.size(); ++w) {
      const auto at = std::ranges::lower_bound(pieces, wanted[w].piece.tensor, {},
                                               [](const StoredPiece& stored) { return stored.piece.tensor; });
      if (at == pieces.end() || at->piece.tensor != wanted[w].piece.tensor) continue;
      const auto i = static_cast<std::uint32_t>(at - pieces.begin());
      const PieceRecord& record = head.records[i];
      for (std::uint64_t begin = 0; begin < at->piece.bytes(); begin += kChunkBytes) {
        const std::uint64_t bytes = std::min(kChunkBytes, at->piece.bytes() - begin);
        bool overlaps = false;
        for_each_common_run(at->piece, begin, begin + bytes, wanted[w].piece,
                            [&](std::uint64_t, std::uint64_t, std::uint64_t) { overlaps = true; });
        if (!overlaps) continue;
        Batch& batch = open[record.store];
        if (batch.bytes + bytes > kReadBytes || batch.tasks.size() >= kRangesMax / 2) {
          close(batch);
          batch = Batch();
        }
        if (batch.tasks.empty()) {
          batch.rank = rank;
          batch.store = head.versions[record.store];
          // A rank's memory has all of the share, its files what each stores.
          for (const Holder& holder : holders_of(plan_->version, rank)) {
            if (holder.in_memory) batch.holders.push_back(holder);
          }
          for (const Holder& holder : holders_of(batch.store, rank)) {
            if (!holder.in_memory) batch.holders.push_back(holder);
          }
        }
        batch.bytes += bytes;
        Task& task =
            batch.tasks.emplace_back(Task{.piece = i, .begin = begin, .bytes = bytes, .digest = {}, .wanted = w});
        if (!head.digests.empty()) task.digest = head.digests[cuts_[rank].first_chunks[i] + begin / kChunkBytes];
      }
    }
    for (auto& [store, batch] : open) close(batch);
  }
  return batches;
}

std::vector<ByteRange> ShardedVersion::ranges_of(const Batch& batch, const Holder& holder) const {
  std::vector<ByteRange> ranges;
  for (const Task& task : batch.tasks) {
    const std::uint64_t piece =
        holder.in_memory ? cuts_[batch.rank].offsets[task.piece] : heads_[batch.rank].records[task.piece].offset;
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == piece + task.begin) {
      ranges.back().bytes += task.bytes;
    } else {
      ranges.push_back({.offset = piece + task.begin, .bytes = task.bytes});
    }
  }
  return ranges;
}

bool ShardedVersion::take(const Batch& batch, ::freshet::Bytes bytes, std::span<const WantedPiece> wanted) const {
  if (bytes.size() != batch.bytes) return false;
  ::freshet::Bytes left = bytes;
  for (const Task& task : batch.tasks) {
    if (!task.is_whole(left.first(task.bytes))) return false;
    left = left.subspan(task.bytes);
  }
  left = bytes;
  for (const Task& task : batch.tasks) {
    const WantedPiece& into = wanted[task.wanted];
    for_each_common_run(cuts_[batch.rank].pieces[task.piece].piece, task.begin, task.begin + task.bytes, into.piece,
                        [&](std::uint64_t from, std::uint64_t to, std::uint64_t count) {
                          std::memcpy(into.out.data() + to, left.data() + (from - task.begin), count);
                        });
    left = left.subspan(task.bytes);
  }
  return true;
}

/// Without a copy in between, where each chunk is one run of what is wanted, and this process's own file has it.
bool ShardedVersion::take_in_place(ShardSource& source, const Batch& batch, const Holder& holder,
                                   std::span<const WantedPiece> wanted) const {
  if (holder.in_memory) return false;
  std::vector<PlacedRange> ranges;
  for (const Task& task : batch.tasks) {
    MutableBytes place;
    for_each_common_run(cuts_[batch.rank].pieces[task.piece].piece, task.begin, task.begin + task.bytes,
                        wanted[task.wanted].piece, [&](std::uint64_t, std::uint64_t to, std::uint64_t count) {
                          if (count == task.bytes) place = wanted[task.wanted].out.subspan(to, count);
                        });
    if (place.empty()) return false;
    const std::uint64_t offset = heads_[batch.rank].records[task.piece].offset + task.begin;
    const bool goes_on = !ranges.empty() && ranges.back().offset + ranges.back().out.size() == offset &&
                         ranges.back().out.data() + ranges.back().out.size() == place.data();
    if (goes_on) {
      ranges.back().out = MutableBytes(ranges.back().out.data(), ranges.back().out.size() + place.size());
    } else {
      ranges.push_back({.offset = offset, .out = place});
    }
  }
  if (!source.read_into(holder, plan_->ranks, ranges)) return false;
  std::size_t task = 0;
  for (const PlacedRange& range : ranges) {
    for (MutableBytes left = range.out; !left.empty(); left = left.subspan(batch.tasks[task++].bytes)) {
      if (!batch.tasks[task].is_whole(left.first(batch.tasks[task].bytes))) return false;
    }
  }
  return true;
}

Result<ShardedVersion::Fetched> ShardedVersion::fetch(ShardSource& source, std::span<const WantedPiece> wanted,
                                                      std::vector<BadShard>& bad, Pace* pace,
                                                      const std::function<bool()>& stop, std::size_t askers) const {
  Fetched fetched;
  const std::size_t under_way_max = group::questions_at_a_time(askers);
  struct UnderWay {
    Batch batch;
    std::size_t holder = 0;
    std::unique_ptr<ShardSource::Pending> read;
  };
  std::deque<UnderWay> under_way;
  std::set<Holder> useless;
  const auto begin = [&](Batch batch, std::size_t holder) -> Status {
    while (holder < batch.holders.size() && useless.contains(batch.holders[holder])) ++holder;
    if (holder == batch.holders.size()) {
      // Who has the head says that bytes are somewhere, and nobody has them: it is of no use.
      for (const Holder& of_head : holders_of(plan_->version, batch.rank)) {
        if (!batch.holders.empty() || !useless.insert(of_head).second) continue;
        bad.push_back({of_head, format("version {}: the shard of rank {} needs bytes of version {}'s, which nobody has",
                                       plan_->version.number, batch.rank, batch.store.number)});
      }
      return fail(Code::corrupt,
                  format("version {}: no whole shard of rank {} is left", batch.store.number, batch.rank));
    }
    std::vector<ByteRange> ranges = ranges_of(batch, batch.holders[holder]);
    auto read = source.read(batch.holders[holder], plan_->ranks, std::move(ranges));
    under_way.push_back({std::move(batch), holder, std::move(read)});
    return {};
  };
  Status status;
  const auto count = [&fetched](const Batch& batch, const Holder& holder) {
    fetched.bytes += batch.bytes;
    fetched.from.insert(level_of(holder));
    if (holder.kind == ShardKind::copy) fetched.copied_bytes += batch.bytes;
  };
  const auto finish_first = [&]() -> Status {
    UnderWay first = std::move(under_way.front());
    under_way.pop_front();
    const Holder& holder = first.batch.holders[first.holder];
    const ShardSource::Bytes bytes = first.read->wait();
    if (bytes && take(first.batch, bytes->bytes(), wanted)) {
      count(first.batch, holder);
      return {};
    }
    if (!bytes && is_no_damage(bytes.error())) return fail(bytes.error());
    if (useless.insert(holder).second) {
      bad.push_back(bad_at(holder, bytes ? "its bytes differ from the written ones" : bytes.error().message()));
    }
    return begin(std::move(first.batch), first.holder + 1);
  };
  for (Batch& batch : plan_batches(wanted)) {
    if (stop && stop()) return fail(Code::cancelled, "stopped");
    if (pace != nullptr) FRESHET_TRY(pace->wait_for(batch.bytes, stop));
    const auto first = std::ranges::find_if(batch.holders, [&](const Holder& one) { return !useless.contains(one); });
    if (first != batch.holders.end() && take_in_place(source, batch, *first, wanted)) {
      count(batch, *first);
      continue;
    }
    FRESHET_TRY(begin(std::move(batch), 0));
    while (under_way.size() >= under_way_max) FRESHET_TRY(finish_first());
  }
  while (!under_way.empty()) FRESHET_TRY(finish_first());
  return fetched;
}

}  // namespace freshet::levels
