// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/readable.h"

#include <utility>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kRecordsMax = 1024;

}  // namespace

Result<std::shared_ptr<const VersionRecord>> ClusterRepository::Impl::matched_record(const MatchRow& row,
                                                                                     const MemberPointer& home) const {
  {
    const MutexLock lock(mutex_);
    if (const auto known = matched_.find(row.id); known != matched_.end()) return known->second;
  }
  FRESHET_ASSIGN(VersionRecord record, home->ask([&](ProviderRepository& at) { return at.get(row.version); }));
  learn(record, home);
  auto kept = std::make_shared<const VersionRecord>(std::move(record));
  const MutexLock lock(mutex_);
  if (matched_.size() >= kRecordsMax) matched_.clear();
  matched_.emplace(row.id, kept);
  return kept;
}

}  // namespace freshet

namespace freshet::cluster {

ReadableRows::ReadableRows(const ClusterRepository::Impl& impl, const ClusterView& now, const MatchGraph& query,
                           std::vector<bool> away)
    : impl_(impl), now_(now), away_(std::move(away)) {
  for (const MatchGraph::Vertex& vertex : query.vertices()) slots_.insert(vertex.slot);
}

std::optional<std::string> ReadableRows::why_not(const FoundRow& found) const {
  const MemberPointer& home = now_.members[found.provider];
  const auto got = impl_.matched_record(found.row, home);
  if (!got && got.error().code() == Code::not_found) return std::nullopt;
  if (!got) return got.error().message();
  const VersionRecord& record = **got;
  if (!record.placed || !record.has_weights) return "";
  const Architecture& graph = *record.manifest.architecture;
  for (std::size_t i = 0; i < graph.layers().size(); ++i) {
    if (!slots_.contains(graph.slots()[i])) continue;
    for (const LayerTensor& tensor : graph.layers()[i].tensors) {
      const Result<MemberPointer> place = impl_.place_of(record, home, tensor.tensor);
      if (!place) return place.error().message();
      const std::size_t at = now_.index_of(*place);
      if (at >= away_.size() || !away_[at]) continue;
      return format("tensor {} is at {}, which is away", graph.tensors()[tensor.tensor].name, (*place)->label());
    }
  }
  return "";
}

std::vector<FoundRow> ReadableRows::keep(const std::vector<FoundRow>& rows, std::size_t most) {
  std::vector<FoundRow> kept;
  for (const FoundRow& one : rows) {
    if (kept.size() == most) break;
    has_stopped_ = looked_at_ == kLookedAtMax + most;
    if (has_stopped_) break;
    ++looked_at_;
    std::optional<std::string> why = why_not(one);
    if (!why) continue;
    if (why->empty()) {
      kept.push_back(one);
    } else if (left_out_++ == 0) {
      first_ = one.row.version;
      first_why_ = *std::move(why);
    }
  }
  return kept;
}

std::vector<std::string> ReadableRows::notes(bool more) const {
  std::vector<std::string> notes;
  if (left_out_ != 0) {
    const std::string others =
        left_out_ == 1 ? std::string() : format("; {} more are left out for similar reasons", left_out_ - 1);
    notes.push_back(
        format("{} is left out, because a part of it cannot be read now: {}{}", to_string(first_), first_why_, others));
  }
  if (more || has_stopped_) {
    notes.push_back(format("only the best {} versions were tried for reading; no others were looked at", looked_at_));
  }
  return notes;
}

}  // namespace freshet::cluster
