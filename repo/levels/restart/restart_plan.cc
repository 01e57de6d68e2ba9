// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/restart_plan.h"

#include <algorithm>

#include "core/base/format.h"
#include "repo/levels/terms/ring.h"
#include "repo/levels/terms/stripes.h"
#include "repo/levels/terms/wire.h"

namespace freshet::levels {
namespace {

constexpr auto kKindMax = static_cast<std::uint8_t>(ShardKind::stored);

}  // namespace

OfferedShard offered(const HeldShard& shard) {
  return {.key = shard.key,
          .step = shard.step,
          .bytes_only = shard.bytes_only,
          .kind = shard.kind,
          .needs = shard.needs,
          .members = shard.members,
          .losses = shard.losses};
}

std::vector<std::byte> encode(const Inventory& inventory) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<wire::Held>> held;
  for (const OfferedShard& shard : inventory.held) {
    std::vector<wire::Version> needs;
    for (const Version& version : shard.needs) needs.push_back(wire_of(version));
    const auto need_list = builder.CreateVectorOfStructs(needs);
    const wire::Version version = wire_of(shard.key.version);
    const auto member_list = builder.CreateVector(shard.members);
    held.push_back(wire::CreateHeld(builder, &version, shard.step, shard.key.rank, shard.key.ranks, shard.in_memory,
                                    need_list, shard.bytes_only, static_cast<std::uint8_t>(shard.kind), member_list,
                                    shard.losses));
  }
  const auto list = builder.CreateVector(held);
  const auto acknowledged = builder.CreateVector(inventory.acknowledged);
  const auto text = inventory.error ? builder.CreateString(inventory.error->message()) : 0;
  builder.Finish(wire::CreateInventory(builder, list, inventory.number_max, inventory.incarnation_max, acknowledged,
                                       code_on_wire(inventory.error), text),
                 kInventoryId);
  return bytes_in(builder);
}

Result<Inventory> decode_inventory(Bytes bytes) {
  FRESHET_ASSIGN(const auto from, root_of<wire::Inventory>(bytes, kInventoryId));
  Inventory inventory{.number_max = from->number_max(), .incarnation_max = from->incarnation_max()};
  if (from->held() != nullptr) {
    for (const wire::Held* held : *from->held()) {
      if (held->version() == nullptr || held->ranks() == 0 || held->ranks() > kRanksMax ||
          held->rank() >= held->ranks() || held->kind() >= kKindMax || !version_from(*held->version()).is_possible()) {
        return fail(Code::corrupt, "a shard names an impossible rank or version");
      }
      OfferedShard& shard = inventory.held.emplace_back();
      shard.key = {.version = version_from(*held->version()), .rank = held->rank(), .ranks = held->ranks()};
      shard.step = held->step();
      shard.in_memory = held->in_memory();
      shard.bytes_only = held->bytes_only();
      shard.kind = static_cast<ShardKind>(held->kind());
      if (held->members() != nullptr && held->members()->size() <= kGroupRanksMax) {
        shard.members.assign(held->members()->begin(), held->members()->end());
      }
      shard.losses = held->losses();
      const bool is_group = shard.losses > 0 && shard.losses < shard.members.size();
      if (shard.kind == ShardKind::parity && !is_group) return fail(Code::corrupt, "a rank's parity is malformed");
      if (held->needs() == nullptr) continue;
      for (const wire::Version* needed : *held->needs()) shard.needs.push_back(version_from(*needed));
    }
  }
  if (from->acknowledged() != nullptr && from->acknowledged()->size() == kLevels) {
    inventory.acknowledged.assign(from->acknowledged()->begin(), from->acknowledged()->end());
  }
  if (std::max({inventory.number_max, inventory.incarnation_max, std::ranges::max(inventory.acknowledged)}) >
      kNumberMax)
    return fail(Code::corrupt, "a rank's promises have impossible numbers");
  FRESHET_ASSIGN(inventory.error, error_from(from->error_code(), from->error_text()));
  return inventory;
}

