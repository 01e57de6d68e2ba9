// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/restore.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/format.h"
#include "repo/levels/parity/shard_rebuild.h"
#include "repo/levels/restart/group_source.h"
#include "repo/levels/restart/names.h"

namespace freshet::levels {
namespace {

/// A restart reads everything: it waits for the slowest disk, however patient the job is otherwise. A dead peer ends it
/// at once.
constexpr Duration kRestartPatience = std::chrono::hours(1);

std::uint64_t now_as_incarnation() { return static_cast<std::uint64_t>(system_clock().unix_ns()); }

}  // namespace

Inventory Restore::inventory() const {
  Inventory inventory;
  for (const HeldShard& shard : job_.folders->scan()) inventory.held.push_back(offered(shard));
  if (const auto promises = job_.folders->promises()) {
    inventory.number_max = promises->number_max;
    inventory.incarnation_max = promises->incarnation_max;
    inventory.acknowledged = promises->acknowledged;
  } else {
    inventory.error = promises.error();
  }
  for (const auto& [version, step] : book_.in_memory()) {
    inventory.held.push_back({.key = {.version = version, .rank = job_.options.rank, .ranks = job_.options.ranks},
                              .step = step,
                              .in_memory = true,
                              .needs = {},
                              .members = {}});
  }
  return inventory;
}

Result<RestartPlan> Restore::first_plan(std::vector<std::vector<std::byte>> parts) {
  std::vector<Inventory> inventories;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    FRESHET_ASSIGN(Inventory inventory, decode_inventory(parts[rank]));
    if (inventory.error) return fail(Error(*inventory.error).with_context(format("rank {}", rank)));
    inventories.push_back(std::move(inventory));
  }
  std::vector<StoredVersion> stored;
  std::vector<std::string> damaged;
  if (job_.external_damage) damaged.push_back(job_.external_damage->message());
  if (job_.external != nullptr) {
    FRESHET_ASSIGN(stored, job_.external->versions(&damaged));
  }
  planner_.emplace(std::move(inventories), std::move(stored), choice_);
  for (std::string& why : damaged) {
    job_.warn(why);
    planner_->pass_over_repository(std::move(why));
  }
  return planner_->next();
}

Result<RestartPlan> Restore::next_plan(std::vector<std::vector<std::byte>> parts, RestartPlan tried) {
  bool again = false;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    FRESHET_ASSIGN(const RestartOutcome outcome, decode_outcome(parts[rank]));
    if (outcome.error) return fail(Error(*outcome.error).with_context(format("rank {}", rank)));
    if (outcome.bad.empty()) continue;
    planner_->cross_off(tried.version, outcome.bad, tried.source);
    again = true;
  }
  if (tried.source == RestartPlan::Source::rebuild) {
    if (!again) planner_->add_rebuilt(tried.version, tried.rebuilds);
    again = true;
  }
  if (again) return planner_->next();
  tried.final = true;
  tried.run = tried.version.id.run;
  if (tried.source == RestartPlan::Source::nothing) {
    tried.run = {.high = random_u64(job_.env), .low = random_u64(job_.env)};
  }
  tried.incarnation = std::max(planner_->incarnation_max() + 1, now_as_incarnation());
  tried.next_number = planner_->number_max() + 1;
  tried.group_number = planner_->acknowledged_max(Level::group);
  return tried;
}

Status Restore::check_held() const {
  const std::vector<OwnTensor>& own = job_.own;
  if (held_.size() != own.size()) return refuse(format("{} tensors came, there are {}", held_.size(), own.size()));
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].size() == own[i].bytes) continue;
    return refuse(format("tensor {}: {} bytes came, this rank holds {}", job_.tensors[i].spec.name, held_[i].size(),
                         own[i].bytes));
  }
  return {};
}

