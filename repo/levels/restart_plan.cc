// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart_plan.h"

#include <algorithm>

#include "core/format.h"
#include "repo/levels/wire.h"

namespace freshet::levels {
namespace {

std::uint8_t code_on_wire(const std::optional<Error>& error) {
  return error ? static_cast<std::uint8_t>(static_cast<std::uint8_t>(error->code()) + 1) : 0;
}

Result<std::optional<Error>> error_from(std::uint8_t code, const flatbuffers::String* text) {
  if (code == 0) return std::optional<Error>();
  if (code > static_cast<std::uint8_t>(Code::io_error) + 1) return fail(Code::corrupt, "an unknown error");
  return std::optional<Error>(Error(static_cast<Code>(code - 1), text == nullptr ? "" : text->str()));
}

}  // namespace

std::vector<std::byte> encode(const Inventory& inventory) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<wire::Held>> held;
  for (const OfferedShard& shard : inventory.held) {
    std::vector<wire::Version> needs;
    for (const Version& version : shard.needs) needs.push_back(wire_of(version));
    const auto need_list = builder.CreateVectorOfStructs(needs);
    const wire::Version version = wire_of(shard.key.version);
    held.push_back(wire::CreateHeld(builder, &version, shard.step, shard.key.rank, shard.key.ranks, shard.in_memory,
                                    need_list, shard.bytes_only, shard.copy));
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
          held->rank() >= held->ranks()) {
        return fail(Code::corrupt, "a shard of a rank that cannot be");
      }
      OfferedShard& shard = inventory.held.emplace_back();
      shard.key = {.version = version_from(*held->version()), .rank = held->rank(), .ranks = held->ranks()};
      shard.step = held->step();
      shard.in_memory = held->in_memory();
      shard.bytes_only = held->bytes_only();
      shard.copy = held->copy();
      if (held->needs() == nullptr) continue;
      for (const wire::Version* needed : *held->needs()) shard.needs.push_back(version_from(*needed));
    }
  }
  if (from->acknowledged() != nullptr && from->acknowledged()->size() == kLevels) {
    inventory.acknowledged.assign(from->acknowledged()->begin(), from->acknowledged()->end());
  }
  FRESHET_ASSIGN(inventory.error, error_from(from->error_code(), from->error_text()));
  return inventory;
}

std::vector<std::byte> encode(const RestartPlan& plan) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<wire::Holder> holders;
  for (const Holder& holder : plan.holders) {
    holders.emplace_back(wire_of(holder.version), holder.shard_rank, holder.holder, holder.in_memory, holder.copy);
  }
  const auto list = builder.CreateVectorOfStructs(holders);
  const auto notes = builder.CreateVectorOfStrings(plan.notes);
  const wire::Version version = wire_of(plan.version);
  builder.Finish(
      wire::CreatePlan(builder, plan.final, static_cast<std::uint8_t>(plan.source), &version, plan.step, plan.ranks,
                       list, plan.run.high, plan.run.low, plan.incarnation, plan.next_number, notes),
      kPlanId);
  return bytes_in(builder);
}

