// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The catalog of an open repository, and the lock that its readers share with those who change it. Private to this
/// room.

#include "core/base/mutex.h"
#include "repo/local/catalog/catalog.h"

namespace freshet {

/// The lock is held for moments only, never across I/O.
struct LockedCatalog {
  mutable Mutex mutex;
  Catalog catalog FRESHET_GUARDED_BY(mutex);

  /// As Catalog::find().
  Result<Catalog::Found> find(const VersionName& name) const FRESHET_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return catalog.find(name);
  }
};

}  // namespace freshet
