// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Subscriber and its versions, as Python holds them. A pinned version owns a share of its subscriber, so a view of a
/// version's memory keeps both for as long as it lives, whatever was closed before.

#include <nanobind/nanobind.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/python/stream/private_pages.h"
#include "bindings/python/tensors.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/current.h"
#include "transport/subscriber.h"

namespace freshet::python {

/// What the subscriber's own thread tells, which never enters Python: descriptors that become readable, for event
/// loops, a queue for the thread that calls the program's callback, and the last updates, for a picture. Any thread.
class UpdateNews {
 public:
  static constexpr std::size_t kQueuedMax = 1024;  ///< Of more, the oldest are dropped.
  static constexpr std::size_t kPastMax = 512;     ///< Likewise.
  struct Past {
    VersionNumber version = 0;
    std::int64_t served_unix_ns = 0;
    Duration latency{};  ///< From the start of publish() until then.
  };

  /// `queued`: updates wait for next(), from the first on.
  explicit UpdateNews(bool queued) : queued_(queued) {}
  void tell(const Update& update) FRESHET_EXCLUDES(mutex_);
  void close() FRESHET_EXCLUDES(mutex_);
  std::vector<Past> past() FRESHET_EXCLUDES(mutex_);
  /// The next update for the callback. timed_out; failed_precondition once closed. REQUIRES: `queued`.
  Result<Update> next(Duration at_most) FRESHET_EXCLUDES(mutex_);

  /// An eventfd that is written at each update, and when it is closed.
  Result<int> add_descriptor() FRESHET_EXCLUDES(mutex_);
  void remove_descriptor(int descriptor) FRESHET_EXCLUDES(mutex_);

 private:
  void wake() FRESHET_REQUIRES(mutex_);

  const bool queued_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ FRESHET_GUARDED_BY(mutex_) = false;
  std::deque<Update> updates_ FRESHET_GUARDED_BY(mutex_);
  std::deque<Past> past_ FRESHET_GUARDED_BY(mutex_);
  std::vector<Wake> descriptors_ FRESHET_GUARDED_BY(mutex_);
};

struct OpenSubscriber {
  std::unique_ptr<Subscriber> subscriber;
  std::shared_ptr<UpdateNews> news;
  std::shared_ptr<PageStock> pages = std::make_shared<PageStock>();  ///< Of versions that were dropped.
  ForkMark mark;
  std::atomic<bool> closed{false};  ///< Ends waits.
};

/// Destroyed with the subscriber's last share, or before it. In a forked child it is left alone: the pin is the
/// parent's.
class PinnedVersion {
 public:
  PinnedVersion(std::shared_ptr<OpenSubscriber> owner, Snapshot snapshot);
  ~PinnedVersion();

  Status check_here() const { return check_not_inherited(mark_, "this snapshot"); }
  bool is_last_share() const { return owner_.use_count() == 1; }
  const Snapshot& snapshot() const { return snapshot_; }
  const Manifest& manifest() const { return snapshot_.manifest(); }
  /// From its subscriber's next version on, where it can: of one device, and of a subscriber that is open.
  void take_device_memory(const std::shared_ptr<gpu::Device>& device) const {
    if (!owner_->closed) static_cast<void>(owner_->subscriber->take_device_memory(device));
  }
  /// The newest version that its subscriber knew of at most a millisecond before `unix_ns`, which is now: a journal
  /// asks for each answer. REQUIRES: the interpreter's lock.
  VersionNumber newest_known(std::int64_t unix_ns) const;
  /// For arrays of Python's: a write that gets past their read-only flag changes pages of this pin alone, which go with
  /// it. REQUIRES: the interpreter's lock.
  Bytes bytes(std::uint32_t tensor) const { return pages_.of(snapshot_, snapshot_.bytes(tensor)); }

 private:
  std::shared_ptr<OpenSubscriber> owner_;
  Snapshot snapshot_;
  mutable PrivatePages pages_;
  mutable VersionNumber newest_known_ = 0;
  mutable std::int64_t newest_known_unix_ns_ = 0;
  ForkMark mark_;
};

/// Python's hold on a pinned version: its own, and what each array has as the owner of its memory.
class Pin {
 public:
  explicit Pin(std::shared_ptr<PinnedVersion> pinned) : pinned_(std::move(pinned)) {}
  Pin(Pin&&) = default;
  ~Pin();
  /// failed_precondition in a forked child.
  const PinnedVersion& get() const;
  /// The same, to be kept.
  std::shared_ptr<const PinnedVersion> share() const;

 private:
  std::shared_ptr<PinnedVersion> pinned_;
};

/// The pointers are guarded by the interpreter's lock.
class SubscriberHandle {
 public:
  SubscriberHandle(std::shared_ptr<OpenSubscriber> open, ActivationTarget publisher)
      : open_(std::move(open)),
        publisher_(std::move(publisher)),
        model_(publisher_.model),
        directory_(publisher_.directory) {}
  ~SubscriberHandle();

  VersionNumber wait_for(VersionNumber version, std::optional<double> timeout_seconds) const;
  /// The newest; unavailable says why there is none. Snapshots of one version share one pin.
  Pin snapshot();
  Pin snapshot_at_least(VersionNumber version, std::optional<double> timeout_seconds);
  /// The version that was current when the call began, or a newer one: the publisher is asked. Where nobody publishes
  /// the model any more, what is served.
  Pin current_snapshot(std::optional<double> timeout_seconds);
  Pin next(std::optional<double> timeout_seconds);
  VersionNumber version() const;
  nanobind::dict status() const;
  void stage(VersionNumber version, std::optional<double> timeout_seconds) const;
  VersionNumber commit() const;
  Pin staged_snapshot() const;
  /// Asks the publisher to make that version current, while `epoch` is: for all members of the group or none, or for
  /// every follower.
  nanobind::dict activate(VersionNumber version, bool hold, bool as_group, std::uint64_t epoch,
                          double within_seconds) const;
  std::shared_ptr<UpdateNews> news() const { return get()->news; }
  void close();
  bool is_open() const { return open_ != nullptr; }

 private:
  std::shared_ptr<OpenSubscriber> get() const;
  Pin share(const std::shared_ptr<OpenSubscriber>& open, Snapshot snapshot);

  std::shared_ptr<OpenSubscriber> open_;
  ActivationTarget publisher_;
  std::string model_;
  std::string directory_;
  std::weak_ptr<PinnedVersion> newest_;
};

void bind_subscriber(nanobind::module_& module);

}  // namespace freshet::python
