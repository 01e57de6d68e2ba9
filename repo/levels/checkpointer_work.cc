// SPDX-License-Identifier: Apache-2.0
/// What the threads of a Checkpointer do behind the loop, and the memory that the loop waits for.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/log.h"
#include "repo/levels/checkpointer_impl.h"

namespace freshet {
namespace {

/// Shares that may be in memory at a time: one that is captured, one that waits, one that is written, one that is kept.
constexpr std::size_t kSharesMax = 4;
/// Small shares are captured faster than ranks speak with each other: of those there may be more.
constexpr std::uint64_t kSmallSharesBytes = std::uint64_t{64} << 20;
constexpr std::size_t kSmallSharesMax = 16;
/// So long a loop that does not wait for levels waits for a peer to say that it captured the versions before.
constexpr Duration kPeerPause = std::chrono::seconds(1);
constexpr Duration kLookAgain =
    std::chrono::seconds(1);  ///< A deadline, since a condition variable takes no Time::max().

}  // namespace

/// The memory of a version that needs none is free at once: the loop must not wait for records on a slow disk.
void Checkpointer::Impl::take_note(const LevelNote& note) {
  const auto at = versions_.find(note.version);
  if (at == versions_.end() || note.level > Level::local) return;
  if (note.level == Level::local) at->second.needs_share = false;
  if (note.level == Level::memory) {
    at->second.is_captured = note.kind == LevelNote::Kind::reached;
    at->second.needs_share = at->second.is_captured;
  }
  let_go_of_shares();
}

void Checkpointer::Impl::let_go_of_shares() {
  // In memory stay the newest that all captured, and what the folder does not have yet.
  const auto wanted = options_.keep.find(Level::memory);
  std::uint32_t keep = wanted == options_.keep.end() ? 1 : std::max(wanted->second, 1U);
  for (auto at = versions_.rbegin(); at != versions_.rend(); ++at) {
    VersionState& state = at->second;
    if (state.share == nullptr) continue;
    if (state.is_captured && keep > 0) {
      --keep;
      continue;
    }
    if (state.needs_share) continue;
    --state.share->users;
    state.share.reset();
  }
}

bool Checkpointer::Impl::is_open(const VersionState& state) const {
  return std::ranges::any_of(levels_, [&](Level level) {
    const auto at = state.levels.find(level);
    return at == state.levels.end() || at->second == LevelState::open;
  });
}

bool Checkpointer::Impl::may_take_share() const {
  if (options_.when_behind == levels::WhenBehind::skip) return true;
  return std::ranges::count_if(versions_, [&](const auto& entry) { return is_open(entry.second); }) <= 1;
}

bool Checkpointer::Impl::wait_in_loop(const std::function<bool()>& is_there, std::optional<Error>& why) {
  const bool waits = options_.when_behind == levels::WhenBehind::wait;
  const Time deadline = waits ? Time::max() : system_clock().now() + kPeerPause;
  for (;;) {
    const Time look = std::min(deadline, Interruption::next_look(system_clock().now() + kLookAgain));
    {
      const MutexLock lock(mutex_);
      do {
        if (is_over()) {
          why = over_ ? *over_ : Error(Code::cancelled, "the checkpointer is closed");
          return false;
        }
        if (is_there()) return true;
      } while (changed_.wait_until(mutex_, look));
      if (is_there()) return true;
    }
    if (Interruption::is_wanted()) {
      why = Error(Code::cancelled, "the wait for the levels was interrupted");
      return false;
    }
    if (look == deadline) return false;
  }
}

std::shared_ptr<Checkpointer::Impl::Share> Checkpointer::Impl::free_share(std::optional<Error>& why) {
  const std::uint64_t small = kSmallSharesBytes / std::max<std::uint64_t>(cut_->offsets.back(), 1);
  const auto kept = options_.keep.find(Level::memory);
  const std::size_t more = kept == options_.keep.end() ? 0 : std::max(kept->second, 1U) - 1;
  const std::size_t shares_max = std::clamp<std::size_t>(small, kSharesMax, kSmallSharesMax) + more;
  std::shared_ptr<Share> free;
  const auto take = [&]() FRESHET_REQUIRES(mutex_) {
    if (!may_take_share()) return false;
    const auto at = std::ranges::find(shares_, 0, [](const auto& share) { return share->users; });
    if (at == shares_.end()) return shares_.size() < shares_max;
    free = *at;
    free->users = 1;
    return true;
  };
  if (!wait_in_loop(take, why)) {
    if (!why) {
      why = Error(Code::out_of_space, "the levels are behind, and no memory is free: this step has no checkpoint");
    }
    return nullptr;
  }
  if (free != nullptr) return free;
  auto memory = levels::ShareMemory::allocate(cut_->offsets.back());
  if (!memory) {
    why = memory.error();
    return nullptr;
  }
  auto share = std::make_shared<Share>(*std::move(memory));
  share->users = 1;
  const MutexLock lock(mutex_);
  shares_.push_back(share);
  return share;
}

void Checkpointer::Impl::run_writer() {
  for (;;) {
    std::shared_ptr<Share> share;
    {
      const MutexLock lock(mutex_);
      while (!is_over() && to_write_.empty()) changed_.wait(mutex_);
      if (is_over()) return;
      const VersionNumber number = to_write_.front();
      to_write_.pop_front();
      VersionState& state = versions_.at(number);
      share = state.share;
      if (share == nullptr) continue;
      ++share->users;
      state.was_written = true;
    }
    const Version version = share->version;
    const std::uint64_t step = share->step;
    const Status written = write_local(*share);
    {
      const MutexLock lock(mutex_);
      --share->users;
      if (written) newest_stored_ = version;
      changed_.notify_all();
    }
    say(LevelNote::Kind::done, version, step, Level::local,
        written ? std::nullopt : std::optional<Error>(written.error()));
  }
}

Status Checkpointer::Impl::write_local(const Share& share) {
  FRESHET_TRY(folders_->write_table(*cut_->table));
  levels::ShardHeader header = header_of(*cut_, share, options_.model, host_);
  header.created_unix_ns = system_clock().unix_ns();
  Stored stored{.digests = share.digests};
  std::map<Version, std::uint32_t> known;
  for (std::uint32_t i = 0; i < header.versions.size(); ++i) known.emplace(header.versions[i], i);
  const auto index_of = [&](const Version& version) {
    const auto [at, is_new] = known.try_emplace(version, static_cast<std::uint32_t>(header.versions.size()));
    if (is_new) header.versions.push_back(version);
    return at->second;
  };
  static constexpr std::byte kPadding[levels::kPieceAlignment] = {};
  std::vector<Bytes> payload;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < cut_->pieces.size(); ++i) {
    if (stored_ && is_equal_piece(*cut_, i, share.digests, stored_->digests)) {
      stored.stores.push_back(stored_->stores[i]);
      stored.offsets.push_back(stored_->offsets[i]);
      header.records[i].store = index_of(stored_->stores[i]);
      header.records[i].offset = stored_->offsets[i];
      continue;
    }
    const std::uint64_t bytes = cut_->pieces[i].piece.bytes();
    stored.stores.push_back(share.version);
    stored.offsets.push_back(at);
    header.records[i].store = 0;
    header.records[i].offset = at;
    payload.push_back(Bytes(share.memory.data() + cut_->offsets[i], bytes));
    const std::uint64_t next = levels::aligned_to_piece(at + bytes);
    if (next > at + bytes) payload.push_back(Bytes(kPadding).first(next - at - bytes));
    at = next;
  }
  header.payload_bytes = at;
  FRESHET_TRY(
      folders_->write(encode_shard_head(header), header.key, payload, [&] { point("local_half", share.step); }));
  stored_ = std::move(stored);
  point("local_synced", share.step);
  return {};
}

