// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/new_folder.h"

#include <system_error>
#include <vector>

#include "repo/provider_repository.h"
#include "repo/registrar/registrar_records.h"

namespace freshet::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "file://";

bool is_unused(const ProviderRepository& repository) {
  const auto models = repository.models();
  const auto referrers = repository.referrers();
  const auto placement = repository.shared_record(kPlacementKey);
  return models && models->empty() && referrers && referrers->empty() && placement && !placement->value;
}

}  // namespace

NewFolder::NewFolder(const std::string& place) {
  std::error_code error;
  folder_ = fs::absolute(place.starts_with(kScheme) ? place.substr(kScheme.size()) : place, error).lexically_normal();
  if (error) return;
  if (!folder_.has_filename()) folder_ = folder_.parent_path();  // "store/"
  const bool is_there = fs::exists(folder_, error);
  if (error) return;
  if (is_there) {
    for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      before_.insert(at->path().filename());
    }
    if (error) return;
  }
  was_repository_ = before_.contains("CURRENT");
  for (fs::path at = folder_; !fs::exists(at, error) && !error && at.has_relative_path(); at = at.parent_path()) {
    first_made_ = at;
  }
}

void NewFolder::remove_unused() const {
  if (was_repository_) return;
  // As its owner, so that nobody puts anything into it any more.
  auto backend = open_rocks_backend({.folder = folder_.string(), .create = false, .read_only = false});
  if (!backend) return;
  const auto repository = ProviderRepository::open(std::move(*backend), {});
  if (!repository || !is_unused(**repository)) return;
  std::error_code ignored;
  std::vector<fs::path> made;
  for (fs::directory_iterator at(folder_, ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (!before_.contains(at->path().filename())) made.push_back(at->path());
  }
  for (const fs::path& entry : made) fs::remove_all(entry, ignored);
  // Folders that somebody else has put something into stay.
  for (fs::path at = folder_; !first_made_.empty(); at = at.parent_path()) {
    if (!fs::remove(at, ignored) || at == first_made_) break;
  }
}

}  // namespace freshet::cli
