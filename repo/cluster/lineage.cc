// SPDX-License-Identifier: Apache-2.0
/// Who came from whom, where ancestor and child may be with different providers. The rows of whole models are fetched
/// when one of their versions is first met, and the line is followed among them.

#include <algorithm>
#include <deque>
#include <set>

#include "core/base/format.h"
#include "repo/cluster/impl.h"
#include "repo/lineage/provenance.h"

namespace freshet {
namespace {

/// Rows by name, fetched a model at a time.
class ProviderRows {
 public:
  explicit ProviderRows(const ClusterRepository& repository) : repository_(repository) {}

  /// Null when there is no such version.
  Result<const LineageRow*> row(const VersionName& name) {
    if (!fetched_.contains(name.model)) FRESHET_TRY(fetch(name.model));
    const auto found = rows_.find(name);
    return found == rows_.end() ? nullptr : &found->second;
  }

  /// Newest first, from the version itself. Damaged records may make a circle, which ends.
  Result<std::vector<LineageRow>> line(const VersionName& name) {
    FRESHET_ASSIGN(const LineageRow* at, row(name));
    if (at == nullptr) return fail(Code::not_found, "no version " + to_string(name));
    std::vector<LineageRow> line;
    std::set<VersionName> seen;
    while (at != nullptr && seen.insert(at->version).second) {
      line.push_back(*at);
      if (at->ancestor.model.empty() || at->ancestor.number == 0) break;
      FRESHET_ASSIGN(at, row(at->ancestor));
    }
    return line;
  }

  Status fetch_all() {
    FRESHET_ASSIGN(const std::vector<std::string> models, repository_.models());
    for (const std::string& model : models) {
      if (!fetched_.contains(model)) FRESHET_TRY(fetch(model));
    }
    return {};
  }
  const std::map<VersionName, LineageRow>& all() const { return rows_; }

 private:
  Status fetch(const std::string& model) {
    fetched_.insert(model);
    Result<std::vector<LineageRow>> rows = repository_.versions(model);
    if (!rows && rows.error().code() == Code::not_found) return {};
    if (!rows) return fail(std::move(rows).error());
    for (LineageRow& row : *rows) {
      VersionName name = row.version;
      rows_.insert_or_assign(std::move(name), std::move(row));
    }
    return {};
  }

  const ClusterRepository& repository_;
  std::set<std::string> fetched_;
  std::map<VersionName, LineageRow> rows_;
};

Result<VersionName> with_number(const ClusterRepository& repository, VersionName name) {
  if (name.number == 0) {
    FRESHET_ASSIGN(name.number, repository.latest(name.model));
  }
  return name;
}

}  // namespace

Result<std::vector<LineageRow>> ClusterRepository::lineage(const VersionName& name) const {
  FRESHET_ASSIGN(const VersionName full, with_number(*this, name));
  return ProviderRows(*this).line(full);
}

Result<std::optional<VersionName>> ClusterRepository::mrca(const VersionName& a, const VersionName& b) const {
  FRESHET_ASSIGN(const VersionName full_a, with_number(*this, a));
  FRESHET_ASSIGN(const VersionName full_b, with_number(*this, b));
  ProviderRows rows(*this);
  FRESHET_ASSIGN(const std::vector<LineageRow> line_a, rows.line(full_a));
  FRESHET_ASSIGN(const std::vector<LineageRow> line_b, rows.line(full_b));
  std::set<VersionName> of_a;
  for (const LineageRow& row : line_a) of_a.insert(row.version);
  for (const LineageRow& row : line_b) {
    if (of_a.contains(row.version)) return std::optional(row.version);
  }
  return std::optional<VersionName>();
}

Result<std::vector<LineageRow>> ClusterRepository::descendants(const VersionName& name) const {
  FRESHET_ASSIGN(const VersionName full, with_number(*this, name));
  ProviderRows rows(*this);
  FRESHET_TRY(rows.fetch_all());
  FRESHET_ASSIGN(const LineageRow* root, rows.row(full));
  if (root == nullptr) return fail(Code::not_found, "no version " + to_string(full));
  std::map<VersionName, std::vector<const LineageRow*>> children;
  for (const auto& [version, row] : rows.all()) {
    if (!row.ancestor.model.empty()) children[row.ancestor].push_back(&row);
  }
  std::vector<LineageRow> found;
  std::set<VersionName> seen{full};
  std::deque<VersionName> next{full};
  while (!next.empty()) {
    const VersionName at = next.front();
    next.pop_front();
    for (const LineageRow* child : children[at]) {
      if (!seen.insert(child->version).second) continue;
      found.push_back(*child);
      next.push_back(child->version);
    }
  }
  return found;
}

Result<std::vector<OwnerRow>> ClusterRepository::owners(const VersionName& name) const {
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(name));
  FRESHET_ASSIGN(std::vector<OwnerRow> rows,
                 at.home->ask([&](ProviderRepository& home) { return home.owners(at.name); }));
  for (OwnerRow& row : rows) {
    if (row.owner.number != 0) continue;
    FRESHET_ASSIGN(const std::optional<Impl::Located> owner, impl_->locate(row.segment.writer));
    if (owner) row.owner = owner->name;
  }
  return rows;
}

Result<std::vector<ContributorRow>> ClusterRepository::contributors(const VersionName& name) const {
  FRESHET_ASSIGN(const Impl::Located at, impl_->locate(name));
  FRESHET_ASSIGN(std::vector<ContributorRow> rows,
                 at.home->ask([&](ProviderRepository& home) { return home.contributors(at.name); }));
  FRESHET_ASSIGN(const std::vector<LineageRow> line, lineage(at.name));
  std::map<VersionName, std::size_t> distance;
  for (std::size_t i = 0; i < line.size(); ++i) distance.emplace(line[i].version, i);
  ProviderRows tombstones(*this);
  for (ContributorRow& row : rows) {
    if (row.version.number == 0) {
      FRESHET_ASSIGN(const std::optional<Impl::Located> writer, impl_->locate(row.id));
      if (!writer) continue;
      row.version = writer->name;
      FRESHET_ASSIGN(const LineageRow* stored, tombstones.row(row.version));
      row.retired = stored != nullptr && stored->retired;
    }
    row.is_ancestor = distance.contains(row.version);
  }
  const auto rank = [&](const ContributorRow& row) {
    const auto found = distance.find(row.version);
    return found == distance.end() ? line.size() : found->second;
  };
  std::ranges::stable_sort(rows, [&](const ContributorRow& a, const ContributorRow& b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return a.version != b.version ? a.version < b.version : a.id < b.id;
  });
  return rows;
}

Result<VersionDiff> ClusterRepository::diff(const VersionName& name_a, const VersionName& name_b) const {
  FRESHET_ASSIGN(const VersionRecord a, get(name_a));
  FRESHET_ASSIGN(const VersionRecord b, get(name_b));
  std::optional<Error> away;
  VersionDiff diff = diff_of(a, b, [&](const VersionId& writer) {
    const auto located = impl_->locate(writer);
    if (!located) away = located.error();
    return located && *located ? (*located)->name : VersionName{};
  });
  if (away) return fail(*away);
  return diff;
}

}  // namespace freshet
