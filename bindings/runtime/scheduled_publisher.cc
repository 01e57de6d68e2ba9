// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/scheduled_publisher.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/deadline.h"

namespace freshet {
namespace {

constexpr Duration kBetweenLooks = std::chrono::milliseconds(1);
constexpr Duration kBetweenTries = std::chrono::milliseconds(10);

}  // namespace

void DeliveryWatch::published(VersionNumber version, Time returned) {
  for (auto* waiting : {&to_servers_, &to_repository_}) {
    if (waiting->size() == kWaitingMax) waiting->pop_front();
    waiting->push_back({.version = version, .since = returned});
  }
}

std::optional<Duration> DeliveryWatch::arrived(std::deque<OnTheWay>& waiting, VersionNumber serving, Time now) {
  std::optional<Duration> took;
  while (!waiting.empty() && waiting.front().version <= serving) {
    if (waiting.front().version == serving) took = now - waiting.front().since;
    waiting.pop_front();
  }
  return took;
}

DeliveryWatch::Arrivals DeliveryWatch::look(const PublisherStat& stat, Time now) {
  std::vector<VersionNumber> servers;
  std::optional<VersionNumber> repository;
  for (const SubscriberStat& subscriber : stat.subscribers) {
    if (subscriber.silent) continue;
    if (subscriber.every) {
      repository = std::min(repository.value_or(subscriber.serving), subscriber.serving);
    } else {
      servers.push_back(subscriber.serving);
    }
  }
  Arrivals arrivals;
  if (repository) {
    arrivals.persisted = arrived(to_repository_, *repository, now);
  } else {
    to_repository_.clear();
  }
  if (servers.empty()) {
    to_servers_.clear();
    return arrivals;
  }
  const auto middle = servers.begin() + static_cast<std::ptrdiff_t>(servers.size() / 2);
  std::nth_element(servers.begin(), middle, servers.end());
  arrivals.delivered = arrived(to_servers_, *middle, now);
  return arrivals;
}

void ScheduledPublisher::look() {
  if (!watch_.waits()) return;
  const Time now = clock_.now();
  if (now < next_look_) return;
  next_look_ = now + kBetweenLooks;
  const DeliveryWatch::Arrivals arrivals = watch_.look(publisher_.stat(), now);
  if (arrivals.delivered) scheduler_.delivered(*arrivals.delivered);
  if (arrivals.persisted) scheduler_.persisted(*arrivals.persisted);
}

Result<std::optional<PublishReceipt>> ScheduledPublisher::carry_out(const Publish& publish, bool watched) {
  FRESHET_ASSIGN(const std::optional<PublishReceipt> receipt, publish());
  if (!receipt) return std::optional<PublishReceipt>();
  has_unpublished_ = false;
  if (watched) watch_.published(receipt->version, clock_.now());
  scheduler_.published(receipt->blocked);
  return receipt;
}

Result<std::optional<PublishReceipt>> ScheduledPublisher::publish_now(const Publish& publish) {
  return carry_out(publish, false);
}

Result<std::optional<PublishReceipt>> ScheduledPublisher::publish_if_due(const Observation& observation,
                                                                         const Publish& publish) {
  look();
  has_unpublished_ = true;
  if (!scheduler_.observe(observation)) return std::optional<PublishReceipt>();
  return carry_out(publish, true);
}

Result<std::optional<PublishReceipt>> ScheduledPublisher::publish_last(std::span<const TensorView> tensors,
                                                                       PublishOptions options, Duration at_most) {
  if (!has_unpublished_) return std::optional<PublishReceipt>();
  const Time deadline = deadline_in(at_most);
  for (;;) {
    const Result<PublishReceipt> receipt = publisher_.publish(tensors, options);
    const bool has_no_room = !receipt && receipt.error().code() == Code::out_of_space;
    if (has_no_room && system_clock().now() < deadline) {
      std::this_thread::sleep_for(kBetweenTries);
      continue;
    }
    return carry_out(
        [&]() -> Result<std::optional<PublishReceipt>> {
          if (!receipt) return fail(receipt.error());
          return std::optional(*receipt);
        },
        false);
  }
}

Result<std::optional<PublishReceipt>> ScheduledPublisher::publish_if_due(const Observation& observation,
                                                                         std::span<const TensorView> tensors,
                                                                         PublishOptions options) {
  return publish_if_due(observation, [&]() -> Result<std::optional<PublishReceipt>> {
    const bool is_told = std::ranges::any_of(options.tags, [](const auto& tag) { return tag.first == kScheduleTag; });
    if (!is_told) options.tags.emplace_back(kScheduleTag, scheduler_.last_decision().text());
    auto receipt = publisher_.publish(tensors, std::move(options));
    if (receipt) return std::optional(*receipt);
    if (receipt.error().code() == Code::out_of_space) return std::optional<PublishReceipt>();
    return fail(receipt.error());
  });
}

}  // namespace freshet
