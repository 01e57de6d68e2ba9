// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/direct_line.h"

#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "repo/log/store_calls.h"
#include "repo/s3/s3_store.h"

namespace freshet::rpc {
namespace {

/// A store that a client does not reach costs so much, once in a while.
constexpr Duration kProbe = std::chrono::seconds(2);

}  // namespace

Time DirectLine::time_for(std::size_t bytes) {
  return deadline_in(std::chrono::seconds(30) + kTransfers * log::time_to_carry(bytes));
}

bool DirectLine::may_try() const {
  const MutexLock lock(mutex_);
  return is_wanted_ && way_.may_try(system_clock().now());
}

bool DirectLine::may_put() const {
  const MutexLock lock(mutex_);
  const Time now = system_clock().now();
  return is_wanted_ && way_.may_try(now) && puts_.may_try(now);
}

bool DirectLine::is_proven() const {
  const MutexLock lock(mutex_);
  return way_.is_proven();
}

std::shared_ptr<SignedObjects> DirectLine::objects() {
  const MutexLock lock(mutex_);
  if (objects_ != nullptr) return objects_;
  auto opened = open_s3_signed_objects({.connections_max = kTransfers});
  if (opened) return objects_ = std::move(*opened);
  is_wanted_ = false;  // This build, or this machine, has no client of S3.
  return nullptr;
}

void DirectLine::on_refused(const Error& error) {
  if (error.code() != Code::unsupported && error.code() != Code::failed_precondition) return;
  const MutexLock lock(mutex_);
  is_wanted_ = false;
}

bool DirectLine::succeeded(const Status& status) {
  // Who interrupted the call says nothing of the way.
  if (!status && status.error().code() == Code::cancelled) return false;
  const MutexLock lock(mutex_);
  if (!status && status.error().code() == Code::unsupported) {
    is_wanted_ = false;
  } else if (status) {
    way_.on_success();
  } else if (way_.on_failure(system_clock().now())) {
    log_line(LogLevel::info, format("tensors go through the repository's owner, not to and from its store: {}",
                                    status.error().message()));
  }
  return status.has_value();
}

bool DirectLine::uploaded(const Status& status) {
  if (status || status.error().code() != Code::failed_precondition) {
    const bool goes_on = succeeded(status);
    const MutexLock lock(mutex_);
    if (status) puts_.on_success();
    return goes_on;
  }
  bool is_news = false;
  {
    const MutexLock lock(mutex_);
    is_news = puts_.on_failure(system_clock().now());
  }
  if (is_news) {
    log_line(LogLevel::info, format("tensors of puts go through the repository's owner, not to its store: {}",
                                    status.error().message()));
  }
  return false;
}

bool DirectLine::prove(SignedObjects& objects, const SignedRequest& request) {
  if (is_proven()) return true;
  std::byte first{};
  const Status read = objects.read(request, 0, MutableBytes(&first, 1), deadline_in(kProbe));
  // It is the store that says that the object is not there.
  return succeeded(!read && read.error().code() == Code::not_found ? Status() : read);
}

}  // namespace freshet::rpc
