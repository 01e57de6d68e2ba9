// SPDX-License-Identifier: Apache-2.0
/// How a Checkpointer goes on from a version: plans are made at rank 0, tried by all, and made anew without what turned
/// out damaged, until one holds.

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/format.h"
#include "core/base/log.h"
#include "repo/levels/checkpointer_impl.h"
#include "repo/levels/parity/shard_rebuild.h"
#include "repo/levels/restart/names.h"

namespace freshet {
namespace {

/// A restart reads everything: it waits for the slowest disk, however patient the job is otherwise. A dead peer ends it
/// at once.
constexpr Duration kRestartPatience = std::chrono::hours(1);

std::uint64_t now_as_incarnation() { return static_cast<std::uint64_t>(system_clock().unix_ns()); }

}  // namespace

levels::Inventory Checkpointer::Impl::inventory() const {
  levels::Inventory inventory;
  for (const levels::HeldShard& shard : folders_->scan()) {
    inventory.held.push_back({.key = shard.key,
                              .step = shard.step,
                              .bytes_only = shard.bytes_only,
                              .kind = shard.kind,
                              .needs = shard.needs,
                              .members = shard.members,
                              .losses = shard.losses});
  }
  if (const auto promises = folders_->promises()) {
    inventory.number_max = promises->number_max;
    inventory.incarnation_max = promises->incarnation_max;
    inventory.acknowledged = promises->acknowledged;
  } else {
    inventory.error = promises.error();
  }
  const MutexLock lock(mutex_);
  for (const auto& [number, state] : versions_) {
    if (state.share == nullptr || !state.is_captured) continue;
    inventory.held.push_back({.key = {.version = state.share->version, .rank = options_.rank, .ranks = options_.ranks},
                              .step = state.step,
                              .in_memory = true,
                              .needs = {},
                              .members = {}});
  }
  return inventory;
}

Result<levels::RestartPlan> Checkpointer::Impl::first_plan(std::vector<std::vector<std::byte>> parts,
                                                           levels::RestartChoice choice) {
  std::vector<levels::Inventory> inventories;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    FRESHET_ASSIGN(levels::Inventory inventory, levels::decode_inventory(parts[rank]));
    if (inventory.error) return fail(Error(*inventory.error).with_context(format("rank {}", rank)));
    inventories.push_back(std::move(inventory));
  }
  std::vector<levels::StoredVersion> stored;
  std::vector<std::string> damaged;
  if (external_damage_) damaged.push_back(external_damage_->message());
  if (external_ != nullptr) {
    auto there = external_->versions(&damaged);
    if (!there && there.error().code() != Code::corrupt) return fail(there.error());
    if (there) stored = *std::move(there);
    if (!there) damaged.push_back(Error(there.error()).with_context("the repository is damaged").message());
  }
  planner_.emplace(std::move(inventories), std::move(stored), choice);
  for (std::string& why : damaged) {
    log_line(LogLevel::warning, format("checkpoints of {}: {}", options_.model, why));
    planner_->pass_over_repository(std::move(why));
  }
  return planner_->next();
}

Result<levels::RestartPlan> Checkpointer::Impl::next_plan(std::vector<std::vector<std::byte>> parts,
                                                          levels::RestartPlan tried) {
  bool again = false;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    FRESHET_ASSIGN(const levels::RestartOutcome outcome, levels::decode_outcome(parts[rank]));
    if (outcome.error) return fail(Error(*outcome.error).with_context(format("rank {}", rank)));
    if (outcome.bad.empty()) continue;
    planner_->cross_off(tried.version, outcome.bad, tried.source);
    again = true;
  }
  if (tried.source == levels::RestartPlan::Source::rebuild) {
    if (!again) planner_->add_rebuilt(tried.version, tried.rebuilds);
    again = true;
  }
  if (again) return planner_->next();
  tried.final = true;
  tried.run = tried.version.id.run;
  if (tried.source == levels::RestartPlan::Source::nothing) {
    tried.run = {.high = random_u64(env_), .low = random_u64(env_)};
  }
  tried.incarnation = std::max(planner_->incarnation_max() + 1, now_as_incarnation());
  tried.next_number = planner_->number_max() + 1;
  tried.group_number = planner_->acknowledged_max(Level::group);
  return tried;
}

