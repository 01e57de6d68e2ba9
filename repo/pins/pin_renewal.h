// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Renews a lease of pins (repo/pins/pin_terms.h). From the first pin on, a thread renews the lease in each quarter of
/// its life, and sooner after a failure. For clients that pin at a repository of another process.

#include <functional>
#include <thread>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/pins/pin_terms.h"

namespace freshet {

/// Any thread.
class PinRenewal {
 public:
  using Renew = std::function<Status(const PinLease&)>;
  /// Calls `renew` on its own thread. The destructor waits for a call in progress; after its return there are no more
  /// calls.
  explicit PinRenewal(Renew renew, Duration every = kPinLease / 4);
  ~PinRenewal();
  PinRenewal(const PinRenewal&) = delete;
  PinRenewal& operator=(const PinRenewal&) = delete;

  /// The lease, without renewing it.
  const PinLease& lease() const { return lease_; }
  /// The lease, which is renewed from now on. unavailable when no thread can be started.
  Result<PinLease> begin() FRESHET_EXCLUDES(mutex_);

 private:
  void run() FRESHET_EXCLUDES(mutex_);

  const Renew renew_;
  const Duration every_;
  const PinLease lease_;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
