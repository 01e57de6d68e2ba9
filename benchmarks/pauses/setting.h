// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A small model, its publisher and its subscribers in one process, by memory or by a channel over loopback; and how
/// long a user waits for what they do.

#include <memory>
#include <string>

#include "benchmarks/stream/element_model.h"
#include "benchmarks/stream/route.h"
#include "core/base/mutex.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::benchmarks {

/// Which version a subscriber last swapped in, and when. Any thread.
class Swaps {
 public:
  void tell(VersionNumber version) FRESHET_EXCLUDES(mutex_);
  /// When it did; timed_out after half a minute.
  Result<std::int64_t> wait_for(VersionNumber version) FRESHET_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  VersionNumber version_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::int64_t at_ns_ FRESHET_GUARDED_BY(mutex_) = 0;
};

/// One thread at a time.
class Setting {
 public:
  /// "shm", or a channel over loopback. `shared_hub`: the hub outlives its publishers, as that of a process with
  /// several models does.
  static Result<std::unique_ptr<Setting>> make(const std::string& channel, bool shared_hub);

  Status open_publisher();
  /// close() alone; the object goes with forget_publisher() or the next open_publisher().
  Status close_publisher() { return publisher_->close(std::chrono::seconds(30)); }
  void forget_publisher() { publisher_.reset(); }
  Status open_subscriber(bool every = false, bool staged = false);
  void close_subscriber() { subscriber_.reset(); }

  /// Publishes, and waits until the version is committed.
  Result<VersionNumber> publish();
  Swaps& swaps() { return swaps_; }
  Publisher& publisher() { return *publisher_; }
  Subscriber& subscriber() { return *subscriber_; }

 private:
  Setting() = default;
  std::string channel_;
  std::unique_ptr<ScratchFolder> scratch_;
  KeyFolder keys_;
  std::string folder_;  ///< The publisher's host's.
  std::string listen_;
  std::string address_;
  std::unique_ptr<ElementModel> model_;
  std::shared_ptr<PublisherHub> hub_;
  Swaps swaps_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
  std::uint64_t step_ = 0;
};

}  // namespace freshet::benchmarks
