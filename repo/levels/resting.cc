// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/resting.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/format.h"

namespace freshet::levels {

std::string_view name_of(Completeness completeness) {
  constexpr std::array<std::string_view, 3> kNames = {"incomplete", "rebuildable", "complete"};
  return kNames[static_cast<std::size_t>(completeness)];
}

bool RestingVersion::is_restorable() const {
  return local != Completeness::incomplete || group != Completeness::incomplete || external != Completeness::incomplete;
}

Result<RestingCheckpoints> RestingCheckpoints::open(std::vector<std::string> folders,
                                                    std::shared_ptr<Repository> repository, const std::string& model) {
  RestingCheckpoints opened;
  FRESHET_ASSIGN(opened.folders_, ShardFolders::open_to_read(std::move(folders), model));
  opened.held_ = opened.folders_->scan(&opened.damaged_);
  opened.repository_ = repository;
  if (repository != nullptr) {
    opened.external_ = std::make_unique<ExternalLevel>(std::move(repository), model);
    FRESHET_ASSIGN(opened.stored_, opened.external_->versions());
  }
  return opened;
}

RestartPlanner RestingCheckpoints::planner(std::optional<VersionNumber> number, bool with_repository,
                                           std::optional<bool> copies) const {
  Inventory inventory;
  for (const HeldShard& shard : held_) {
    if (copies && shard.copy != *copies) continue;
    inventory.held.push_back({.key = shard.key,
                              .step = shard.step,
                              .bytes_only = shard.bytes_only,
                              .copy = shard.copy,
                              .needs = shard.needs});
  }
  RestartChoice choice;
  choice.version = number;
  return {{std::move(inventory)}, with_repository ? stored_ : std::vector<StoredVersion>(), choice};
}

Result<std::vector<RestingVersion>> RestingCheckpoints::list() const {
  std::map<std::pair<VersionNumber, VersionId>, RestingVersion> all;
  const auto entry = [&](const Version& version) -> RestingVersion& {
    RestingVersion& row = all[{version.number, version.id}];
    row.version = version;
    return row;
  };
  for (const HeldShard& shard : held_) {
    if (shard.bytes_only) continue;
    RestingVersion& row = entry(shard.key.version);
    row.step = shard.step;
    row.ranks = shard.key.ranks;
  }
  for (auto& [key, row] : all) {
    const auto is_whole = [&](std::optional<bool> copies) {
      const auto plan = planner(row.version.number, false, copies).next();
      return plan && plan->source == RestartPlan::Source::shards && plan->version == row.version;
    };
    if (is_whole(false)) row.local = Completeness::complete;
    if (is_whole(true)) {
      row.group = Completeness::complete;
    } else if (row.local != Completeness::complete && is_whole({})) {
      row.group = Completeness::rebuildable;
    }
  }
  for (const StoredVersion& stored : stored_) {
    RestingVersion& row = entry(stored.version);
    row.step = stored.step;
    row.ranks = std::max(row.ranks, stored.ranks);
    row.external = Completeness::complete;
  }
  std::vector<RestingVersion> rows;
  for (auto& [key, row] : all) rows.push_back(std::move(row));
  return rows;
}

Result<WholeVersion> RestingCheckpoints::whole_from_shards(const RestartPlan& plan, std::vector<BadShard>& bad) const {
  FolderSource source(*folders_);
  FRESHET_ASSIGN(const ShardedVersion version, ShardedVersion::open(source, plan, 0, bad));
  WholeVersion whole{.version = plan.version, .step = plan.step, .from = Level::local};
  std::vector<WantedPiece> wanted;
  for (const LaidTensor& tensor : version.tensors().tensors) {
    whole.specs.push_back(tensor.spec);
    whole.bytes.emplace_back(tensor.spec.bytes());
  }
  for (std::uint32_t i = 0; i < whole.bytes.size(); ++i) {
    const std::uint64_t bytes = whole.bytes[i].size();
    if (bytes == 0) continue;
    wanted.push_back(
        {.piece = {.tensor = i, .count = 1, .stride = bytes, .begin = 0, .length = bytes}, .out = whole.bytes[i]});
  }
  FRESHET_ASSIGN([[maybe_unused]] const auto fetched, version.fetch(source, wanted, bad));
  return whole;
}

Result<WholeVersion> RestingCheckpoints::whole_from_repository(const RestartPlan& plan) const {
  FRESHET_ASSIGN(const VersionRecord record, repository_->get({folders_->model(), plan.version.number}));
  WholeVersion whole{.version = plan.version, .step = plan.step, .from = Level::external};
  std::vector<Repository::TensorRead> reads;
  for (const TensorSpec& spec : record.manifest.architecture->tensors()) {
    whole.specs.push_back(spec);
    whole.bytes.emplace_back(spec.bytes());
  }
  for (std::uint32_t i = 0; i < whole.bytes.size(); ++i) reads.push_back({.tensor = i, .out = whole.bytes[i]});
  FRESHET_TRY(repository_->read(record, reads));
  return whole;
}

Result<WholeVersion> RestingCheckpoints::get(std::optional<VersionNumber> number) const {
  RestartPlanner plans = planner(number, true);
  for (;;) {
    FRESHET_ASSIGN(const RestartPlan plan, plans.next());
    std::vector<BadShard> bad;
    Result<WholeVersion> whole = fail(Code::not_found, "");
    if (plan.source == RestartPlan::Source::nothing) {
      std::string why;
      for (const std::string& note : plan.notes) why += (why.empty() ? ": " : "; ") + note;
      return fail(why.empty() ? Code::not_found : Code::corrupt,
                  format("there is no version of {} that can be completed{}", folders_->model(), why));
    }
    if (plan.source == RestartPlan::Source::shards) {
      whole = whole_from_shards(plan, bad);
    } else {
      whole = whole_from_repository(plan);
      if (!whole) bad.push_back({Holder{.version = plan.version}, whole.error().message()});
    }
    if (whole) {
      whole->notes = plan.notes;
      return whole;
    }
    if (bad.empty()) return whole;
    plans.cross_off(plan.version, bad, plan.source);
  }
}

Result<RestingCheckpoints::Audit> RestingCheckpoints::verify() const {
  Audit audit;
  for (const std::string& reason : damaged_) audit.corrupt.push_back({.reason = reason});
  // Chunks that several versions share are read once.
  std::set<std::tuple<ShardKey, std::uint64_t>> checked;
  for (const HeldShard& shard : held_) {
    if (shard.bytes_only) continue;
    const auto say = [&](std::string tensor, std::string reason) {
      audit.corrupt.push_back({shard.key.version.number, shard.key.rank, std::move(tensor), std::move(reason)});
    };
    const auto bytes = folders_->read_head(shard.key);
    const auto head = bytes ? decode_shard_head(*bytes) : fail(bytes.error());
    const auto encoded = head ? folders_->read_table(head->tensors) : fail(head.error());
    const auto table = encoded ? TensorTable::decode(*encoded, head->tensors) : fail(encoded.error());
    if (!table) {
      say("", table.error().message());
      continue;
    }
    if (const Status fits = check_table(**table, shard.key.ranks); !fits) {
      say("", fits.error().message());
      continue;
    }
    const auto pieces = stored_pieces((*table)->tensors, shard.key.ranks, shard.key.rank);
    if (const Status fits = check_records(*head, pieces); !fits) {
      say("", fits.error().message());
      continue;
    }
    std::uint64_t chunk = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::string& name = (*table)->tensors[pieces[i].piece.tensor].spec.name;
      const ShardKey store{head->versions[head->records[i].store], shard.key.rank, shard.key.ranks};
      bool told = false;
      for (std::uint64_t at = 0; at < pieces[i].piece.bytes(); at += kChunkBytes, ++chunk) {
        const ByteRange range{head->records[i].offset + at, std::min(kChunkBytes, pieces[i].piece.bytes() - at)};
        if (!checked.emplace(store, range.offset).second) continue;
        const auto read = folders_->read(store, std::span(&range, 1));
        audit.checked_bytes += range.bytes;
        if (told || (read && digest_of(*read) == head->digests[chunk])) continue;
        told = true;
        say(name, read ? format("bytes {} to {} of this rank's part are not what was written", at, at + range.bytes)
                       : read.error().message());
      }
    }
  }
  for (const StoredVersion& stored : stored_) {
    FRESHET_ASSIGN(const VerifyReport report,
                   repository_->verify(VersionName{folders_->model(), stored.version.number}, {}));
    audit.checked_bytes += report.checked_bytes;
    for (const VerifyReport::Corrupt& corrupt : report.corrupt) {
      audit.corrupt.push_back({corrupt.version.number, 0, corrupt.tensor, corrupt.reason});
    }
  }
  return audit;
}

