// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A publisher that publishes when its scheduler says so: the one call that a training loop needs after each iteration.
/// It tells the scheduler what publishing took: the stall, as the publisher measured it; until servers serve a version,
/// and until the repository has it, as the publisher hears it from its subscribers (looked at from publish_if_due(),
/// so no finer than one iteration).

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "core/result.h"
#include "scheduler/scheduler.h"
#include "transport/publisher.h"

namespace freshet {

/// When versions arrive, from what the publisher's subscribers say that they serve. One thread at a time.
class DeliveryWatch {
 public:
  void published(VersionNumber version, Time returned);

  /// True while somebody may still be on the way to a version that was published.
  bool waits() const { return !to_servers_.empty() || !to_repository_.empty(); }

  struct Arrivals {
    std::optional<Duration> delivered;  ///< Of the newest version that half of the servers serve, when it is news.
    std::optional<Duration> persisted;  ///< The same for the repository.
  };
  /// Silent subscribers are not waited for. A version that was overtaken counts for nothing.
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

/// One thread at a time, the publisher's. Both must outlive it.
class ScheduledPublisher {
 public:
  ScheduledPublisher(Publisher& publisher, Scheduler& scheduler, const Clock& clock = system_clock())
      : publisher_(publisher), scheduler_(scheduler), clock_(clock) {}

  /// Publishes, or decides to put it off (nothing): the next iteration is asked again.
  using Publish = std::function<Result<std::optional<PublishReceipt>>()>;

  /// An iteration ended; calls `publish` if a publish is due. Nothing when none is, or it was put off.
  Result<std::optional<PublishReceipt>> publish_if_due(const Observation& observation, const Publish& publish);
  /// The same with Publisher::publish(); a version that found no room in the arena (out_of_space) is put off.
  Result<std::optional<PublishReceipt>> publish_if_due(const Observation& observation,
                                                       std::span<const TensorView> tensors, PublishOptions options);

  /// Publishes now, whatever the schedule says: the initial version. When that arrives says nothing of deliveries,
  /// since those who wait for it are still starting.
  Result<std::optional<PublishReceipt>> publish_now(const Publish& publish);

 private:
  void look();
  Result<std::optional<PublishReceipt>> carry_out(const Publish& publish, bool watched);

  Publisher& publisher_;
  Scheduler& scheduler_;
  const Clock& clock_;
  DeliveryWatch watch_;
  Time next_look_{};
};

}  // namespace freshet
