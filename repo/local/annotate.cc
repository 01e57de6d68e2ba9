// SPDX-License-Identifier: Apache-2.0
/// What is said of a version after it was put: its quality, and tags. Its manifest stays as it was sealed; its row says
/// what came later, in one batch (repo/FORMAT.md, "Said later").

#include <algorithm>
#include <set>

#include "core/base/format.h"
#include "core/model/own_tags.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

tl::unexpected<Error> too_many_tags() {
  return fail(Code::out_of_space, format("more than {} tags were set after the put", kLaterTagsMax));
}

Status check(const Annotations& annotations) {
  if (annotations.sets_quality) FRESHET_TRY(check_quality(annotations.quality));
  if (annotations.tags.size() > kLaterTagsMax) return too_many_tags();
  std::set<std::string_view> keys;
  for (const auto& [key, value] : annotations.tags) {
    if (!keys.insert(key).second) return fail(Code::invalid_argument, format("tag {} is named twice", key));
    if (value && value->size() > kLaterTagBytesMax) {
      return fail(Code::invalid_argument, format("tag {} has {} bytes; a tag that is set after the put has at most {}",
                                                 key, value->size(), kLaterTagBytesMax));
    }
  }
  return {};
}

}  // namespace

Result<VersionRow> LocalRepository::Impl::annotated(const Catalog::Found& version,
                                                    const Annotations& annotations) const {
  VersionRow row = *version.row;
  if (annotations.sets_quality) row.quality = annotations.quality;
  if (annotations.tags.empty()) return row;
  FRESHET_ASSIGN(const Manifest manifest, manifests.get(version.name, row));
  for (const auto& [key, value] : annotations.tags) {
    if (value) FRESHET_TRY(check_own_tags({{key, *value}}));
    const auto same = [&key = key](const auto& tag) { return tag.first == key; };
    std::erase_if(row.later_tags, same);
    // What was never there need not be taken away.
    if (value || std::ranges::any_of(manifest.tags, same)) row.later_tags.emplace_back(key, value);
  }
  if (row.later_tags.size() > kLaterTagsMax) return too_many_tags();
  const Tags tags = with_later_tags(manifest.tags, row);
  FRESHET_TRY(check_annotations(manifest.metrics, tags));
  row.tags.clear();
  for (const auto& [key, value] : tags) row.tags.push_back(tag_digest(key, value));
  return row;
}

Status LocalRepository::annotate(const VersionName& name, const Annotations& annotations) {
  FRESHET_TRY(check(annotations));
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  const auto in_context = [&](Error error) {
    return fail(std::move(error).with_context("set " + to_string(found.name)));
  };
  Result<VersionRow> row = impl_->annotated(found, annotations);
  if (!row) return in_context(std::move(row).error());
  if (*row == *found.row) return {};
  // Of several providers' commits the later one is that of the later time, as far as their clocks agree.
  std::uint64_t commit = impl_->commit + 1;
  if (row->placed) commit = std::max(commit, static_cast<std::uint64_t>(impl_->clock.unix_ns() / 1000));
  const Status applied = impl_->apply({Backend::Put{version_key(found.name), encode(*row)}, commit_record(commit)});
  if (!applied) return in_context(Error(applied.error()));

  impl_->commit = commit;
  {
    const MutexLock lock(impl_->known.mutex);
    impl_->known.catalog.replace(found.name, *row);
  }
  impl_->ancestors.restate(*row, commit);
  return {};
}

}  // namespace freshet
