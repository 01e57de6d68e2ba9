// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Small values of writers that come together share an object: so many small puts cost few requests. Private to this
/// folder.

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/log/log_store.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// The bytes of several values, one after another.
using Pack = std::vector<std::byte>;

/// Any thread. Two uploads are under way at a time; packs that come meanwhile wait, and the next upload takes them
/// together. So one writer alone never waits for another.
class SharedPacks {
 public:
  /// A larger pack has an object of its own.
  static constexpr std::size_t kPackBytesMax = std::size_t{256} << 10;

  /// Both must outlive this object.
  SharedPacks(ObjectStore& store, log::LogStore& log) : store_(store), log_(log) {}

  struct Where {
    log::ObjectName object;
    std::size_t offset = 0;  ///< Of the pack, in the object.
  };
  /// On return, the store has the bytes. Errors are those of the upload, also of one that another writer's thread makes
  /// for both; cancelled only by this thread's Interruption.
  Result<Where> upload(Pack pack) FRESHET_EXCLUDES(mutex_);
  /// Packs that no upload has taken yet.
  std::size_t waiting() const FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return waiting_.size();
  }

 private:
  struct Waiting {
    Pack pack;
    bool is_taken = false;  ///< By an upload that is under way.
    std::optional<Result<Where>> where;
  };
  using Group = std::vector<std::shared_ptr<Waiting>>;

  Group take_group() FRESHET_REQUIRES(mutex_);
  Result<log::ObjectName> upload_together(const Group& group);

  ObjectStore& store_;
  log::LogStore& log_;  ///< Draws the objects' names.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Waiting>> waiting_ FRESHET_GUARDED_BY(mutex_);  ///< Some of threads that gave up.
  std::size_t under_way_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet::bucket