Result<RestartPlan> decode_plan(Bytes bytes) {
  FRESHET_ASSIGN(const auto from, root_of<wire::Plan>(bytes, kPlanId));
  if (from->version() == nullptr || from->source() > 2 || from->ranks() > kRanksMax) {
    return fail(Code::corrupt, "a plan that cannot be");
  }
  RestartPlan plan{.final = from->final(),
                   .source = static_cast<RestartPlan::Source>(from->source()),
                   .version = version_from(*from->version()),
                   .step = from->step(),
                   .ranks = from->ranks(),
                   .run = {.high = from->run_high(), .low = from->run_low()},
                   .incarnation = from->incarnation(),
                   .next_number = from->next_number()};
  if (from->holders() != nullptr) {
    for (const wire::Holder* holder : *from->holders()) {
      plan.holders.push_back(
          {version_from(holder->version()), holder->rank(), holder->holder(), holder->in_memory(), holder->copy()});
    }
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
                                  text, shard.where.copy));
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
      if (bad->version() == nullptr) return fail(Code::corrupt, "a shard of no version");
      outcome.bad.push_back({{version_from(*bad->version()), bad->rank(), bad->holder(), bad->in_memory(), bad->copy()},
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
    for (const OfferedShard& shard : inventories_[rank].held) {
      const Version& version = shard.key.version;
      holders_[{version, shard.key.rank}].insert({version, shard.key.rank, rank, shard.in_memory, shard.copy});
      if (shard.bytes_only) continue;
      Candidate& candidate = candidates_[version];
      candidate.step = shard.step;
      candidate.ranks.insert(shard.key.ranks);
      const OfferedShard*& known = candidate.shards[shard.key.rank];
      if (known == nullptr || (shard.in_memory && !known->in_memory)) known = &shard;
    }
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
  for (const StoredVersion& stored : stored_) greatest = std::max(greatest, stored.version.id.incarnation);
  return greatest;
}

void RestartPlanner::cross_off(Version version, const std::vector<BadShard>& bad, RestartPlan::Source source) {
  if (source == RestartPlan::Source::repository) {
    crossed_in_repository_.insert(version);
  }
  for (const BadShard& one : bad) {
    notes_.push_back(one.why);
    if (source == RestartPlan::Source::repository) continue;
    const auto at = holders_.find({one.where.version, one.where.shard_rank});
    if (at != holders_.end()) at->second.erase(one.where);
  }
}

std::optional<std::vector<Holder>> RestartPlanner::holders_for(const Version& version, const Candidate& candidate,
                                                               std::string& missing) const {
  if (candidate.ranks.size() != 1) {
    missing = format("version {}: its shards say different numbers of ranks", version.number);
    return std::nullopt;
  }
  std::vector<Holder> all;
  const auto add = [&](const Version& of, std::uint32_t rank, std::uint32_t ranks) {
    const auto at = holders_.find({of, rank});
    if (at == holders_.end() || at->second.empty()) {
      missing =
          format("version {}: the shard of rank {} of {} {}", version.number, rank, ranks,
                 of == version ? "is missing" : format("needs bytes of version {}'s, which is missing", of.number));
      return false;
    }
    all.insert(all.end(), at->second.begin(), at->second.end());
    return true;
  };
  const std::uint32_t ranks = *candidate.ranks.begin();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (!add(version, rank, ranks)) return std::nullopt;
    const auto& holders = holders_.at({version, rank});
    // What is in somebody's memory is there whole; a file may need others.
    const bool whole = std::ranges::any_of(holders, &Holder::in_memory);
    const OfferedShard& shard = *candidate.shards.at(rank);
    for (const Version& needed : shard.needs) {
      if (!add(needed, rank, ranks) && !whole) return std::nullopt;
    }
  }
  return all;
}

Result<RestartPlan> RestartPlanner::next() const {
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
      if (version.number != number) continue;
      std::string why;
      auto holders = holders_for(version, candidate, why);
      if (holders) {
        return RestartPlan{.source = RestartPlan::Source::shards,
                           .version = version,
                           .step = candidate.step,
                           .ranks = *candidate.ranks.begin(),
                           .holders = *std::move(holders),
                           .notes = std::move(missing)};
      }
      missing.push_back(std::move(why));
    }
    for (const StoredVersion& stored : stored_) {
      if (stored.version.number != number || crossed_in_repository_.contains(stored.version)) continue;
      return RestartPlan{.source = RestartPlan::Source::repository,
                         .version = stored.version,
                         .step = stored.step,
                         .ranks = stored.ranks,
                         .notes = std::move(missing)};
    }
  }
  std::string said;
  for (const std::string& one : missing) said += (said.empty() ? "" : "; ") + one;
  if (choice_.version) {
    return fail(said.empty() ? Code::not_found : Code::corrupt,
                format("version {} cannot be restored: {}", *choice_.version, said.empty() ? "nobody has it" : said));
  }
  for (std::size_t level = kLevels; level-- > 0;) {
    VersionNumber acknowledged = 0;
    for (const Inventory& inventory : inventories_) {
      acknowledged = std::max(acknowledged, inventory.acknowledged[level]);
    }
    if (acknowledged == 0) continue;
    return fail(Code::corrupt,
                format("version {} was acknowledged at level {}, and no version can be completed: {}", acknowledged,
                       name_of(static_cast<Level>(level)), said.empty() ? "no shard is left" : said));
  }
  return RestartPlan{.notes = std::move(missing)};
}

}  // namespace freshet::levels
