// SPDX-License-Identifier: Apache-2.0
/// The best ancestor among the versions of all providers: asked of each at the same time, reduced by the full order of
/// answers, and pinned at its home, which says whether it is still there. While a provider is away, whoever is going to
/// read is offered what can be read without it.

#include <algorithm>
#include <set>

#include "core/base/format.h"
#include "repo/cluster/impl.h"
#include "repo/cluster/readable.h"

namespace freshet {
namespace {

using cluster::FoundRow;

constexpr int kMatchTriesMax = 16;
/// Rows that are asked for in the place of those that may be left out: some at first, then so many times more.
constexpr std::uint32_t kSpareRows = 16;
constexpr std::uint32_t kWiden = 8;

bool is_to_be_readable(const MatchQuery& query) { return query.readable.value_or(!query.pin_by.empty()); }

bool any_is_away(const ClusterView& view) {
  return std::ranges::any_of(view.members, [](const MemberPointer& member) { return member->is_away(); });
}

/// What all providers that answered have, best first.
struct Gathered {
  MatchAnswer answer;  ///< But for the rows.
  std::vector<FoundRow> rows;
  std::vector<bool> away;  ///< By provider.
  /// Somebody may have rows that are worse than this one and were not asked for. None are better.
  std::optional<MatchRow> horizon;
};

Result<Gathered> gather(const ClusterView& now, const MatchQuery& each, const std::set<VersionName>& excluded) {
  Gathered all;
  std::optional<Error> away;
  const auto answers = ask_all(now, [&](ProviderRepository& at) { return at.match(each); });
  for (std::size_t i = 0; i < answers.size(); ++i) {
    all.away.push_back(!answers[i]);
    if (!answers[i]) {
      if (!is_away(answers[i].error())) return fail(answers[i].error());
      away = answers[i].error();
      all.answer.without.push_back(away->message());
      continue;
    }
    const MatchAnswer& one = *answers[i];
    all.answer.as_of = std::max(all.answer.as_of, one.as_of);
    all.answer.providers.push_back({.provider = now.members[i]->provider().id, .as_of = one.as_of});
    if (one.top.size() == each.top && (!all.horizon || better(each.objective, one.top.back(), *all.horizon))) {
      all.horizon = one.top.back();
    }
    for (const MatchRow& row : one.top) {
      if (!excluded.contains(row.version)) all.rows.push_back({row, i});
    }
  }
  if (all.answer.without.size() == answers.size()) return fail(*away);
  std::ranges::sort(all.rows,
                    [&](const FoundRow& a, const FoundRow& b) { return better(each.objective, a.row, b.row); });
  return all;
}

}  // namespace

Result<MatchAnswer> ClusterRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  const bool readable = is_to_be_readable(query);
  std::set<VersionName> excluded;
  if (query.exclude_lineage) {
    FRESHET_ASSIGN(const std::vector<LineageRow> line, lineage(*query.exclude_lineage));
    for (const LineageRow& row : line) excluded.insert(row.version);
  }
  MatchQuery each = query;
  each.pin_by.clear();
  PinTerms terms;
  if (!query.pin_by.empty()) {
    FRESHET_ASSIGN(terms, impl_->terms_of(query.pin_terms));
  }
  each.exclude_lineage.reset();
  each.readable.reset();
  // With so many rows more, whoever is left out cannot push anybody else out of the answer.
  each.top = static_cast<std::uint32_t>(std::min<std::size_t>(kMatchTopMax, query.top + excluded.size()));
  if (each.top < query.top + excluded.size()) {
    return fail(Code::invalid_argument,
                format("match: a line of {} versions and {} rows are too many together", excluded.size(), query.top));
  }
  if (readable && any_is_away(*impl_->view())) each.top = std::min(kMatchTopMax, each.top + kSpareRows);

  for (int tries = 0; tries < kMatchTriesMax; ++tries) {
    const std::shared_ptr<const ClusterView> now = impl_->view();
    FRESHET_ASSIGN(Gathered found, gather(*now, each, excluded));
    MatchAnswer& answer = found.answer;
    std::vector<FoundRow>& rows = found.rows;
    if (readable && !answer.without.empty()) {
      cluster::ReadableRows can(*impl_, *now, *query.graph, found.away);
      rows = can.keep(rows, query.top);
      // Who was left out made room for rows that were not asked for. They rank behind the horizon.
      const auto is_beyond = [&](const FoundRow& one) { return better(each.objective, *found.horizon, one.row); };
      const bool more = found.horizon && (rows.size() < query.top || is_beyond(rows.back()));
      if (more && !can.has_stopped() && each.top < kMatchTopMax) {
        each.top = each.top > kMatchTopMax / kWiden ? kMatchTopMax : each.top * kWiden;
        continue;
      }
      if (more) std::erase_if(rows, is_beyond);
      for (std::string& note : can.notes(more)) answer.without.push_back(std::move(note));
    }
    if (rows.size() > query.top) rows.resize(query.top);
    for (const FoundRow& row : rows) {
      impl_->learn(row.row.version, row.row.id, now->members[row.provider]);
      answer.top.push_back(row.row);
    }
    if (query.pin_by.empty() || rows.empty()) return std::move(answer);

    const FoundRow& best = rows.front();
    const Status pinned = now->members[best.provider]->ask(
        [&](ProviderRepository& at) { return at.pin(best.row.version, query.pin_by, terms); });
    if (pinned) return std::move(answer);
    // Retired, or lost with its provider, since it answered: what is best now is asked for anew.
    if (pinned.error().code() != Code::not_found && !is_away(pinned.error())) return fail(pinned.error());
  }
  return fail(Code::unavailable, "match: each best version was retired before it could be pinned; try again");
}

}  // namespace freshet