/// Of the calling thread alone. Training goes before what only protects it: its threads get the processor first, and
/// their reads the disk. (DeepFreeze, section IV-A a.) The writer keeps the program's priority, since the loop's memory
/// is free again when the writer is done.
void Checkpointer::Impl::lower_own_priority() {
  constexpr int kNicer = 10;
  constexpr int kNicestOfAll = 19;
  constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS, which is a thread.
  constexpr int kClassShift = 13;
  constexpr int kIdle = 3;
  constexpr int kBestEffortLowest = 2 << kClassShift | 7;
  const int nice_now = ::getpriority(PRIO_PROCESS, 0);
  (void)::setpriority(PRIO_PROCESS, 0, std::min(nice_now + kNicer, kNicestOfAll));
  const long io_now = ::syscall(SYS_ioprio_get, kThisThread, 0);
  if (io_now >= 0 && io_now >> kClassShift != kIdle) (void)::syscall(SYS_ioprio_set, kThisThread, 0, kBestEffortLowest);
}

std::optional<Checkpointer::Impl::Due> Checkpointer::Impl::next_due(std::deque<Version> Impl::*queue) {
  const MutexLock lock(mutex_);
  std::deque<Version>& waiting = this->*queue;
  while (!is_over() && waiting.empty()) changed_.wait(mutex_);
  if (is_over()) return std::nullopt;
  const Version version = waiting.front();
  waiting.pop_front();
  return Due{.version = version, .step = versions_.at(version.number).step};
}

bool Checkpointer::Impl::has_ended() const {
  const MutexLock lock(mutex_);
  return is_over();
}

