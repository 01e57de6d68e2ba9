// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "transport/subscribe/subscriber_loop.h"

// The part of the subscriber's loop that stages versions and swaps them in when they are decided.

namespace freshet {

Status SubscriberLoop::stage(VersionNumber number) {
  const Status status = machine_.stage(number, now());
  carry_out();
  tell_standing();
  return status;
}

Result<VersionNumber> SubscriberLoop::commit_staged() {
  Result<VersionNumber> committed = machine_.commit_staged(now());
  carry_out();
  tell_standing();
  return committed;
}

Status SubscriberLoop::bring(VersionNumber number) {
  const Status status = machine_.bring(number, now());
  carry_out();
  tell_standing();
  return status;
}

void SubscriberLoop::forget(VersionNumber number) {
  machine_.forget(number, now());
  carry_out();
  tell_standing();
}

void SubscriberLoop::applied(VersionNumber number) {
  machine_.followers().applied(number);
  machine_.on_followers(now());
  carry_out();
}

void SubscriberLoop::take_device(const std::shared_ptr<gpu::Device>& device) {
  if (device_ == nullptr) device_ = device;
  if (device_->info().uuid != device->info().uuid) return;
  fetcher_.keep_deltas_for_device();
  // Before the publisher hears of it, and may send slabs.
  for (const auto& [session, door] : doors_) door->take_device(device_);
  machine_.take_device(device_->info().uuid.text());
  carry_out();
}

void SubscriberLoop::probe() {
  machine_.probe(now());
  carry_out();
}

void SubscriberLoop::swap_staged(const protocol::action::SwapStaged& action) {
  std::unique_ptr<detail::ServedVersion> version = shelf_.take_staged(action.number);
  version->update.epoch = action.epoch;
  version->update.latency += std::max(Duration::zero(), now() - staged_at_);
  const Update update = version->update;
  shelf_.serve(std::move(version), /*deliver=*/false);
  tell_served(update);
}

void SubscriberLoop::tell_standing() {
  if (relay_ != nullptr && std::exchange(passed_on_current_, machine_.news().current()) != machine_.news().current()) {
    relay_->follow(machine_.news().current());
  }
  if (told_absent_ != machine_.absent_why()) {
    shelf_.clear_error(told_absent_);
    told_absent_ = machine_.absent_why();
    if (!told_absent_.empty()) shelf_.set_error(told_absent_);
  }
  const protocol::Staging& staging = machine_.staging();
  report_.set({.serving = machine_.position().serving(),
               .serving_epoch = machine_.position().serving_epoch(),
               .current = machine_.news().current(),
               .confirmed_at = machine_.news().confirmed_at(),
               .staging = staging.target(),
               .staged = staging.ready() ? staging.ready()->number : 0,
               .staging_failed = staging.failed()},
              machine_.lapses_at());
}

}  // namespace freshet
