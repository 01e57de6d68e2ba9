/// The best ancestor among the versions of all providers: asked of each at the same time, reduced by the full order of
/// answers, and pinned at its home, which says whether it is still there.

#include <algorithm>
#include <set>

#include "core/format.h"
#include "repo/cluster/cluster_impl.h"

namespace freshet {
namespace {

constexpr int kTriesMax = 16;

struct Row {
  MatchRow row;
  std::size_t provider;
};

}  // namespace

Result<MatchAnswer> ClusterRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  if (query.one_for_all) {
    FRESHET_ASSIGN(std::optional<MatchAnswer> answer, impl_->match_by_one(query));
    if (answer) return *std::move(answer);
  }
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
  each.one_for_all = false;
  // With so many rows more, whoever is left out cannot push anybody else out of the answer.
  each.top = static_cast<std::uint32_t>(std::min<std::size_t>(kMatchTopMax, query.top + excluded.size()));
  if (each.top < query.top + excluded.size()) {
    return fail(Code::invalid_argument,
                format("match: a line of {} versions and {} rows are too many together", excluded.size(), query.top));
  }

  for (int tries = 0; tries < kTriesMax; ++tries) {
    const std::shared_ptr<const ClusterView> now = impl_->view();
    MatchAnswer answer;
    std::vector<Row> rows;
    std::optional<Error> away;
    const auto answers = ask_all(*now, [&](Repository& at) { return at.match(each); });
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i]) {
        if (!is_away(answers[i].error())) return fail(answers[i].error());
        away = answers[i].error();
        answer.without.push_back(away->message());
        continue;
      }
      answer.as_of = std::max(answer.as_of, answers[i]->as_of);
      answer.providers.push_back({.provider = now->members[i]->provider().id, .as_of = answers[i]->as_of});
      for (const MatchRow& row : answers[i]->top) {
        if (!excluded.contains(row.version)) rows.push_back({row, i});
      }
    }
    if (answer.without.size() == answers.size()) return fail(*away);
    std::ranges::sort(rows, [&](const Row& a, const Row& b) { return better(query.objective, a.row, b.row); });
    if (rows.size() > query.top) rows.resize(query.top);
    for (const Row& row : rows) {
      impl_->learn(row.row.version, row.row.id, now->members[row.provider]);
      answer.top.push_back(row.row);
    }
    if (query.pin_by.empty() || rows.empty()) return answer;

    const Row& best = rows.front();
    const Status pinned =
        now->members[best.provider]->ask([&](Repository& at) { return at.pin(best.row.version, query.pin_by, terms); });
    if (pinned) return answer;
    // Retired, or lost with its provider, since it answered: what is best now is asked for anew.
    if (pinned.error().code() != Code::not_found && !is_away(pinned.error())) return fail(pinned.error());
  }
  return fail(Code::unavailable, "match: what is best is retired faster than it can be pinned");
}

}  // namespace freshet