Result<std::optional<Checkpointer::Restored>> Checkpointer::Impl::restore(std::span<const MutableBytes> held,
                                                                          levels::RestartChoice choice) {
  if (capturing_ != nullptr) return fail(Code::failed_precondition, "a version is being captured");
  const auto check = [&]() -> Status {
    if (held.size() != own_.size()) return refuse(format("{} tensors came, there are {}", held.size(), own_.size()));
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (held[i].size() == own_[i].bytes) continue;
      return refuse(
          format("tensor {}: {} bytes came, this rank holds {}", tensors_[i].spec.name, held[i].size(), own_[i].bytes));
    }
    return {};
  };
  filled_.clear();
  allows_left_ = choice.allow_left;
  levels::Inventory brought = inventory();
  if (Status checked = check(); !checked) brought.error = checked.error();
  const auto decide_first = [&](std::vector<std::vector<std::byte>> parts) -> Result<std::vector<std::byte>> {
    FRESHET_ASSIGN(const levels::RestartPlan plan, first_plan(std::move(parts), choice));
    return encode(plan);
  };
  FRESHET_ASSIGN(std::vector<std::byte> decision, group_->agree(encode(brought), decide_first, kRestartPatience));
  for (;;) {
    FRESHET_ASSIGN(const levels::RestartPlan plan, levels::decode_plan(decision));
    Restored restored{.version = {options_.model, plan.version.number}, .step = plan.step, .notes = plan.notes};
    const levels::RestartOutcome outcome = carry_out(plan, held, restored);
    const auto decide_next = [&](std::vector<std::vector<std::byte>> parts) -> Result<std::vector<std::byte>> {
      FRESHET_ASSIGN(const levels::RestartPlan next, next_plan(std::move(parts), plan));
      return encode(next);
    };
    FRESHET_ASSIGN(decision, group_->agree(encode(outcome), decide_next, kRestartPatience));
    FRESHET_ASSIGN(const levels::RestartPlan decided, levels::decode_plan(decision));
    if (!decided.final) continue;
    const bool anew = decided.source == levels::RestartPlan::Source::nothing;
    if (anew) {
      baseline_.known.assign(cut_->pieces.size(), false);
      baseline_.digests.assign(cut_->first_chunks.back(), Digest());
      baseline_.writers.assign(cut_->pieces.size(), Version());
    }
    if (!restored_) {
      named_ = {.id = {.run = decided.run, .incarnation = decided.incarnation}, .number = decided.next_number - 1};
      next_number_ = decided.next_number;
      if (decided.source == levels::RestartPlan::Source::shards) set_stored(decided);
      levels::Promises promises;
      promises.number_max = decided.next_number - 1 + kNumbersAhead;
      promises.incarnation_max = decided.incarnation;
      // Beginning anew on purpose, nothing that was acknowledged is missed any more.
      if (!anew || choice.same_history) {
        FRESHET_ASSIGN(const levels::Promises earlier, folders_->promises());
        promises.acknowledged = earlier.acknowledged;
      }
      FRESHET_TRY(folders_->write_promises(promises));
      const MutexLock lock(mutex_);
      promises_ = promises;
      if (decided.source == levels::RestartPlan::Source::shards) {
        kept_.insert(decided.version);
        kept_copies_.insert(decided.version);
      }
      // What the groups have stays until they have a newer one, also where something newer was restored from elsewhere.
      const std::vector<levels::HeldShard> here = folders_->scan();
      for (const levels::HeldShard& shard : here) {
        if (shard.key.version.number == decided.group_number) kept_copies_.insert(shard.key.version);
        const bool is_version = choice.same_history && !shard.bytes_only && shard.kind == levels::ShardKind::own;
        if (is_version) kept_.insert(shard.key.version);
      }
    }
    restored_ = true;
    if (anew) return std::optional<Restored>();
    return std::optional<Restored>(std::move(restored));
  }
}

levels::RestartOutcome Checkpointer::Impl::carry_out(const levels::RestartPlan& plan,
                                                     std::span<const MutableBytes> held, Restored& restored) {
  levels::RestartOutcome outcome;
  Status done;
  if (plan.source == levels::RestartPlan::Source::shards) {
    done = restore_from_shards(plan, held, restored, outcome.bad);
  } else if (plan.source == levels::RestartPlan::Source::repository) {
    done = restore_from_repository(plan, held, restored, outcome.bad);
  } else if (plan.source == levels::RestartPlan::Source::rebuild) {
    done = rebuild_shards(plan, outcome.bad);
  } else if (!filled_.empty()) {
    const auto& [tensor, version] = *filled_.begin();
    done =
        fail(Code::failed_precondition,
             format("no version of {} can be restored, and the memory of tensor {} has bytes of version {}, which is "
                    "damaged: start the job again, and choose to begin anew",
                    options_.model, cut_->table->tensors[own_[tensor].whole].spec.name, version));
  }
  // Who does not answer is not damaged: the restart ends, and may be tried again.
  if (!done && levels::is_no_damage(done.error())) outcome.bad.clear();
  if (!done && outcome.bad.empty()) outcome.error = done.error();
  return outcome;
}

