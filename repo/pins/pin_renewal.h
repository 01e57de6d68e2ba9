// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Keeps a lease of pins alive (repo/pins/pin_terms.h): from the first pin on a thread renews it, each quarter of its life,
/// and sooner after a failure. For whoever pins at a repository that is elsewhere.

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
  /// `renew` is called on a thread of its own, and never again once the destructor has returned, which takes as long as
  /// a call that is under way.
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
