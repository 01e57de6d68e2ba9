// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A client's way to the store of a repository, around the owner: it sends requests that the owner signed. It makes
/// transfers faster, and never makes them fail: what does not go that way goes through the owner. Private to this
/// folder.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/object_store/object_store.h"

namespace freshet::rpc {

/// Whether the way is worth a try, as a value. A way that failed is left for a minute, then for twice as long each
/// time, up to a quarter of an hour. A small request proves it before large ones use it. One thread at a time.
class DirectWay {
 public:
  bool may_try(Time now) const { return !closed_until_ || now >= *closed_until_; }
  bool is_proven() const { return is_proven_; }
  void on_success() {
    is_proven_ = true;
    pause_ = kFirstPause;
    closed_until_.reset();
  }
  /// True: nobody was told yet since the way was last proven.
  bool on_failure(Time now) {
    const bool is_news = is_proven_ || !closed_until_;
    is_proven_ = false;
    closed_until_ = now + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return is_news;
  }

 private:
  static constexpr Duration kFirstPause = std::chrono::minutes(1);
  static constexpr Duration kLongestPause = std::chrono::minutes(15);

  bool is_proven_ = false;
  Duration pause_ = kFirstPause;
  std::optional<Time> closed_until_;
};

/// Any thread.
class DirectLine {
 public:
  /// A smaller tensor shares its object with others.
  static constexpr std::size_t kBytesMin = std::size_t{1} << 20;
  /// So many at a time.
  static constexpr std::size_t kTransfers = 8;

  /// `objects` sends the requests; null: over HTTP, from the first use on.
  DirectLine(bool is_wanted, std::shared_ptr<SignedObjects> objects)
      : objects_(std::move(objects)), is_wanted_(is_wanted) {}

  bool may_try() const FRESHET_EXCLUDES(mutex_);
  bool may_put() const FRESHET_EXCLUDES(mutex_);
  bool is_proven() const FRESHET_EXCLUDES(mutex_);
  /// The sender of requests, once there are some. Null: there is none here.
  std::shared_ptr<SignedObjects> objects() FRESHET_EXCLUDES(mutex_);
  /// Takes the owner's refusal to sign: where it signs nothing, this is not tried again. An owner of an older build
  /// answers unsupported, or that only an operator may ask what it does not know.
  void on_refused(const Error& error) FRESHET_EXCLUDES(mutex_);
  /// `request` reads an object, which need not be there. False: the way was tried in vain just now.
  bool prove(SignedObjects& objects, const SignedRequest& request) FRESHET_EXCLUDES(mutex_);
  /// Takes what came of transfers. False: the way is to be left; for good, if nothing here sends such requests.
  bool succeeded(const Status& status) FRESHET_EXCLUDES(mutex_);
  /// The same of uploads. Without the right to write, reads go on.
  bool uploaded(const Status& status) FRESHET_EXCLUDES(mutex_);
  /// For so many bytes beside those of other transfers.
  static Time time_for(std::size_t bytes);

 private:
  mutable Mutex mutex_;
  std::shared_ptr<SignedObjects> objects_ FRESHET_GUARDED_BY(mutex_);
  bool is_wanted_ FRESHET_GUARDED_BY(mutex_);
  DirectWay way_ FRESHET_GUARDED_BY(mutex_);
  DirectWay puts_ FRESHET_GUARDED_BY(mutex_);  ///< As far as the store lets this process write.
};

}  // namespace freshet::rpc