Result<std::vector<levels::WantedPiece>> Checkpointer::Impl::wanted_of(const levels::TensorTable& table,
                                                                       std::span<const MutableBytes> held,
                                                                       Restored& restored,
                                                                       std::vector<std::int64_t>& found) {
  const std::string which = format("{}@{}", options_.model, restored.version.number);
  if (!allows_left_) FRESHET_TRY(levels::check_not_renamed(which, table, *cut_->table));
  std::unordered_map<std::string_view, std::uint32_t> named;
  for (std::uint32_t i = 0; i < table.tensors.size(); ++i) named.emplace(table.tensors[i].spec.name, i);
  std::unordered_set<std::string_view> ours;
  for (const LaidTensor& mine : cut_->table->tensors) ours.insert(mine.spec.name);
  for (const LaidTensor& theirs : table.tensors) {
    if (!ours.contains(theirs.spec.name)) restored.left.push_back(theirs.spec.name);
  }
  std::vector<levels::WantedPiece> wanted;
  found.assign(own_.size(), -1);
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const LaidTensor& mine = cut_->table->tensors[own_[i].whole];
    const auto at = named.find(mine.spec.name);
    if (at == named.end()) {
      if (const auto filled = filled_.find(i); filled != filled_.end()) {
        return fail(
            Code::failed_precondition,
            format("{}@{} lacks tensor {}, and its memory may have bytes of version {}, which is damaged: start "
                   "the job again, and choose version {} by its number",
                   options_.model, restored.version.number, mine.spec.name, filled->second, restored.version.number));
      }
      restored.fresh.push_back(mine.spec.name);
      continue;
    }
    const TensorSpec& theirs = table.tensors[at->second].spec;
    if (theirs.dtype != mine.spec.dtype || theirs.shape != mine.spec.shape) {
      return fail(Code::failed_precondition,
                  format("tensor {} is {} in {}@{}, and {} here", mine.spec.name, describe(theirs.dtype, theirs.shape),
                         options_.model, restored.version.number, describe(mine.spec.dtype, mine.spec.shape)));
    }
    found[i] = at->second;
    Piece piece = held_piece(mine, at->second, options_.ranks, options_.rank);
    if (piece.bytes() == 0) continue;
    wanted.push_back({.piece = piece, .out = held[i]});
    filled_[i] = restored.version.number;
  }
  return wanted;
}

Status Checkpointer::Impl::restore_from_shards(const levels::RestartPlan& plan, std::span<const MutableBytes> held,
                                               Restored& restored, std::vector<levels::BadShard>& bad) {
  GroupSource source(*group_, kRestartPatience, *folders_, options_.rank);
  FRESHET_ASSIGN(const levels::ShardedVersion version, levels::ShardedVersion::open(source, plan, options_.rank, bad));
  std::vector<std::int64_t> found;
  FRESHET_ASSIGN(const std::vector<levels::WantedPiece> wanted, wanted_of(version.tensors(), held, restored, found));
  Result<levels::ShardedVersion::Fetched> fetched = version.fetch(source, wanted, bad, nullptr, {}, options_.ranks);
  if (!fetched) return fail(std::move(fetched).error());
  point("restoring", plan.step);
  restored.from = std::move(fetched->from);
  restored.rebuilt_bytes = fetched->copied_bytes;
  if (plan.ranks == options_.ranks && version.tensors().digest == cut_->table->digest) {
    // The cut is the same, so each chunk of this rank's pieces was proved against the digest that is the baseline's.
    set_baseline(version.head(options_.rank).digests, found, version.writers());
  } else {
    set_baseline(digests_of(held, found), found, version.writers());
  }
  return {};
}