void Checkpointer::Impl::run_teller() {
  for (;;) {
    Told told;
    bool extend = false;
    {
      const MutexLock lock(mutex_);
      const auto promise_is_short = [&] {
        return !finished_ && !versions_.empty() && versions_.rbegin()->first + kNumbersAhead / 2 > promises_.number_max;
      };
      // What was said before the end is still told.
      while (!stopping_ && to_tell_.empty() && !promise_is_short()) changed_.wait(mutex_);
      if (stopping_) return;
      extend = promise_is_short();
      if (!to_tell_.empty()) told = std::move(to_tell_.front());
    }
    if (extend) promise_more();
    if (!told.note && told.lost.empty()) continue;
    tell(told);
    const MutexLock lock(mutex_);
    to_tell_.pop_front();
    changed_.notify_all();
  }
}

void Checkpointer::Impl::promise_more() {
  levels::Promises promises;
  {
    const MutexLock lock(mutex_);
    promises = promises_;
    promises.number_max = versions_.rbegin()->first + kNumbersAhead;
  }
  const Status written = folders_->write_promises(promises);
  const MutexLock lock(mutex_);
  if (written) {
    promises_.number_max = promises.number_max;
    promise_error_.reset();
    changed_.notify_all();
    return;
  }
  promise_error_ = written.error();
  changed_.notify_all();
  log_line(LogLevel::warning, format("checkpoints of {}: {}", options_.model, written.error().message()));
  // Numbers that are left are used up first; then begin() says so. Not tried again at once.
  changed_.wait_until(mutex_, system_clock().now() + std::chrono::milliseconds(200));
}

void Checkpointer::Impl::tell(const Told& told) {
  CheckpointEvent event;
  if (!told.note) {
    event.kind = CheckpointEvent::Kind::lost;
    event.peers = told.lost;
    event.error = told.error;
    if (options_.on_event) options_.on_event(event);
    return;
  }
  const LevelNote& note = *told.note;
  std::optional<Error> error = note.error;
  const bool reached = note.kind == LevelNote::Kind::reached;
  if (reached && note.level != Level::memory) {
    if (note.level == Level::external && options_.rank != 0) point("external_synced", note.step);
    levels::Promises promises;
    {
      const MutexLock lock(mutex_);
      promises = promises_;
    }
    VersionNumber& newest = promises.acknowledged[static_cast<std::size_t>(note.level)];
    newest = std::max(newest, note.version);
    const Status written = folders_->write_promises(promises);
    const MutexLock lock(mutex_);
    if (written) promises_.acknowledged = promises.acknowledged;
    // The version is safe there all the same; only that it should be missed is not recorded.
    if (!written)
      log_line(LogLevel::warning, format("checkpoints of {}: {}", options_.model, written.error().message()));
  }
  bool was_written = false;
  {
    const MutexLock lock(mutex_);
    const auto at = versions_.find(note.version);
    if (at == versions_.end() || at->second.levels[note.level] != LevelState::open) return;  // Told already.
    event.after = told.at - at->second.captured_at;
    was_written = at->second.was_written;
  }
  event.kind = reached ? CheckpointEvent::Kind::reached : CheckpointEvent::Kind::failed;
  event.version = note.version;
  event.step = note.step;
  event.level = note.level;
  event.error = error;
  if (options_.on_event) options_.on_event(event);
  settle(note, error);
  if (reached && (note.level == Level::local || note.level == Level::group)) clean_folder(note.step, false);
  // A shard that another rank lacks is of no use. Shards of earlier lives are removed only after a newer version is
  // complete at all ranks.
  if (!reached && note.level == Level::local && was_written) clean_folder(note.step, true);
}

/// Versions are numbered in step with their sequence.
Checkpointer::Impl::Version Checkpointer::Impl::version_of(VersionNumber number) const {
  Version version = named_;
  version.number = number;
  version.id.sequence = number - named_.number;
  return version;
}

void Checkpointer::Impl::keep_newest(std::set<Version>& kept, VersionNumber number, Level level) const {
  kept.insert(version_of(number));
  const auto wanted = options_.keep.find(level);
  const std::size_t keep = wanted == options_.keep.end() ? 2 : std::max(wanted->second, 1U);
  while (kept.size() > keep) kept.erase(std::ranges::min_element(kept, {}, &Version::number));
}

void Checkpointer::Impl::settle(const LevelNote& note, const std::optional<Error>& error) {
  const MutexLock lock(mutex_);
  VersionState& state = versions_.at(note.version);
  state.levels[note.level] = note.kind == LevelNote::Kind::reached ? LevelState::reached : LevelState::failed;
  if (error && !state.error) state.error = error;
  if (note.kind == LevelNote::Kind::reached && note.level == Level::local) {
    keep_newest(kept_, note.version, Level::local);
  }
  if (note.kind == LevelNote::Kind::reached && note.level == Level::group) {
    keep_newest(kept_copies_, note.version, Level::group);
  }
  changed_.notify_all();
}