Result<Restore::Decided> Restore::run() {
  using Parts = std::vector<std::vector<std::byte>>;
  using Encoded = Result<std::vector<std::byte>>;
  Inventory brought = inventory();
  if (Status checked = check_held(); !checked) brought.error = checked.error();
  const auto decide_first = [&](Parts parts) -> Encoded {
    FRESHET_ASSIGN(const RestartPlan plan, first_plan(std::move(parts)));
    return encode(plan);
  };
  FRESHET_ASSIGN(std::vector<std::byte> decision, job_.group->agree(encode(brought), decide_first, kRestartPatience));
  for (;;) {
    FRESHET_ASSIGN(const RestartPlan plan, decode_plan(decision));
    restored_ = {.version = {job_.options.model, plan.version.number}, .step = plan.step, .notes = plan.notes};
    const RestartOutcome outcome = carry_out(plan);
    const auto decide_next = [&](Parts parts) -> Encoded {
      FRESHET_ASSIGN(const RestartPlan next, next_plan(std::move(parts), plan));
      return encode(next);
    };
    FRESHET_ASSIGN(decision, job_.group->agree(encode(outcome), decide_next, kRestartPatience));
    FRESHET_ASSIGN(RestartPlan decided, decode_plan(decision));
    if (!decided.final) continue;
    if (decided.source == RestartPlan::Source::nothing) set_baseline({}, {}, {});
    return Decided{.plan = std::move(decided), .restored = std::move(restored_), .baseline = std::move(baseline_)};
  }
}
RestartOutcome Restore::carry_out(const RestartPlan& plan) {
  RestartOutcome outcome;
  Status done;
  switch (plan.source) {
    case RestartPlan::Source::nothing: done = nothing_is_filled(); break;
    case RestartPlan::Source::shards:
    case RestartPlan::Source::repository: done = read_shards(plan, outcome.bad); break;
    case RestartPlan::Source::rebuild: done = rebuild_shards(plan, outcome.bad); break;
  }
  // Who does not answer is not damaged: the restart ends, and may be tried again.
  if (!done && is_no_damage(done.error())) outcome.bad.clear();
  if (!done && outcome.bad.empty()) outcome.error = done.error();
  return outcome;
}

Status Restore::nothing_is_filled() const {
  if (filled_.empty()) return {};
  const auto& [tensor, version] = *filled_.begin();
  return fail(Code::failed_precondition,
              format("no version of {} can be restored, and the memory of tensor {} has bytes of version {}, which is "
                     "damaged: start the job again, and choose to begin anew",
                     job_.options.model, job_.cut->table->tensors[job_.own[tensor].whole].spec.name, version));
}

Result<std::vector<WantedPiece>> Restore::wanted_of(const TensorTable& table, std::vector<std::int64_t>& found) {
  const std::string which = format("{}@{}", job_.options.model, restored_.version.number);
  if (!choice_.allow_left) FRESHET_TRY(check_not_renamed(which, table, *job_.cut->table));
  std::unordered_map<std::string_view, std::uint32_t> named;
  for (std::uint32_t i = 0; i < table.tensors.size(); ++i) named.emplace(table.tensors[i].spec.name, i);
  std::unordered_set<std::string_view> ours;
  for (const LaidTensor& mine : job_.cut->table->tensors) ours.insert(mine.spec.name);
  for (const LaidTensor& theirs : table.tensors) {
    if (!ours.contains(theirs.spec.name)) restored_.left.push_back(theirs.spec.name);
  }
  std::vector<WantedPiece> wanted;
  found.assign(job_.own.size(), -1);
  for (std::size_t i = 0; i < job_.own.size(); ++i) {
    const LaidTensor& mine = job_.cut->table->tensors[job_.own[i].whole];
    const auto at = named.find(mine.spec.name);
    if (at == named.end()) {
      if (const auto filled = filled_.find(i); filled != filled_.end()) {
        return fail(
            Code::failed_precondition,
            format("{}@{} lacks tensor {}, and its memory may have bytes of version {}, which is damaged: start "
                   "the job again, and choose version {} by its number",
                   job_.options.model, restored_.version.number, mine.spec.name, filled->second,
                   restored_.version.number));
      }
      restored_.fresh.push_back(mine.spec.name);
      continue;
    }
    const TensorSpec& theirs = table.tensors[at->second].spec;
    if (theirs.dtype != mine.spec.dtype || theirs.shape != mine.spec.shape) {
      return fail(Code::failed_precondition,
                  format("tensor {} is {} in {}@{}, and {} here", mine.spec.name, describe(theirs.dtype, theirs.shape),
                         job_.options.model, restored_.version.number, describe(mine.spec.dtype, mine.spec.shape)));
    }
    found[i] = at->second;
    Piece piece = held_piece(mine, at->second, job_.options.ranks, job_.options.rank);
    if (piece.bytes() == 0) continue;
    wanted.push_back({.piece = piece, .out = held_[i]});
    filled_[i] = restored_.version.number;
  }
  return wanted;
}