/// The rank that this one asks for what the repository has: itself, where it can open the repository.
group::Rank Checkpointer::Impl::open_to_read() {
  if (options_.rank == 0 || !options_.external_is_shared) return 0;
  auto repository = options_.external();
  if (!repository) {
    log_line(LogLevel::warning, format("checkpoints of {}: rank {} restores through rank 0: {}", options_.model,
                                       options_.rank, repository.error().message()));
    return 0;
  }
  to_read_ = std::make_unique<levels::ExternalLevel>(*std::move(repository), options_.model);
  return options_.rank;
}

Status Checkpointer::Impl::restore_from_repository(const levels::RestartPlan& plan, std::span<const MutableBytes> held,
                                                   Restored& restored, std::vector<levels::BadShard>& bad) {
  using Kind = levels::Question::Kind;
  const group::Rank reader = open_to_read();
  struct Closing {  // Before any other rank asks this one.
    ~Closing() { repository.reset(); }
    std::unique_ptr<levels::ExternalLevel>& repository;
  } const closing{to_read_};
  // Whatever cannot be read there, another version may have.
  const auto pass_over = [&](const Error& error) -> Status {
    if (group_->over() || levels::is_no_damage(error)) return fail(error);
    bad.push_back({levels::Holder{.version = plan.version},
                   format("version {} in the repository: {}", plan.version.number, error.message())});
    return fail(error);
  };
  const levels::ShardKey key{.version = plan.version, .rank = 0, .ranks = 1};
  const Result<group::Answer> head =
      group_->ask(reader, encode(levels::Question{.kind = Kind::stored_head, .key = key})).wait(kRestartPatience);
  if (!head) return pass_over(head.error());
  FRESHET_ASSIGN(const levels::ShardHeader header, levels::decode_shard_head(head->bytes()));
  const Result<group::Answer> encoded =
      group_->ask(reader, encode(levels::Question{.kind = Kind::table, .table = header.tensors}))
          .wait(kRestartPatience);
  if (!encoded) return pass_over(encoded.error());
  FRESHET_ASSIGN(const auto table, levels::TensorTable::decode(encoded->bytes(), header.tensors));
  if (header.records.size() != table->tensors.size()) return fail(Code::corrupt, "a head that is not its tensors'");
  std::vector<std::int64_t> found;
  FRESHET_ASSIGN(const std::vector<levels::WantedPiece> wanted, wanted_of(*table, held, restored, found));
  struct UnderWay {
    group::Group::Question question;
    std::size_t wanted = 0;
    std::uint64_t offset = 0;  ///< Of the whole tensor.
    std::uint64_t bytes = 0;
  };
  std::deque<UnderWay> under_way;
  const std::size_t under_way_max = group::questions_at_a_time(options_.ranks);
  const auto take_first = [&]() -> Status {
    UnderWay first = std::move(under_way.front());
    under_way.pop_front();
    const Result<group::Answer> answer = first.question.wait(kRestartPatience);
    if (!answer || answer->bytes().size() != first.bytes) {
      return pass_over(answer ? Error(Code::corrupt, "an answer is too short") : answer.error());
    }
    const levels::WantedPiece& into = wanted[first.wanted];
    const Piece part{.tensor = into.piece.tensor,
                     .count = 1,
                     .stride = first.offset + first.bytes,
                     .begin = first.offset,
                     .length = first.bytes};
    for_each_common_run(part, 0, first.bytes, into.piece,
                        [&](std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
                          std::memcpy(into.out.data() + to, answer->bytes().data() + from, bytes);
                        });
    return {};
  };
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    // From the first byte that is wanted of the whole tensor to the last.
    const Piece& piece = wanted[i].piece;
    const std::uint64_t end = (piece.count - 1) * piece.stride + piece.begin + piece.length;
    for (std::uint64_t at = piece.begin; at < end; at += levels::kReadBytes) {
      const std::uint64_t bytes = std::min(levels::kReadBytes, end - at);
      const levels::Question question{.kind = Kind::stored_read,
                                      .key = {.version = plan.version, .rank = piece.tensor, .ranks = 1},
                                      .ranges = {{.offset = at, .bytes = bytes}}};
      under_way.push_back({group_->ask(reader, encode(question)), i, at, bytes});
      if (under_way.size() >= under_way_max) FRESHET_TRY(take_first());
    }
  }
  while (!under_way.empty()) FRESHET_TRY(take_first());
  restored.from.insert(Level::external);
  std::vector<Version> writers;
  for (const levels::PieceRecord& record : header.records) writers.push_back(header.versions[record.writer]);
  set_baseline(digests_of(held, found), found, writers);
  return {};
}

