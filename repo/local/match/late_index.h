// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The match index of a repository, made when it is first needed: most processes that open one never ask for it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "repo/match/structure_index.h"

namespace freshet {

/// Any thread. While the index is made, nobody but those who need it waits: changes are noted meanwhile, and made after
/// that. There are at most as many as the repository commits in that time.
class LateIndex {
 public:
  using Fill = std::function<void(StructureIndex& index)>;
  using Change = std::function<void(StructureIndex& index)>;

  bool is_made() const { return made_; }
  /// Ask it where is_made() only.
  const StructureIndex& index() const { return index_; }

  /// `fill` reads the versions, and puts them into the index.
  void make(const Fill& fill) FRESHET_EXCLUDES(making_, mutex_) {
    if (made_) return;
    const MutexLock turn(making_);
    if (made_) return;
    {
      const MutexLock lock(mutex_);
      is_noted_ = true;
    }
    fill(index_);
    const MutexLock lock(mutex_);
    for (const Change& change : noted_) change(index_);
    noted_ = {};
    made_ = true;
  }
  /// For a change of one version that `fill` sees already; it may come to a version that the index has so already. The
  /// index is as of `as_of` from then on. REQUIRES: one caller at a time.
  void tell(std::uint64_t as_of, Change change) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (made_) {
      change(index_);
    } else if (is_noted_) {
      noted_.push_back(std::move(change));
    }
    index_.set_as_of(as_of);
  }
  /// For changes of any number of versions that `fill` sees already. Waits for a running make().
  void tell_all(std::uint64_t as_of, const Fill& changes) FRESHET_EXCLUDES(making_, mutex_) {
    const MutexLock turn(making_);
    if (made_) changes(index_);
    index_.set_as_of(as_of);
  }
  /// The version is in no answer from now on.
  void drop(const VersionId& id) { index_.retire(id, 0); }

 private:
  /// Never locks its readers out.
  StructureIndex index_;
  std::atomic<bool> made_{false};
  Mutex making_;  ///< Taken before mutex_.
  Mutex mutex_;
  bool is_noted_ FRESHET_GUARDED_BY(mutex_) = false;
  std::vector<Change> noted_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