std::vector<std::byte> encode(const RestartPlan& plan) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<wire::Holder> holders;
  for (const Holder& holder : plan.holders) {
    holders.emplace_back(wire_of(holder.version), holder.shard_rank, holder.holder, holder.in_memory,
                         static_cast<std::uint8_t>(holder.kind));
  }
  std::vector<wire::Rebuild> rebuilds;
  for (const RebuildTask& task : plan.rebuilds) rebuilds.emplace_back(task.shard_rank, task.by);
  const auto list = builder.CreateVectorOfStructs(holders);
  const auto notes = builder.CreateVectorOfStrings(plan.notes);
  const auto rebuild_list = builder.CreateVectorOfStructs(rebuilds);
  const wire::Version version = wire_of(plan.version);
  builder.Finish(wire::CreatePlan(builder, plan.final, static_cast<std::uint8_t>(plan.source), &version, plan.step,
                                  plan.ranks, list, plan.run.high, plan.run.low, plan.incarnation, plan.next_number,
                                  notes, rebuild_list, plan.group_number),
                 kPlanId);
  return bytes_in(builder);
}

Result<RestartPlan> decode_plan(Bytes bytes) {
  FRESHET_ASSIGN(const auto from, root_of<wire::Plan>(bytes, kPlanId));
  if (from->version() == nullptr || from->source() > 3 || from->ranks() > kRanksMax ||
      std::max(from->next_number(), from->incarnation()) > kNumberMax + 1) {
    return fail(Code::corrupt, "the plan of the restart is malformed");
  }
  RestartPlan plan{.final = from->final(),
                   .source = static_cast<RestartPlan::Source>(from->source()),
                   .version = version_from(*from->version()),
                   .step = from->step(),
                   .ranks = from->ranks(),
                   .run = {.high = from->run_high(), .low = from->run_low()},
                   .incarnation = from->incarnation(),
                   .next_number = from->next_number(),
                   .group_number = from->group_number()};
  const bool has_shards = plan.source == RestartPlan::Source::shards || plan.source == RestartPlan::Source::rebuild;
  if (has_shards && plan.ranks == 0) return fail(Code::corrupt, "the plan of the restart is malformed");
  if (from->holders() != nullptr) {
    for (const wire::Holder* holder : *from->holders()) {
      if (holder->kind() > kKindMax) return fail(Code::corrupt, "the plan of the restart is malformed");
      plan.holders.push_back({version_from(holder->version()), holder->rank(), holder->holder(), holder->in_memory(),
                              static_cast<ShardKind>(holder->kind())});
    }
  }
  const bool has_stored = plan.holders.size() == 1 && plan.holders[0].kind == ShardKind::stored;
  if (plan.source == RestartPlan::Source::repository && !has_stored)
    return fail(Code::corrupt, "the plan of the restart is malformed");
  if (from->rebuilds() != nullptr) {
    for (const wire::Rebuild* task : *from->rebuilds()) plan.rebuilds.push_back({task->rank(), task->by()});
  }
  if (from->notes() != nullptr) {
    for (const auto* note : *from->notes()) plan.notes.push_back(note->str());
  }
  return plan;
}

std::vector<std::byte> encode(const RestartOutcome& outcome) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<wire::Bad>> bad;
  for (const BadShard& shard : outcome.bad) {
    const auto text = builder.CreateString(shard.why);
    const wire::Version version = wire_of(shard.where.version);
    bad.push_back(wire::CreateBad(builder, &version, shard.where.shard_rank, shard.where.holder, shard.where.in_memory,
                                  text, static_cast<std::uint8_t>(shard.where.kind)));
  }
  const auto list = builder.CreateVector(bad);
  const auto text = outcome.error ? builder.CreateString(outcome.error->message()) : 0;
  builder.Finish(wire::CreateOutcome(builder, list, code_on_wire(outcome.error), text), kOutcomeId);
  return bytes_in(builder);
}

Result<RestartOutcome> decode_outcome(Bytes bytes) {
  FRESHET_ASSIGN(const auto from, root_of<wire::Outcome>(bytes, kOutcomeId));
  RestartOutcome outcome;
  if (from->bad() != nullptr) {
    for (const wire::Bad* bad : *from->bad()) {
      if (bad->version() == nullptr || bad->kind() > kKindMax) return fail(Code::corrupt, "a shard names no version");
      outcome.bad.push_back({{version_from(*bad->version()), bad->rank(), bad->holder(), bad->in_memory(),
                              static_cast<ShardKind>(bad->kind())},
                             bad->text() == nullptr ? "" : bad->text()->str()});
    }
  }
  FRESHET_ASSIGN(outcome.error, error_from(from->error_code(), from->error_text()));
  return outcome;
}