/// Of the chunks of this rank's pieces, as far as they were found.
std::vector<Digest> Checkpointer::Impl::digests_of(std::span<const MutableBytes> held,
                                                   const std::vector<std::int64_t>& found) const {
  std::vector<Digest> digests(cut_->first_chunks.back());
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const OwnTensor& own = own_[i];
    if (!own.piece || found[i] < 0) continue;
    const std::uint64_t bytes = cut_->pieces[*own.piece].piece.bytes();
    digest_piece(*cut_, *own.piece, held[i].subspan(own.offset, bytes), digests);
  }
  return digests;
}

void Checkpointer::Impl::set_baseline(std::vector<Digest> digests, const std::vector<std::int64_t>& found,
                                      const std::vector<Version>& writers) {
  baseline_.digests = std::move(digests);
  baseline_.writers.assign(cut_->pieces.size(), Version());
  baseline_.known.assign(cut_->pieces.size(), false);
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const OwnTensor& own = own_[i];
    if (!own.piece || found[i] < 0) continue;
    baseline_.writers[*own.piece] = writers[static_cast<std::size_t>(found[i])];
    baseline_.known[*own.piece] = true;
  }
}

/// What this rank is to compute of what is missing. It stays beside its own shards.
Status Checkpointer::Impl::rebuild_shards(const levels::RestartPlan& plan, std::vector<levels::BadShard>& bad) {
  GroupSource source(*group_, kRestartPatience);
  for (const levels::RebuildTask& task : plan.rebuilds) {
    if (task.by != options_.rank) continue;
    bool asked = false;
    const auto rebuild = [&]() -> Status {
      FRESHET_ASSIGN(const auto opened, levels::ShardRebuild::open(source, plan, task.shard_rank, bad));
      const levels::ShardHeader& header = opened->header();
      asked = true;
      FRESHET_TRY(folders_->write_table(opened->table()));
      return folders_->write_streamed(encode_shard_head(header), header.key, levels::ShardKind::copy, false,
                                      [&]() -> Result<std::optional<Bytes>> {
                                        asked = false;
                                        point("rebuilding", plan.step);
                                        auto next = opened->next(bad);
                                        asked = next.has_value();
                                        return next;
                                      });
    };
    const Status rebuilt = rebuild();
    if (rebuilt) {
      bad.clear();  // Some of what was asked may have been damaged; there was enough.
      continue;
    }
    if (group_->over() || levels::is_no_damage(rebuilt.error())) {
      bad.clear();
      return rebuilt;
    }
    if (asked) {
      // What was computed does not stay here: another rank may have room.
      bad = {{{plan.version, task.shard_rank, options_.rank, false, levels::ShardKind::copy},
              format("version {}: rank {} could not keep the shard of rank {}: {}", plan.version.number, options_.rank,
                     task.shard_rank, rebuilt.error().message())}};
    } else if (bad.empty()) {
      bad = parity_is_useless(plan, task.shard_rank, rebuilt.error());
    }
    return rebuilt;
  }
  return {};
}

/// What this rank's own shard of the restored version has need not be written again, if the cut is the same.
void Checkpointer::Impl::set_stored(const levels::RestartPlan& plan) {
  const levels::ShardKey key{.version = plan.version, .rank = options_.rank, .ranks = options_.ranks};
  if (plan.ranks != options_.ranks) return;
  const auto bytes = folders_->read_head(key, levels::ShardKind::own);
  if (!bytes) return;
  const auto head = levels::decode_shard_head(*bytes);
  if (!head || head->key != key || head->tensors != cut_->table->digest || !check_records(*head, cut_->pieces)) return;
  for (std::size_t i = 0; i < cut_->pieces.size(); ++i) {
    if (!is_equal_piece(*cut_, i, head->digests, baseline_.digests)) return;
  }
  // Each rank reads what it stores from its own files first, so those that were not crossed off are proved.
  std::vector<Version> stores = head->needs();
  stores.push_back(plan.version);
  for (const Version& store : stores) {
    const levels::Holder own{.version = store, .shard_rank = options_.rank, .holder = options_.rank};
    if (std::ranges::find(plan.holders, own) == plan.holders.end()) return;
  }
  Stored stored{.digests = head->digests};
  for (const levels::PieceRecord& record : head->records) {
    stored.stores.push_back(head->versions[record.store]);
    stored.offsets.push_back(record.offset);
  }
  stored_ = std::move(stored);
  const MutexLock lock(mutex_);
  newest_stored_ = plan.version;
}

}  // namespace freshet
