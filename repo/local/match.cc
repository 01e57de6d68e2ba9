// SPDX-License-Identifier: Apache-2.0
/// The best ancestor for a new model.

#include "repo/local/local_repository.h"

namespace freshet {

void LocalRepository::prepare_match() { impl_->ancestors.need(); }

Result<MatchAnswer> LocalRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  std::optional<VersionId> excluded;
  if (query.exclude_lineage) {
    FRESHET_ASSIGN(const Catalog::Found found, impl_->find(*query.exclude_lineage));
    excluded = found.row->id;
  }
  impl_->ancestors.need();
  if (query.pin_by.empty()) return impl_->if_current(impl_->ancestors.match(query, excluded));

  // Whoever retires takes the turn as well, so what is found here is still there when it is pinned.
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  MatchAnswer answer = impl_->ancestors.match(query, excluded);
  if (!answer.top.empty()) FRESHET_TRY(impl_->add_pin(answer.top.front().version, query.pin_by, query.pin_terms));
  return answer;
}

}  // namespace freshet