RestartPlanner::RestartPlanner(std::vector<Inventory> inventories, std::vector<StoredVersion> stored,
                               RestartChoice choice)
    : inventories_(std::move(inventories)), stored_(std::move(stored)), choice_(choice) {
  for (std::uint32_t rank = 0; rank < inventories_.size(); ++rank) {
    for (const OfferedShard& shard : inventories_[rank].held) add(shard, rank);
  }
}

void RestartPlanner::add(const OfferedShard& shard, std::uint32_t at) {
  const Version& version = shard.key.version;
  const bool is_parity = shard.kind == ShardKind::parity;
  const Holder holder{version, shard.key.rank, at, shard.in_memory, shard.kind};
  (is_parity ? parity_holders_ : holders_)[{version, shard.key.rank}].insert(holder);
  if (shard.bytes_only) return;
  Candidate& candidate = candidates_[version];
  candidate.step = shard.step;
  candidate.ranks.insert(shard.key.ranks);
  (is_parity ? candidate.parity : candidate.shards)[shard.key.rank].push_back({holder, shard});
}

void RestartPlanner::add_rebuilt(const Version& version, const std::vector<RebuildTask>& rebuilt) {
  const Candidate& candidate = candidates_[version];
  for (const RebuildTask& task : rebuilt) {
    OfferedShard shard{.key = {version, task.shard_rank, *candidate.ranks.begin()},
                       .step = candidate.step,
                       .kind = ShardKind::copy,
                       .needs = {},
                       .members = {}};
    add(shard, task.by);
  }
}

VersionNumber RestartPlanner::number_max() const {
  VersionNumber greatest = 0;
  for (const Inventory& inventory : inventories_) greatest = std::max(greatest, inventory.number_max);
  for (const auto& [version, candidate] : candidates_) greatest = std::max(greatest, version.number);
  for (const StoredVersion& stored : stored_) greatest = std::max(greatest, stored.version.number);
  return greatest;
}

std::uint64_t RestartPlanner::incarnation_max() const {
  std::uint64_t greatest = 0;
  for (const Inventory& inventory : inventories_) greatest = std::max(greatest, inventory.incarnation_max);
  for (const auto& [version, candidate] : candidates_) greatest = std::max(greatest, version.id.incarnation);
  for (const StoredVersion& stored : stored_) {
    const std::uint64_t incarnation = stored.version.id.incarnation;
    if (incarnation <= kNumberMax) greatest = std::max(greatest, incarnation);
  }
  return greatest;
}

VersionNumber RestartPlanner::acknowledged_max(Level level) const {
  VersionNumber greatest = 0;
  for (const Inventory& inventory : inventories_) {
    greatest = std::max(greatest, inventory.acknowledged[static_cast<std::size_t>(level)]);
  }
  return greatest;
}

void RestartPlanner::cross_off(Version version, const std::vector<BadShard>& bad, RestartPlan::Source source) {
  if (source == RestartPlan::Source::repository) {
    crossed_in_repository_.insert(version);
    repository_is_damaged_ = true;
  }
  for (const BadShard& one : bad) {
    // Ranks that read the same bytes tell the same.
    if (std::ranges::find(notes_, one.why) == notes_.end()) notes_.push_back(one.why);
    if (source == RestartPlan::Source::repository) continue;
    auto& holders = one.where.kind == ShardKind::parity ? parity_holders_ : holders_;
    const auto at = holders.find({one.where.version, one.where.shard_rank});
    if (at != holders.end()) at->second.erase(one.where);
    if (one.where.kind == ShardKind::copy) {
      cannot_rebuild_.emplace(one.where.version, one.where.shard_rank, one.where.holder);
    }
  }
}