/// A folder that no other rank has is cleaned by its rank; where several have one, each cleans up after itself, and
/// after ranks that are no more.
bool Checkpointer::Impl::is_to_clean(const levels::HeldShard& shard) const {
  if (!shares_folder_) return true;
  const bool has_partners = options_.group.kind == levels::GroupScheme::Kind::partner;
  if (shard.kind == levels::ShardKind::copy && has_partners && shard.key.ranks == options_.ranks) {
    return levels::place_in_ring(groups_, shard.key.rank).copy_is_at == options_.rank;
  }
  return shard.key.rank % options_.ranks == options_.rank;
}

void Checkpointer::Impl::clean_folder(std::uint64_t step, bool only_this_life) {
  using levels::HeldShard;
  using levels::ShardKind;
  const MutexLock folder_lock(folder_mutex_);
  std::set<Version> kept;
  {
    // The writer's next shard inherits from this one, or from what it writes from now on.
    const MutexLock lock(mutex_);
    if (newest_stored_) kept.insert(*newest_stored_);
  }
  // First what is there, then what of it stays: the writer and the copier go on meanwhile, and what they wrote before
  // the scan was begun before it.
  bool unsure = false;
  std::vector<HeldShard> here;
  for (HeldShard& shard : folders_->scan(nullptr, &unsure)) {
    if (shard.folder == folders_->first() && is_to_clean(shard)) here.push_back(std::move(shard));
  }
  if (unsure) return;  // What could not be looked at may need what is here.
  point("cleaning", step);
  std::set<Version> kept_copies;
  {
    const MutexLock lock(mutex_);
    kept.insert(kept_.begin(), kept_.end());
    kept_copies = kept_copies_;
    for (const auto& [number, state] : versions_) {
      if (!is_open(state)) continue;
      kept.insert(version_of(number));
      kept_copies.insert(version_of(number));
    }
  }
  // What partners copy next is compared with what they have: the shards stay as long as a copy of them is kept.
  kept.insert(kept_copies.begin(), kept_copies.end());
  const auto is_kept = [&](const HeldShard& shard) {
    if (only_this_life && shard.key.version != version_of(shard.key.version.number)) return true;
    if (shard.kind != ShardKind::own && copy_needs_.contains(shard.key.version)) return true;
    return !shard.bytes_only && (shard.kind == ShardKind::own ? kept : kept_copies).contains(shard.key.version);
  };
  std::map<std::pair<levels::ShardKey, ShardKind>, std::vector<levels::ByteRange>> needed;
  for (const HeldShard& shard : here) {
    if (!is_kept(shard) || shard.bytes_only || shard.needs.empty()) continue;
    // A shard of an earlier life needs no bytes of this one.
    if (only_this_life && shard.key.version != version_of(shard.key.version.number)) continue;
    const bool is_parity = shard.kind == ShardKind::parity;
    const auto bytes = folders_->read_head(shard.key, shard.kind);
    const auto head = bytes ? levels::decode_shard_head(*bytes) : fail(bytes.error());
    if (!head) return;  // It cannot be told what may go: nothing does.
    const auto need = [&](std::size_t record, std::uint64_t count) {
      const Version& store = head->versions[head->records[record].store];
      needed[{{store, shard.key.rank, shard.key.ranks}, shard.kind}].push_back({head->records[record].offset, count});
    };
    if (is_parity) {
      const std::vector<levels::ByteRange> blocks = head->parity->blocks();
      for (std::size_t i = 0; i < blocks.size(); ++i) need(i, blocks[i].bytes);
      continue;
    }
    const auto table = folders_->read_table(head->tensors);
    const auto tensors = table ? levels::TensorTable::decode(*table, head->tensors) : fail(table.error());
    if (!tensors || !check_table(**tensors, shard.key.ranks)) return;
    const auto pieces = stored_pieces((*tensors)->tensors, shard.key.ranks, shard.key.rank);
    if (!check_records(*head, pieces)) return;
    for (std::size_t i = 0; i < pieces.size(); ++i) need(i, pieces[i].piece.bytes());
  }
  for (const HeldShard& shard : here) {
    if (is_kept(shard)) continue;
    const auto at = needed.find({shard.key, shard.kind});
    Status done;
    if (at == needed.end()) {
      done = folders_->remove(shard.key, shard.kind);
    } else {
      std::ranges::sort(at->second, {}, &levels::ByteRange::offset);
      done = folders_->demote(shard.key, at->second, shard.kind);
    }
    if (!done) log_line(LogLevel::warning, format("checkpoints of {}: {}", options_.model, done.error().message()));
  }
}

}  // namespace freshet
