// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A publisher that publishes when its scheduler decides so. A training loop needs one call after each iteration. The
/// call also reports three times to the scheduler: the stall, as measured by the publisher; the time until servers
/// serve a version; and the time until the repository has the version. The publisher learns the last two from its
/// subscribers. publish_if_due() looks for these two times once per iteration, but at most once a millisecond. So their
/// resolution is one iteration, or a millisecond if iterations are shorter.

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "scheduler/scheduler.h"
#include "transport/publisher.h"

namespace freshet {

/// Measures when versions arrive, from the subscribers' reports to the publisher. One thread at a time.
class DeliveryWatch {
 public:
  void published(VersionNumber version, Time returned);

  /// True while a published version may still be on its way to a subscriber.
  bool waits() const { return !to_servers_.empty() || !to_repository_.empty(); }

  struct Arrivals {
    std::optional<Duration> delivered;  ///< The delay of the newest version that half of the servers serve. Not set if
                                        ///< this version was reported before.
    std::optional<Duration> persisted;  ///< The same for the repository.
  };
  /// Does not wait for silent subscribers. An overtaken version does not count.
  Arrivals look(const PublisherStat& stat, Time now);

 private:
  static constexpr std::size_t kWaitingMax = 64;

  struct OnTheWay {
    VersionNumber version = 0;
    Time since{};
  };
  static std::optional<Duration> arrived(std::deque<OnTheWay>& waiting, VersionNumber serving, Time now);

  std::deque<OnTheWay> to_servers_;
  std::deque<OnTheWay> to_repository_;
};

/// The tag with which a version says why it was published: SchedulerDecision::text().
inline constexpr const char* kScheduleTag = "schedule";

/// One thread at a time, the publisher's. The publisher and the scheduler must outlive this object.
class ScheduledPublisher {
 public:
  ScheduledPublisher(Publisher& publisher, Scheduler& scheduler, const Clock& clock = system_clock())
      : publisher_(publisher), scheduler_(scheduler), clock_(clock) {}

  /// Publishes, or returns nothing to delay the publish: the next iteration calls it again.
  using Publish = std::function<Result<std::optional<PublishReceipt>>()>;

  /// An iteration ended; calls `publish` if a publish is due. Result not set: none was due, or it was delayed.
  Result<std::optional<PublishReceipt>> publish_if_due(const Observation& observation, const Publish& publish);
  /// The same with Publisher::publish(); if the arena has no room (out_of_space), the publish is delayed. The version
  /// gets the tag kScheduleTag, unless `options` has it.
  Result<std::optional<PublishReceipt>> publish_if_due(const Observation& observation,
                                                       std::span<const TensorView> tensors, PublishOptions options);

  /// For the end of the loop: publishes the last iteration, if publish_if_due() did not. Waits for room in the arena,
  /// at most `at_most`; then out_of_space. Result not set: there is nothing new.
  Result<std::optional<PublishReceipt>> publish_last(std::span<const TensorView> tensors, PublishOptions options,
                                                     Duration at_most = std::chrono::seconds(30));

  /// Publishes now, without the schedule: for the initial version. Its arrival is no measure of deliveries, because the
  /// waiting servers are still starting.
  Result<std::optional<PublishReceipt>> publish_now(const Publish& publish);

 private:
  void look();
  Result<std::optional<PublishReceipt>> carry_out(const Publish& publish, bool watched);

  Publisher& publisher_;
  Scheduler& scheduler_;
  const Clock& clock_;
  DeliveryWatch watch_;
  Time next_look_{};
  bool has_unpublished_ = false;  ///< The last iteration is in no version.
};

}  // namespace freshet
