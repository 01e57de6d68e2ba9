// SPDX-License-Identifier: Apache-2.0
#pragma once

/// "Which stored versions share the longest prefix with this architecture?"
///
/// The longest common prefix of a query G and a version A is the set of G's layers whose slot ids A has (core/graph.h).
/// It is closed under ancestors, so it is what can be transferred. Best is who has most of it in the query's objective;
/// among equals, who has the higher quality (none is lowest), then the later commit, then the smaller name. Whose
/// prefix is empty in the objective is no answer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/manifest.h"
#include "repo/match/graph.h"
#include "repo/pin_terms.h"

namespace freshet {

enum class Objective : std::uint8_t { layers, parametric, bytes };
std::string_view name_of(Objective objective);
std::optional<Objective> objective_named(std::string_view name);
std::uint64_t weight(Objective objective, const LcpSize& size);

struct MatchQuery {
  std::shared_ptr<const MatchGraph> graph;  ///< Never null in a valid query.
  Objective objective = Objective::layers;
  std::uint32_t top = 1;                       ///< How many rows, best first; 1 to kMatchTopMax.
  bool any = false;                            ///< Versions without weights, too.
  std::optional<double> least_quality;         ///< Versions that have a quality, and no lower one.
  Tags tags;                                   ///< Versions that have all of these.
  std::optional<VersionName> exclude_lineage;  ///< Neither this version nor any of its ancestors. Number 0: the newest.
  std::string pin_by;  ///< Not empty: the best row is pinned by this holder before the answer is given.
  PinTerms pin_terms;  ///< How long that pin lasts.
  /// Of several providers: versions are left out that share layers whose tensors rest with a provider that is away, so
  /// that what is answered can be read. Unless it is said, so it is with `pin_by`, since who pins is going to read.
  std::optional<bool> readable;
};

inline constexpr std::uint32_t kMatchTopMax = 1 << 16;
inline constexpr std::size_t kMatchTagsMax = 64;

/// invalid_argument for a query that no repository answers: no graph, limits, a holder's name.
Status check(const MatchQuery& query);

struct MatchRow {
  VersionName version;
  VersionId id;
  LcpSize lcp;
  std::optional<double> quality;
  std::uint64_t commit = 0;  ///< The repository's sequence number of its put: later is greater.
  bool operator==(const MatchRow&) const = default;
};

struct MatchAnswer {
  std::vector<MatchRow> top;  ///< Best first; empty when no version shares anything.
  /// The answer is that of the repository after this commit: all that was put until then and nothing retired by then.
  /// Of several providers, the latest of theirs: commits there are times, in microseconds since 1970.
  std::uint64_t as_of = 0;
  /// Of several providers, those that did not answer, in words: their versions are in no row, and cannot be lent; and
  /// which versions of others were left out since a part of them rests there (MatchQuery::readable).
  std::vector<std::string> without;
  /// Of several providers, the `as_of` of each that the answer is of; `as_of` above is then the greatest of them.
  struct At {
    std::string provider;
    std::uint64_t as_of = 0;
    bool operator==(const At&) const = default;
  };
  std::vector<At> providers;
};

/// True when `left` is the better answer. A strict total order on rows of different versions; also what reduces the
/// answers of several providers to one.
bool better(Objective objective, const MatchRow& left, const MatchRow& right);

}  // namespace freshet