RestartPlanner::Found RestartPlanner::find(const Version& version, const Offers& offers, std::uint32_t rank,
                                           const Holders& all) const {
  Found found;
  const auto has_one = [&](const Version& of) {
    const auto at = all.find({of, rank});
    return at != all.end() && !at->second.empty();
  };
  found.missing = "is missing";
  const auto offered = offers.find(rank);
  if (offered == offers.end() || !has_one(version)) return found;
  // All that are used have their bytes at the same places: a shard that was rebuilt has others than one that needs
  // older ones.
  const OfferedShard* alike = nullptr;
  std::set<Version> needed;
  for (const auto& [holder, shard] : offered->second) {
    if (!all.at({version, rank}).contains(holder)) continue;
    if (!shard.in_memory) {
      const auto gone = std::ranges::find_if_not(shard.needs, has_one);
      if (gone != shard.needs.end()) {
        if (found.holders.empty())
          found.missing = format("needs bytes of version {}'s, which is missing", gone->number);
        continue;
      }
      if (alike != nullptr && alike->needs != shard.needs) continue;
      alike = &shard;
      needed.insert(shard.needs.begin(), shard.needs.end());
    }
    found.holders.push_back(holder);
  }
  for (const Version& of : needed) {
    const auto& holders = all.at({of, rank});
    found.holders.insert(found.holders.end(), holders.begin(), holders.end());
  }
  if (!found.holders.empty()) found.missing.clear();
  return found;
}

/// Whom a rebuild of the rank's shard asks, if enough of its group are left: of each stripe that it has data in as many
/// blocks as the stripe has data, and its head.
bool RestartPlanner::add_group_of(const Version& version, const Candidate& candidate, std::uint32_t rank,
                                  std::set<Holder>& holders) const {
  const OfferedShard* group = nullptr;
  for (const auto& [of, offers] : candidate.parity) {
    for (const auto& [holder, shard] : offers) {
      if (std::ranges::binary_search(shard.members, rank)) group = &shard;
    }
  }
  if (group == nullptr) return false;
  const Stripes stripes{.ranks = static_cast<std::uint32_t>(group->members.size()), .losses = group->losses};
  std::vector<bool> has_share;
  std::vector<bool> has_rows;
  std::uint32_t position = 0;
  for (std::uint32_t i = 0; i < stripes.ranks; ++i) {
    const std::uint32_t member = group->members[i];
    if (member == rank) position = i;
    const Found share = find(version, candidate.shards, member, holders_);
    const Found rows = find(version, candidate.parity, member, parity_holders_);
    has_share.push_back(share.missing.empty());
    has_rows.push_back(rows.missing.empty());
    if (has_share.back()) holders.insert(share.holders.begin(), share.holders.end());
    if (has_rows.back()) holders.insert(rows.holders.begin(), rows.holders.end());
  }
  bool has_head = false;
  for (std::uint32_t ahead = 1; ahead <= stripes.losses; ++ahead) {
    has_head = has_head || has_rows[(position + ahead) % stripes.ranks];
  }
  if (!has_head) return false;
  for (std::uint32_t block = 0; block < stripes.data(); ++block) {
    const std::uint32_t stripe = stripes.stripe_of_block(position, block);
    std::uint32_t left = 0;
    for (std::uint32_t i = 0; i < stripes.data(); ++i) left += has_share[stripes.data_at(stripe, i)] ? 1 : 0;
    for (std::uint32_t row = 0; row < stripes.losses; ++row) left += has_rows[stripes.parity_at(stripe, row)] ? 1 : 0;
    if (left < stripes.data()) return false;
  }
  return true;
}

std::optional<RestartPlan> RestartPlanner::plan_for(const Version& version, const Candidate& candidate,
                                                    std::string& missing) const {
  if (candidate.ranks.size() != 1) {
    missing = format("version {}: its shards say different numbers of ranks", version.number);
    return std::nullopt;
  }
  const std::uint32_t ranks = *candidate.ranks.begin();
  RestartPlan plan{.source = RestartPlan::Source::shards, .version = version, .step = candidate.step, .ranks = ranks};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Found shard = find(version, candidate.shards, rank, holders_);
    if (shard.missing.empty()) {
      plan.holders.insert(plan.holders.end(), shard.holders.begin(), shard.holders.end());
      continue;
    }
    if (missing.empty()) {
      missing = format("version {}: the shard of rank {} of {} {}", version.number, rank, ranks, shard.missing);
    }
    // The rank of its number, else one that comes after it.
    const auto count = static_cast<std::uint32_t>(inventories_.size());
    std::uint32_t tries = 0;
    while (tries < count && cannot_rebuild_.contains({version, rank, (rank + tries) % count})) ++tries;
    if (tries == count) return std::nullopt;
    plan.rebuilds.push_back({rank, (rank + tries) % count});
  }
  if (plan.rebuilds.empty()) return plan;
  std::set<Holder> asked;
  for (const RebuildTask& task : plan.rebuilds) {
    if (add_group_of(version, candidate, task.shard_rank, asked)) continue;
    if (!candidate.parity.empty()) missing += ", and too few shards of its group are left to rebuild it";
    return std::nullopt;
  }
  plan.source = RestartPlan::Source::rebuild;
  plan.holders.assign(asked.begin(), asked.end());
  return plan;
}