Status Restore::read_shards(RestartPlan plan, std::vector<BadShard>& bad) {
  const bool is_stored = plan.source == RestartPlan::Source::repository;
  if (is_stored) plan.holders[0].holder = answers_.open_to_read();
  struct Closing {
    ~Closing() { answers.close_to_read(); }
    Answers& answers;
  } const closing{answers_};
  GroupSource source(*job_.group, kRestartPatience, *job_.folders, job_.options.rank);
  FRESHET_ASSIGN(const ShardedVersion version, ShardedVersion::open(source, plan, job_.options.rank, bad));
  std::vector<std::int64_t> found;
  FRESHET_ASSIGN(const std::vector<WantedPiece> wanted, wanted_of(version.tensors(), found));
  Result<ShardedVersion::Fetched> fetched = version.fetch(source, wanted, bad, nullptr, {}, job_.options.ranks);
  if (!fetched) return fail(std::move(fetched).error());
  job_.point("restoring", plan.step);
  restored_.from = std::move(fetched->from);
  restored_.rebuilt_bytes = fetched->copied_bytes;
  if (!is_stored && plan.ranks == job_.options.ranks && version.tensors().digest == job_.cut->table->digest) {
    // The cut is the same, so each chunk of this rank's pieces was proved against the digest that is the baseline's.
    set_baseline(version.head(job_.options.rank).digests, found, version.writers());
  } else {
    set_baseline(digests_of(found), found, version.writers());
  }
  return {};
}

std::vector<Digest> Restore::digests_of(const std::vector<std::int64_t>& found) const {
  std::vector<Digest> digests(job_.cut->first_chunks.back());
  for (std::size_t i = 0; i < job_.own.size(); ++i) {
    const OwnTensor& own = job_.own[i];
    if (!own.piece || found[i] < 0) continue;
    const std::uint64_t bytes = job_.cut->pieces[*own.piece].piece.bytes();
    digest_piece(*job_.cut, *own.piece, held_[i].subspan(own.offset, bytes), digests);
  }
  return digests;
}

void Restore::set_baseline(std::vector<Digest> digests, const std::vector<std::int64_t>& found,
                           const std::vector<Version>& writers) {
  baseline_.digests = std::move(digests);
  baseline_.digests.resize(job_.cut->first_chunks.back());
  baseline_.writers.assign(job_.cut->pieces.size(), Version());
  baseline_.known.assign(job_.cut->pieces.size(), false);
  for (std::size_t i = 0; i < job_.own.size(); ++i) {
    const OwnTensor& own = job_.own[i];
    if (!own.piece || i >= found.size() || found[i] < 0) continue;
    baseline_.writers[*own.piece] = writers[static_cast<std::size_t>(found[i])];
    baseline_.known[*own.piece] = true;
  }
}

/// What this rank is to compute of what is missing. It stays beside its own shards.
Status Restore::rebuild_shards(const RestartPlan& plan, std::vector<BadShard>& bad) {
  GroupSource source(*job_.group, kRestartPatience);
  for (const RebuildTask& task : plan.rebuilds) {
    if (task.by != job_.options.rank) continue;
    bool asked = false;
    const auto rebuild = [&]() -> Status {
      FRESHET_ASSIGN(const auto opened, ShardRebuild::open(source, plan, task.shard_rank, bad));
      const ShardHeader& header = opened->header();
      asked = true;
      FRESHET_TRY(job_.folders->write_table(opened->table()));
      return job_.folders->write_streamed(encode_shard_head(header), header.key, ShardKind::copy, false,
                                          [&]() -> Result<std::optional<Bytes>> {
                                            asked = false;
                                            job_.point("rebuilding", plan.step);
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
    if (job_.group->over() || is_no_damage(rebuilt.error())) {
      bad.clear();
      return rebuilt;
    }
    if (asked) {
      // What was computed does not stay here: another rank may have room.
      bad = {{{plan.version, task.shard_rank, job_.options.rank, false, ShardKind::copy},
              format("version {}: rank {} could not keep the shard of rank {}: {}", plan.version.number,
                     job_.options.rank, task.shard_rank, rebuilt.error().message())}};
    } else if (bad.empty()) {
      bad = parity_is_useless(plan, task.shard_rank, rebuilt.error());
    }
    return rebuilt;
  }
  return {};
}

}  // namespace freshet::levels
