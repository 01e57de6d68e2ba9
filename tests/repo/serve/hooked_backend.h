// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A backend that asks a test before it reads a blob.

#include <functional>
#include <utility>

#include "core/base/mutex.h"
#include "repo/backend/backend_wrapper.h"

namespace freshet {

class HookedBackend final : public BackendWrapper {
 public:
  /// Called on whichever thread reads; an error is the read's.
  using Hook = std::function<Status()>;

  using BackendWrapper::BackendWrapper;
  void before_reads(Hook hook) {
    const MutexLock lock(mutex_);
    hook_ = std::move(hook);
  }

  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    FRESHET_TRY(call_hook());
    return inner().read_blob(key, offset, out);
  }
  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    FRESHET_TRY(call_hook());
    return inner().read_and_digest(key, out);
  }

 private:
  Status call_hook() const {
    Hook hook;
    {
      const MutexLock lock(mutex_);
      hook = hook_;
    }
    return hook ? hook() : Status();
  }

  mutable Mutex mutex_;
  Hook hook_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
