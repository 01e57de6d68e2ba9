// SPDX-License-Identifier: Apache-2.0
#pragma once

/// "Which stored versions share the longest prefix with this architecture?"
///
/// The longest common prefix of a query G and a version A is the set of G's layers with a slot id that A has
/// (core/model/graph.h). The prefix is closed under ancestors, so its layers can be transferred. The best version has
/// the largest prefix in the query's objective. Among equal versions, the higher quality wins (none is lowest), then
/// the later commit, then the smaller name. A version with an empty prefix in the objective is no answer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/ids.h"
#include "core/model/manifest.h"
#include "repo/match/graph.h"
#include "repo/pins/pin_terms.h"

namespace freshet {

enum class Objective : std::uint8_t { layers, parametric, bytes };
std::string_view name_of(Objective objective);
std::optional<Objective> objective_named(std::string_view name);
std::uint64_t weight(Objective objective, const LcpSize& size);

struct MatchQuery {
  std::shared_ptr<const MatchGraph> graph;  ///< Never null in a valid query.
  Objective objective = Objective::layers;
  std::uint32_t top = 1;                       ///< How many rows, best first; 1 to kMatchTopMax.
  bool any = false;                            ///< Also versions without weights.
  std::optional<double> least_quality;         ///< Only versions with at least this quality.
  Tags tags;                                   ///< Only versions with all of these tags.
  std::optional<VersionName> exclude_lineage;  ///< Neither this version nor any of its ancestors. Number 0: the newest.
  std::string pin_by;  ///< Not empty: match() pins the best row for this holder before it answers.
  PinTerms pin_terms;  ///< The terms of this pin.
  /// With several providers: leaves out a version if a tensor of its shared layers is at a provider that is away, so
  /// that every row can be read. Default: true if pin_by is set, because a holder of a pin wants to read.
  std::optional<bool> readable;
};

inline constexpr std::uint32_t kMatchTopMax = 1 << 16;
inline constexpr std::size_t kMatchTagsMax = 64;
inline constexpr std::size_t kMatchTagBytesMax = std::size_t{1} << 20;  ///< Of a value that is searched for.

/// invalid_argument for a query that no repository answers: no graph, limits, a holder's name.
Status check(const MatchQuery& query);

struct MatchRow {
  VersionName version;
  VersionId id;
  LcpSize lcp;
  std::optional<double> quality;
  std::uint64_t commit = 0;  ///< The sequence number of the version's put: later is greater.
  bool operator==(const MatchRow&) const = default;
};

struct MatchAnswer {
  std::vector<MatchRow> top;  ///< Best first; empty if no version shares a layer.
  /// The number of a commit of the repository. The answer considers all versions that were put until this commit and
  /// not retired until then. With several providers, the latest of their commits. There, a commit is a time in
  /// microseconds since 1970, by the clock of its provider.
  std::uint64_t as_of = 0;
  /// The gaps of the answer; used with several providers only. There is one text for each provider that did not answer:
  /// no row is about a version of this provider. If MatchQuery::readable is set, the answer also lacks each version
  /// that has a part at such a provider. One more text names the first version of this kind, and counts the others.
  std::vector<std::string> without;
  /// With several providers, the `as_of` of each provider that answered; `as_of` above is then the greatest of them.
  struct At {
    std::string provider;
    std::uint64_t as_of = 0;
    bool operator==(const At&) const = default;
  };
  std::vector<At> providers;
};

/// True: `left` is the better answer. A strict total order on rows of different versions. It also merges the answers of
/// several providers.
bool better(Objective objective, const MatchRow& left, const MatchRow& right);

}  // namespace freshet