void RestartPlanner::pass_over_repository(std::string why) {
  repository_is_damaged_ = true;
  notes_.push_back(std::move(why));
}

Result<RestartPlan> RestartPlanner::next() const {
  Result<RestartPlan> plan = newest_plan();
  const bool takes_newest =
      !choice_.from_nothing && !choice_.version && choice_.step_min == 0 && choice_.step_max == UINT64_MAX;
  if (!plan || !repository_is_damaged_ || !takes_newest) return plan;
  const VersionNumber acknowledged = acknowledged_max(Level::external);
  const bool is_anew = plan->source == RestartPlan::Source::nothing;
  if (!is_anew && plan->version.number >= acknowledged) return plan;
  std::string said;
  for (const std::string& one : plan->notes) said += (said.empty() ? "" : "; ") + one;
  const std::string known =
      acknowledged == 0 ? "what it had is not known" : format("version {} was acknowledged there", acknowledged);
  return fail(
      Code::corrupt,
      format("{}; {}, and the ranks have {}: repair the repository, name the version to go on from, or begin anew",
             said, known, is_anew ? "none" : format("version {}", plan->version.number)));
}

/// Without a look at what a damaged repository may have had.
Result<RestartPlan> RestartPlanner::newest_plan() const {
  if (number_max() > kNumberMax) {
    return fail(Code::failed_precondition,
                format("the repository has version {}, and no number can follow it: give the "
                       "job another model",
                       number_max()));
  }
  if (choice_.from_nothing) return RestartPlan{};
  std::set<VersionNumber, std::greater<>> numbers;
  for (const auto& [version, candidate] : candidates_) numbers.insert(version.number);
  for (const StoredVersion& stored : stored_) numbers.insert(stored.version.number);
  std::vector<std::string> missing = notes_;
  for (const VersionNumber number : numbers) {
    if (choice_.version && number != *choice_.version) continue;
    // Of two lives that gave one number (a folder was away meanwhile) the later one.
    for (auto at = candidates_.rbegin(); at != candidates_.rend(); ++at) {
      const auto& [version, candidate] = *at;
      if (version.number != number || !is_chosen(candidate.step)) continue;
      std::string why;
      if (auto plan = plan_for(version, candidate, why)) {
        plan->notes = std::move(missing);
        return *std::move(plan);
      }
      missing.push_back(std::move(why));
    }
    for (const StoredVersion& stored : stored_) {
      if (stored.version.number != number || crossed_in_repository_.contains(stored.version)) continue;
      if (!is_chosen(stored.step)) continue;
      return RestartPlan{.source = RestartPlan::Source::repository,
                         .version = stored.version,
                         .step = stored.step,
                         .ranks = 1,
                         .holders = {{.version = stored.version, .kind = ShardKind::stored}},
                         .notes = std::move(missing)};
    }
  }
  std::string said;
  for (const std::string& one : missing) said += (said.empty() ? "" : "; ") + one;
  if (choice_.version) {
    return fail(said.empty() ? Code::not_found : Code::corrupt,
                format("version {} cannot be restored: {}", *choice_.version,
                       said.empty() ? "no rank and no repository has it" : said));
  }
  if (choice_.step_min > 0 || choice_.step_max != UINT64_MAX) {
    return fail(said.empty() ? Code::not_found : Code::corrupt,
                format("no version of steps {} to {} can be restored: {}", choice_.step_min, choice_.step_max,
                       said.empty() ? "there is none" : said));
  }
  for (std::size_t level = kLevels; level-- > 0;) {
    const VersionNumber acknowledged = acknowledged_max(static_cast<Level>(level));
    if (acknowledged == 0) continue;
    return fail(Code::corrupt,
                format("version {} was acknowledged at level {}, and no version can be completed: {}", acknowledged,
                       name_of(static_cast<Level>(level)), said.empty() ? "no shard is left" : said));
  }
  return RestartPlan{.notes = std::move(missing)};
}

}  // namespace freshet::levels