Result<std::vector<RestingVersion>> RestingCheckpoints::drain() {
  if (external_ == nullptr) return refuse("a repository is needed: --external");
  FRESHET_ASSIGN(const std::vector<RestingVersion> rows, list());
  VersionNumber newest = 0;
  for (const StoredVersion& stored : stored_) newest = std::max(newest, stored.version.number);
  std::vector<RestingVersion> brought;
  FolderSource source(*folders_);
  Pace pace(0);
  for (RestingVersion row : rows) {
    const bool is_there = row.local != Completeness::incomplete || row.group != Completeness::incomplete;
    if (!is_there || row.version.number <= newest) continue;
    RestartPlanner plans = planner(row.version.number, false);
    for (;;) {
      const Result<RestartPlan> plan = plans.next();
      if (!plan) break;  // Damaged: an older or newer one may do.
      std::vector<BadShard> bad;
      const auto bring = [&]() -> Status {
        FRESHET_ASSIGN(const ShardedVersion version, ShardedVersion::open(source, *plan, 0, bad));
        return external_->put(version, source, pace, bad, {}, {});
      };
      const Status done = bring();
      if (done) {
        row.external = Completeness::complete;
        brought.push_back(row);
        break;
      }
      if (bad.empty()) return fail(done.error());
      plans.cross_off(plan->version, bad, plan->source);
    }
  }
  return brought;
}

}  // namespace freshet::levels
