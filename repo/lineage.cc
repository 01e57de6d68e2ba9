/// Who came from whom, answered from the catalog alone.

#include <unordered_set>

#include "repo/local_repository.h"

namespace freshet {
namespace {

// The ancestor's name here. One that is not stored goes by the name that the manifest gave, unless another version has
// it.
VersionName ancestor_name(const Catalog& catalog, const VersionRow& row) {
  if (!row.ancestor) return {};
  if (auto stored = catalog.find(*row.ancestor)) return *std::move(stored);
  return catalog.has_name(row.ancestor_name) ? VersionName{} : row.ancestor_name;
}

LineageRow lineage_row(const Catalog& catalog, VersionName name, const VersionRow& row) {
  return {.version = std::move(name),
          .ancestor = ancestor_name(catalog, row),
          .inherited_bytes = row.inherited_bytes,
          .own_bytes = row.own_bytes,
          .quality = row.quality,
          .retired = row.retired};
}

}  // namespace

Result<std::vector<LineageRow>> LocalRepository::lineage(const VersionName& name) const {
  const Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  const Catalog& catalog = impl.catalog;
  FRESHET_ASSIGN(Catalog::Found at, catalog.find(name));
  std::vector<LineageRow> rows;
  std::unordered_set<VersionId> seen;  // Ancestors come from outside: a circle of them must end.
  while (at.row != nullptr && seen.insert(at.row->id).second) {
    rows.push_back(lineage_row(catalog, at.name, *at.row));
    if (!at.row->ancestor) break;
    const auto ancestor = catalog.find(*at.row->ancestor);
    if (!ancestor) break;
    at = {.name = *ancestor, .row = catalog.row_of(*at.row->ancestor)};
  }
  return rows;
}

Result<std::vector<LineageRow>> LocalRepository::versions(const std::string& model) const {
  const Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  const Catalog& catalog = impl.catalog;
  const auto found = catalog.models().find(model);
  if (found == catalog.models().end()) {
    return fail(catalog.find(VersionName{.model = model}).error());
  }
  std::vector<LineageRow> rows;
  for (const auto& [number, entry] : found->second) {
    VersionName name{.model = model, .number = number};
    rows.push_back(entry.row != nullptr ? lineage_row(catalog, std::move(name), *entry.row)
                                        : LineageRow{.version = std::move(name)});
  }
  return rows;
}

}  // namespace freshet
