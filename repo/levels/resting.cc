// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/resting.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/base/format.h"
#include "repo/levels/parity/parity_maker.h"
#include "repo/levels/parity/shard_rebuild.h"

namespace freshet::levels {

namespace {

/// The folders, and what was rebuilt of what they miss, in memory.
class RebuildingSource final : public ShardSource {
 public:
  explicit RebuildingSource(const ShardFolders& folders) : folders_(folders) {}

  /// The next plan that is no rebuild: those are carried out.
  Result<RestartPlan> next_plan(RestartPlanner& planner) {
    for (;;) {
      FRESHET_ASSIGN(RestartPlan plan, planner.next());
      if (plan.source != RestartPlan::Source::rebuild) return plan;
      rebuild(plan, planner);
    }
  }

  Bytes head(const Holder& holder, std::uint32_t ranks) override {
    const Rebuilt* rebuilt = find(holder);
    return rebuilt == nullptr ? folders_.head(holder, ranks) : answer(rebuilt->head);
  }
  Bytes table(std::uint32_t holder, const Digest& digest) override { return folders_.table(holder, digest); }
  std::unique_ptr<Pending> read(const Holder& holder, std::uint32_t ranks, std::vector<ByteRange> ranges) override {
    const Rebuilt* rebuilt = find(holder);
    if (rebuilt == nullptr) return folders_.read(holder, ranks, std::move(ranges));
    std::vector<std::byte> bytes;
    for (const ByteRange& range : ranges) {
      if (range.offset > rebuilt->payload.size() || range.bytes > rebuilt->payload.size() - range.offset) {
        return done(fail(Code::corrupt, "the range is outside of the shard"));
      }
      const auto* from = rebuilt->payload.data() + range.offset;
      bytes.insert(bytes.end(), from, from + range.bytes);
    }
    return done(answer(std::move(bytes)));
  }

 private:
  struct Rebuilt {
    std::vector<std::byte> head;
    std::vector<std::byte> payload;
  };

  /// What the plan asks for; tells the planner how it went.
  void rebuild(const RestartPlan& plan, RestartPlanner& planner) {
    std::vector<BadShard> bad;
    for (const RebuildTask& task : plan.rebuilds) {
      const Status rebuilt = rebuild_one(plan, task.shard_rank, bad);
      if (rebuilt) {
        bad.clear();
        continue;
      }
      if (bad.empty()) bad = parity_is_useless(plan, task.shard_rank, rebuilt.error());
      return planner.cross_off(plan.version, bad, plan.source);
    }
    planner.add_rebuilt(plan.version, plan.rebuilds);
  }

  Status rebuild_one(const RestartPlan& plan, std::uint32_t rank, std::vector<BadShard>& bad) {
    FRESHET_ASSIGN(const auto opened, ShardRebuild::open(*this, plan, rank, bad));
    Rebuilt rebuilt{.head = encode_shard_head(opened->header()), .payload = {}};
    for (;;) {
      FRESHET_ASSIGN(const std::optional<::freshet::Bytes> bytes, opened->next(bad));
      if (!bytes) break;
      rebuilt.payload.insert(rebuilt.payload.end(), bytes->begin(), bytes->end());
    }
    rebuilt_[{plan.version, rank}] = std::move(rebuilt);
    return {};
  }
  const Rebuilt* find(const Holder& holder) const {
    const auto at = rebuilt_.find({holder.version, holder.shard_rank});
    return holder.kind == ShardKind::copy && at != rebuilt_.end() ? &at->second : nullptr;
  }

