// SPDX-License-Identifier: Apache-2.0
#include "repo/pins/pin_renewal.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr Duration kAfterFailure = std::chrono::seconds(3);

}  // namespace

PinRenewal::PinRenewal(Renew renew, Duration every)
    : renew_(std::move(renew)), every_(every), lease_(new_pin_lease()) {}

PinRenewal::~PinRenewal() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

Result<PinLease> PinRenewal::begin() {
  const MutexLock lock(mutex_);
  if (thread_.joinable()) return lease_;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a thread that renews pins: {}", error.what()));
  }
  return lease_;
}

void PinRenewal::run() {
  Duration wait = every_;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const Time next = system_clock().now() + wait;
      while (!stopping_ && stopped_.wait_until(mutex_, next)) {
      }
      if (stopping_) return;
    }
    wait = renew_(lease_) ? every_ : std::min(every_, kAfterFailure);
  }
}

}  // namespace freshet
