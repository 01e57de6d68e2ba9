// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/version_shelf.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/check.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/wake.h"

namespace freshet::detail {

VersionShelf::VersionShelf(std::size_t pins_max, const Wake& wake)
    : wake_(wake), pins_(PinTable::make(pins_max, wake.descriptor())) {}

VersionShelf::~VersionShelf() {
  retire_all();
  PinTable::abandon(std::move(pins_), std::move(retired_));
}

Status VersionShelf::wait_for(VersionNumber number, Duration at_most, const std::stop_token& stop) {
  const StopWakes wakes(stop, mutex_, changed_);
  const Time deadline = deadline_in(at_most);
  MutexLock lock(mutex_);
  while (status_.serving == 0 || status_.serving < number) {
    if (stop.stop_requested()) {
      return fail(Code::cancelled, format("the wait for version {} was stopped by its caller", number));
    }
    if (changed_.wait_until(mutex_, deadline)) continue;
    if (status_.serving != 0 && status_.serving >= number) break;
    return fail(Code::timed_out, format("version {} did not come{}; {}{}{}", number,
                                        status_.connected ? "" : ", and no publisher of the model answers",
                                        status_.serving == 0 ? "no version is served yet"
                                                             : format("version {} is served", status_.serving),
                                        status_.last_error.empty() ? "" : ": ", status_.last_error));
  }
  return {};
}

Result<PinTable::Pin> VersionShelf::take_next(Duration at_most, const std::stop_token& stop) {
  const StopWakes wakes(stop, mutex_, changed_);
  const Time deadline = deadline_in(at_most);
  PinTable::Pin pin;
  {
    MutexLock lock(mutex_);
    while (deliveries_.empty()) {
      if (stop.stop_requested()) {
        return fail(Code::cancelled, "the wait for the next version was stopped by its caller");
      }
      if (changed_.wait_until(mutex_, deadline) || !deliveries_.empty()) continue;
      return fail(Code::timed_out, "no version came");
    }
    // Pinned before it leaves the queue: reclaim() looks at the queue first and at the slots afterwards, so it finds
    // the version in one of them.
    pin = pins_->pin(deliveries_.front());
    if (pin.slot == nullptr) return fail(Code::out_of_space, "all pins are in use: drop a snapshot first");
    taken_.push_back(deliveries_.front()->number());
    deliveries_.pop_front();
  }
  wake_.wake();
  return pin;
}

Result<PinTable::Pin> VersionShelf::pin_staged() {
  MutexLock lock(mutex_);
  if (staged_ == nullptr) return fail(Code::failed_precondition, "no version is staged: stage() one first");
  // Pinned before it can leave its place: reclaim() looks at the slots afterwards.
  const PinTable::Pin pin = pins_->pin(staged_.get());
  if (pin.slot == nullptr) return fail(Code::out_of_space, "all pins are in use: drop a snapshot first");
  return pin;
}

/// The lock keeps both from ending before they are pinned: the staged one leaves its place under the lock, and the
/// served one is pinned as every reader pins it.
Result<PinTable::Pin> VersionShelf::pin_of(VersionNumber number) {
  MutexLock lock(mutex_);
  const bool is_staged = staged_ != nullptr && staged_->number() == number;
  if (!is_staged && status_.serving != number) return PinTable::Pin{};
  const PinTable::Pin pin = is_staged ? pins_->pin(staged_.get()) : pins_->pin_current();
  if (pin.slot == nullptr && !is_staged && !serves()) return PinTable::Pin{};  // Withdrawn just now.
  if (pin.slot == nullptr) return fail(Code::out_of_space, "all pins are in use: drop a snapshot first");
  if (pin.version->number() == number) return pin;
  pins_->unpin(*pin.slot);  // Another one was swapped in just now.
  return PinTable::Pin{};
}

Result<int> VersionShelf::updates_descriptor() {
  MutexLock lock(mutex_);
  if (!updates_) {
    // What is served already is an update that its poller has not seen.
    updates_ = FileDescriptor(::eventfd(status_.serving != 0 ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!updates_) return fail_errno(errno, "make an eventfd that tells of updates");
  }
  return updates_.get();
}

void VersionShelf::tell_update() {
  changed_.notify_all();
  if (!updates_) return;
  const std::uint64_t one = 1;
  // A full counter is readable too.
  [[maybe_unused]] const auto wrote = ::write(updates_.get(), &one, sizeof one);
}

void VersionShelf::stage(std::unique_ptr<ServedVersion> version) {
  MutexLock lock(mutex_);
  FRESHET_CHECK(staged_ == nullptr);
  staged_ = std::move(version);
}

std::unique_ptr<ServedVersion> VersionShelf::take_staged(VersionNumber number) {
  MutexLock lock(mutex_);
  FRESHET_CHECK(staged_ != nullptr && staged_->number() == number);
  return std::move(staged_);
}

void VersionShelf::drop_staged(VersionNumber number) {
  std::unique_ptr<ServedVersion> version = take_staged(number);
  // The bytes are this process's own, and the publisher was told so: their end is no word on a later grant of them.
  if (version->fetched != nullptr) version->session = 0;
  retired_.push_back(std::move(version));
}

SubscriberStatus VersionShelf::status(Time now) const {
  MutexLock lock(mutex_);
  SubscriberStatus status = status_;
  status.staleness = staleness_.at(now);
  return status;
}

void VersionShelf::serve(std::unique_ptr<ServedVersion> version, bool deliver) {
  const ServedVersion* serving = version.get();
  pins_->set_current(serving);
  if (current_ != nullptr) retired_.push_back(std::move(current_));
  current_ = std::move(version);
  MutexLock lock(mutex_);
  status_.serving = serving->number();
  status_.newest_known = std::max(status_.newest_known, status_.serving);
  staleness_.update(status_.serving, known_);
  ++status_.updates;
  status_.bytes_fetched += serving->update.bytes_fetched;
  status_.last_error.clear();
  if (deliver) deliveries_.push_back(serving);
  tell_update();
}

void VersionShelf::withdraw(Time now) {
  pins_->set_current(nullptr);
  if (current_ == nullptr) return;
  current_->session = 0;  // Its end is no word on the same version when it was granted again.
  retired_.push_back(std::move(current_));
  MutexLock lock(mutex_);
  status_.serving = 0;
  staleness_.withdraw(now);
}

void VersionShelf::retire_all() {
  pins_->set_current(nullptr);
  if (current_ != nullptr) retired_.push_back(std::move(current_));
  MutexLock lock(mutex_);
  if (staged_ != nullptr) retired_.push_back(std::move(staged_));
  deliveries_.clear();
}

bool VersionShelf::waits_for_delivery(const ServedVersion* version) const {
  return std::find(deliveries_.begin(), deliveries_.end(), version) != deliveries_.end();
}

std::vector<VersionShelf::Ended> VersionShelf::reclaim() {
  pins_->acknowledge_wake();
  std::vector<Ended> ended;
  for (std::size_t i = 0; i < retired_.size();) {
    const ServedVersion* version = retired_[i].get();
    bool waits = false;
    {
      MutexLock lock(mutex_);
      waits = waits_for_delivery(version);
    }
    if (waits || pins_->names(version)) {
      ++i;
      continue;
    }
    ended.push_back({.session = version->session, .number = version->number()});
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return ended;
}

std::vector<VersionNumber> VersionShelf::take_taken() {
  MutexLock lock(mutex_);
  return std::exchange(taken_, {});
}

void VersionShelf::set_connection(bool connected, VersionNumber newest_known, std::uint64_t gaps,
                                  std::optional<std::uint64_t> numbers_since, Time now) {
  MutexLock lock(mutex_);
  status_.connected = connected;
  status_.newest_known = newest_known;
  status_.gaps = gaps;
  status_.numbers_since = numbers_since;
  known_.note(newest_known, now);
  staleness_.update(status_.serving, known_);
}

void VersionShelf::set_error(std::string error) {
  MutexLock lock(mutex_);
  status_.last_error = std::move(error);
}

void VersionShelf::count_failure(std::string error) {
  MutexLock lock(mutex_);
  status_.last_error = std::move(error);
  ++status_.failures;
}

void VersionShelf::clear_error(const std::string& error) {
  MutexLock lock(mutex_);
  if (status_.last_error == error) status_.last_error.clear();
}

}  // namespace freshet::detail