  FolderSource folders_;
  std::map<std::pair<Version, std::uint32_t>, Rebuilt> rebuilt_;
};

}  // namespace

std::string_view name_of(Completeness completeness) {
  constexpr std::array<std::string_view, 3> kNames = {"incomplete", "rebuildable", "complete"};
  return kNames[static_cast<std::size_t>(completeness)];
}

bool RestingVersion::is_restorable() const {
  return local != Completeness::incomplete || group != Completeness::incomplete || external != Completeness::incomplete;
}

Result<RestingCheckpoints> RestingCheckpoints::open(std::vector<std::string> folders,
                                                    Result<std::shared_ptr<Repository>> repository,
                                                    const std::string& model) {
  if (!repository && repository.error().code() != Code::corrupt) return fail(repository.error());
  RestingCheckpoints opened;
  FRESHET_ASSIGN(opened.folders_, ShardFolders::open_to_read(std::move(folders), model));
  opened.held_ = opened.folders_->scan(&opened.damaged_);
  if (const auto promises = opened.folders_->promises()) {
    opened.acknowledged_ = promises->acknowledged;
  } else {
    opened.damaged_.push_back(promises.error().message());
  }
  if (!repository) {
    opened.damage_of_repository_ = {Error(repository.error()).with_context("the repository is damaged").message()};
  } else if (*repository != nullptr) {
    opened.repository_ = *repository;
    opened.external_ = std::make_unique<ExternalLevel>(*std::move(repository), model);
    FRESHET_ASSIGN(opened.stored_, opened.external_->versions(&opened.damage_of_repository_));
  }
  opened.damaged_.insert(opened.damaged_.end(), opened.damage_of_repository_.begin(),
                         opened.damage_of_repository_.end());
  return opened;
}

RestartPlanner RestingCheckpoints::planner(std::optional<VersionNumber> number, bool with_repository,
                                           const Kinds& kinds) const {
  Inventory inventory;
  for (const HeldShard& shard : held_) {
    if (kinds.contains(shard.kind)) inventory.held.push_back(offered(shard));
  }
  RestartChoice choice;
  choice.version = number;
  const bool has_damage = with_repository && !damage_of_repository_.empty();
  if (has_damage && !acknowledged_.empty()) inventory.acknowledged = acknowledged_;
  RestartPlanner planner({std::move(inventory)}, with_repository ? stored_ : std::vector<StoredVersion>(), choice);
  for (std::size_t i = 0; has_damage && i < damage_of_repository_.size(); ++i) {
    planner.pass_over_repository(damage_of_repository_[i]);
  }
  return planner;
}

Result<std::vector<RestingVersion>> RestingCheckpoints::list() const {
  std::map<std::pair<VersionNumber, VersionId>, RestingVersion> all;
  const auto entry = [&](const Version& version) -> RestingVersion& {
    RestingVersion& row = all[{version.number, version.id}];
    row.version = version;
    return row;
  };
  for (const HeldShard& shard : held_) {
    if (shard.bytes_only || shard.kind == ShardKind::parity) continue;
    RestingVersion& row = entry(shard.key.version);
    row.step = shard.step;
    row.ranks = shard.key.ranks;
  }
  for (auto& [key, row] : all) {
    using Source = RestartPlan::Source;
    const auto plan_with = [&](const Kinds& kinds) {
      const auto plan = planner(row.version.number, false, kinds).next();
      return plan && plan->version == row.version ? plan->source : Source::nothing;
    };
    if (plan_with({ShardKind::own}) == Source::shards) row.local = Completeness::complete;
    const bool all_copied = plan_with({ShardKind::copy}) == Source::shards;
    if (all_copied || (row.local == Completeness::complete && has_all_parity(row))) {
      row.group = Completeness::complete;
    } else if (row.local != Completeness::complete && plan_with(all_kinds()) != Source::nothing) {
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

/// Every rank's parity, and what it inherits.
bool RestingCheckpoints::has_all_parity(const RestingVersion& row) const {
  std::set<std::pair<Version, std::uint32_t>> there;
  for (const HeldShard& shard : held_) {
    if (shard.kind == ShardKind::parity) there.emplace(shard.key.version, shard.key.rank);
  }
  std::set<std::uint32_t> whole;
  for (const HeldShard& shard : held_) {
    const bool is_it = shard.kind == ShardKind::parity && !shard.bytes_only && shard.key.version == row.version;
    if (!is_it) continue;
    const auto is_there = [&](const Version& needed) { return there.contains({needed, shard.key.rank}); };
    if (std::ranges::all_of(shard.needs, is_there)) whole.insert(shard.key.rank);
  }
  return whole.size() == row.ranks;
}

Result<WholeVersion> RestingCheckpoints::whole_from_shards(ShardSource& source, const RestartPlan& plan,
                                                           std::vector<BadShard>& bad) const {
  FRESHET_ASSIGN(const ShardedVersion version, ShardedVersion::open(source, plan, 0, bad));
  WholeVersion whole{.version = plan.version, .step = plan.step, .from = Level::local, .notes = plan.notes};
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

/// All tensors at once: a repository reads them side by side, each into its place.
Result<WholeVersion> RestingCheckpoints::whole_from_repository(const RestartPlan& plan,
                                                               std::vector<BadShard>& bad) const {
  WholeVersion whole{.version = plan.version, .step = plan.step, .from = Level::external, .notes = plan.notes};
  const auto read_all = [&]() -> Status {
    FRESHET_ASSIGN(const VersionRecord record, repository_->get({folders_->model(), plan.version.number}));
    for (const TensorSpec& spec : record.manifest.architecture->tensors()) {
      whole.specs.push_back(spec);
      whole.bytes.emplace_back(spec.bytes());
    }
    std::vector<Repository::TensorRead> reads;
    for (std::uint32_t i = 0; i < whole.bytes.size(); ++i) reads.push_back({.tensor = i, .out = whole.bytes[i]});
    return repository_->read(record, reads);
  };
  const Status read = read_all();
  if (read) return whole;
  if (!is_no_damage(read.error())) bad.push_back(bad_at(plan.holders.front(), read.error().message()));
  return fail(read.error());
}

Result<WholeVersion> RestingCheckpoints::get(std::optional<VersionNumber> number) const {
  RestartPlanner plans = planner(number, true, all_kinds());
  RebuildingSource source(*folders_);
  for (;;) {
    FRESHET_ASSIGN(const RestartPlan plan, source.next_plan(plans));
    if (plan.source == RestartPlan::Source::nothing) {
      std::string why;
      for (const std::string& note : plan.notes) why += (why.empty() ? ": " : "; ") + note;
      return fail(why.empty() ? Code::not_found : Code::corrupt,
                  format("there is no version of {} that can be completed{}", folders_->model(), why));
    }
    std::vector<BadShard> bad;
    Result<WholeVersion> whole = plan.source == RestartPlan::Source::repository ? whole_from_repository(plan, bad)
                                                                                : whole_from_shards(source, plan, bad);
    if (whole || bad.empty()) return whole;
    plans.cross_off(plan.version, bad, plan.source);
  }
}

VerifyReport::Corrupt RestingCheckpoints::damage(const HeldShard& shard, std::string tensor, std::string reason) const {
  return {.version = {folders_->model(), shard.key.version.number},
          .tensor = std::move(tensor),
          .reason = std::move(reason),
          .record = {},
          .rank = shard.key.rank};
}

void RestingCheckpoints::verify_shard(const HeldShard& shard, VerifyReport& report,
                                      std::set<CheckedChunk>& checked) const {
  const auto say = [&](std::string tensor, std::string reason) {
    report.corrupt.push_back(damage(shard, std::move(tensor), std::move(reason)));
  };
  const Result<DescribedShard> described = folders_->describe(shard.key, shard.kind);
  if (!described) return say("", described.error().message());
  const auto& [head, cut] = *described;
  const std::vector<StoredPiece>& pieces = cut.pieces;
  std::uint64_t chunk = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string& name = cut.table->tensors[pieces[i].piece.tensor].spec.name;
    const ShardKey store{head.versions[head.records[i].store], shard.key.rank, shard.key.ranks};
    bool told = false;
    for (std::uint64_t at = 0; at < pieces[i].piece.bytes(); at += kChunkBytes, ++chunk) {
      const ByteRange range{head.records[i].offset + at, std::min(kChunkBytes, pieces[i].piece.bytes() - at)};
      if (!checked.emplace(store, shard.kind, range.offset).second) continue;
      const auto read = folders_->read(store, std::span(&range, 1), shard.kind);
      report.checked_bytes += range.bytes;
      if (told || (read && digest_of(*read) == head.digests[chunk])) continue;
      told = true;
      say(name, read ? format("bytes {} to {} of this rank's part differ from the written ones", at, at + range.bytes)
                     : read.error().message());
    }
  }
}

void RestingCheckpoints::verify_parity(const HeldShard& shard, VerifyReport& report,
                                       std::set<CheckedChunk>& checked) const {
  const auto say = [&](const std::string& reason) { report.corrupt.push_back(damage(shard, "", "parity: " + reason)); };
  const auto head = folders_->read_header(shard.key, shard.kind);
  if (!head) return say(head.error().message());
  const ByteRange trailer = parity_trailer(*head);
  const auto listed = folders_->read(shard.key, std::span(&trailer, 1), shard.kind);
  const auto digests = listed ? parity_digests(*head, *listed) : fail(listed.error());
  if (!digests) return say(digests.error().message());
  const std::vector<ByteRange> blocks = head->parity->blocks();
  for (std::uint64_t block = 0; block < digests->size(); ++block) {
    const PieceRecord& record = head->records[block];
    const ShardKey store{head->versions[record.store], shard.key.rank, shard.key.ranks};
    const ByteRange range{record.offset, blocks[block].bytes};
    if (!checked.emplace(store, ShardKind::parity, range.offset).second) continue;
    const auto read = folders_->read(store, std::span(&range, 1), shard.kind);
    report.checked_bytes += range.bytes;
    if (read && digest_of(*read) == (*digests)[block]) continue;
    return say(read ? format("block {} differs from the written one", block) : read.error().message());
  }
}

Status RestingCheckpoints::verify(VerifyReport& report, std::optional<VersionNumber> number) const {
  for (const std::string& reason : damaged_) report.corrupt.push_back({.reason = reason, .record = folders_->model()});
  // Chunks that several versions share are read once.
  std::set<CheckedChunk> checked;
  for (const HeldShard& shard : held_) {
    if (shard.bytes_only || (number && shard.key.version.number != *number)) continue;
    if (shard.kind == ShardKind::parity) {
      verify_parity(shard, report, checked);
    } else {
      verify_shard(shard, report, checked);
    }
  }
  for (const StoredVersion& stored : stored_) {
    if (number && stored.version.number != *number) continue;
    FRESHET_ASSIGN(const VerifyReport there,
                   repository_->verify(VersionName{folders_->model(), stored.version.number}, {}));
    report.checked_bytes += there.checked_bytes;
    report.corrupt.insert(report.corrupt.end(), there.corrupt.begin(), there.corrupt.end());
  }
  return {};
}

Result<std::vector<RestingVersion>> RestingCheckpoints::drain() {
  if (external_ == nullptr) return refuse("a repository is needed: --external");
  FRESHET_ASSIGN(const std::vector<RestingVersion> rows, list());
  VersionNumber newest = 0;
  for (const StoredVersion& stored : stored_) newest = std::max(newest, stored.version.number);
  std::vector<RestingVersion> brought;
  Pace pace(0);
  for (RestingVersion row : rows) {
    const bool is_there = row.local != Completeness::incomplete || row.group != Completeness::incomplete;
    if (!is_there || row.version.number <= newest) continue;
    RestartPlanner plans = planner(row.version.number, false, all_kinds());
    RebuildingSource source(*folders_);
    for (;;) {
      const Result<RestartPlan> plan = source.next_plan(plans);
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
