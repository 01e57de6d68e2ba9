// SPDX-License-Identifier: Apache-2.0
#include "repo/match/query.h"

#include <array>
#include <cmath>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/records/records.h"

namespace freshet {
namespace {

constexpr std::array<std::string_view, 3> kObjectiveNames = {"layers", "parametric", "bytes"};

tl::unexpected<Error> refuse_query(std::string message) {
  return fail(Code::invalid_argument, "match: " + std::move(message));
}

}  // namespace

std::string_view name_of(Objective objective) { return kObjectiveNames[static_cast<std::size_t>(objective)]; }

std::optional<Objective> objective_named(std::string_view name) {
  for (std::size_t i = 0; i < kObjectiveNames.size(); ++i) {
    if (kObjectiveNames[i] == name) return static_cast<Objective>(i);
  }
  return std::nullopt;
}

std::uint64_t weight(Objective objective, const LcpSize& size) {
  switch (objective) {
    case Objective::layers: return size.layers;
    case Objective::parametric: return size.parametric_layers;
    case Objective::bytes: return size.bytes;
  }
  return 0;
}

Status check(const MatchQuery& query) {
  if (query.graph == nullptr) return refuse_query("no graph");
  if (static_cast<std::size_t>(query.objective) >= kObjectiveNames.size()) return refuse_query("unknown objective");
  if (query.top == 0 || query.top > kMatchTopMax) {
    return refuse_query(format("{} rows were asked for; 1 to {} can be", query.top, kMatchTopMax));
  }
  if (query.tags.size() > kMatchTagsMax) {
    return refuse_query(format("{} tags, over the limit of {}", query.tags.size(), kMatchTagsMax));
  }
  for (const auto& [key, value] : query.tags) {
    if (key.size() <= kTagKeyBytesMax && value.size() <= kMatchTagBytesMax) continue;
    return refuse_query(format("a tag of {} and {} bytes is over the limit of {} and {}", key.size(), value.size(),
                               kTagKeyBytesMax, kMatchTagBytesMax));
  }
  if (query.least_quality && std::isnan(*query.least_quality)) return refuse_query("the least quality is not a number");
  if (query.exclude_lineage) FRESHET_TRY(check_model_name(query.exclude_lineage->model));
  if (!query.pin_by.empty()) FRESHET_TRY(check_label("a pin's holder", query.pin_by, kPinHolderBytesMax));
  return {};
}

bool better(Objective objective, const MatchRow& left, const MatchRow& right) {
  const std::uint64_t left_weight = weight(objective, left.lcp);
  const std::uint64_t right_weight = weight(objective, right.lcp);
  if (left_weight != right_weight) return left_weight > right_weight;
  if (left.quality.has_value() != right.quality.has_value()) return left.quality.has_value();
  if (left.quality && *left.quality != *right.quality) return *left.quality > *right.quality;
  if (left.commit != right.commit) return left.commit > right.commit;
  return left.version < right.version;
}

}  // namespace freshet
