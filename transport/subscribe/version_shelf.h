// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The versions that a subscriber has: the one being served, the one that is staged beside it, those that wait to be
/// taken by next(), and those that are retired but still read. What the loop thread and the readers share, but for the
/// messages.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/protocol/version_times.h"
#include "transport/subscribe/pins.h"
#include "transport/subscribe/served_version.h"

namespace freshet::detail {

class VersionShelf {
 public:
  /// `wake` is the loop's, borrowed: leavers of retired versions and takers of deliveries write to it.
  VersionShelf(std::size_t pins_max, const Wake& wake);
  /// What is still read stays until nobody reads it (PinTable::abandon). REQUIRES: the loop has ended, and what else
  /// keeps books of the versions' memory.
  ~VersionShelf();

  // Any thread.

  PinTable::Pin pin_current() { return pins_->pin_current(); }
  /// Whether pin_current() has something to pin. No lock. False while status() and others' news still name a version
  /// that was just withdrawn.
  bool serves() const { return pins_->current() != nullptr; }
  /// That version, if it is served or staged; an empty pin otherwise. out_of_space: no slot is free.
  Result<PinTable::Pin> pin_of(VersionNumber number) FRESHET_EXCLUDES(mutex_);
  /// What is staged, pinned. failed_precondition when nothing is.
  Result<PinTable::Pin> pin_staged() FRESHET_EXCLUDES(mutex_);
  Status wait_for(VersionNumber number, Duration at_most, const std::stop_token& stop) FRESHET_EXCLUDES(mutex_);
  /// The next delivery, pinned; its version is alive as long as the pin is.
  Result<PinTable::Pin> take_next(Duration at_most, const std::stop_token& stop) FRESHET_EXCLUDES(mutex_);
  /// An eventfd that each serve() makes readable; the shelf's.
  Result<int> updates_descriptor() FRESHET_EXCLUDES(mutex_);
  SubscriberStatus status(Time now) const FRESHET_EXCLUDES(mutex_);

  // The loop's thread.

  /// Swaps the version in; from here on the status names no older version as the newest one. `deliver`: it also waits
  /// for take_next().
  void serve(std::unique_ptr<ServedVersion> version, bool deliver) FRESHET_EXCLUDES(mutex_);
  /// Nothing is served until the next serve(). Who reads the version that was goes on reading it.
  void withdraw(Time now) FRESHET_EXCLUDES(mutex_);
  const ServedVersion* current() const { return current_.get(); }
  /// Keeps the version beside the served one. REQUIRES: nothing is staged.
  void stage(std::unique_ptr<ServedVersion> version) FRESHET_EXCLUDES(mutex_);
  /// The staged version, to be served. Who pinned it goes on reading it. REQUIRES: it is that one.
  std::unique_ptr<ServedVersion> take_staged(VersionNumber number) FRESHET_EXCLUDES(mutex_);
  /// The staged version is not wanted any more; it ends when nobody reads it. REQUIRES: it is that one.
  void drop_staged(VersionNumber number) FRESHET_EXCLUDES(mutex_);
  /// The loop ends: nothing is served, staged or delivered any more. What is read goes on being read.
  void retire_all() FRESHET_EXCLUDES(mutex_);
  struct Ended {
    protocol::SessionId session = 0;
    VersionNumber number = 0;
  };
  /// Frees the retired versions that nobody reads any more.
  std::vector<Ended> reclaim() FRESHET_EXCLUDES(mutex_);
  bool has_retired() const { return !retired_.empty(); }
  std::vector<VersionNumber> take_taken() FRESHET_EXCLUDES(mutex_);
  void set_connection(bool connected, VersionNumber newest_known, std::uint64_t gaps,
                      std::optional<std::uint64_t> numbers_since, Time now) FRESHET_EXCLUDES(mutex_);
  void set_error(std::string error) FRESHET_EXCLUDES(mutex_);
  /// A version was refused, or could not be fetched.
  void count_failure(std::string error) FRESHET_EXCLUDES(mutex_);
  /// If it is still the last one.
  void clear_error(const std::string& error) FRESHET_EXCLUDES(mutex_);

 private:
  bool waits_for_delivery(const ServedVersion* version) const FRESHET_REQUIRES(mutex_);

  void tell_update() FRESHET_REQUIRES(mutex_);

  const Wake& wake_;
  PinTable::Owner pins_;

  // The loop thread's.
  std::unique_ptr<ServedVersion> current_;
  std::vector<std::unique_ptr<ServedVersion>> retired_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<ServedVersion> staged_ FRESHET_GUARDED_BY(mutex_);
  std::deque<const ServedVersion*> deliveries_ FRESHET_GUARDED_BY(mutex_);  ///< Bounded by the machine's window.
  std::vector<VersionNumber> taken_ FRESHET_GUARDED_BY(mutex_);
  SubscriberStatus status_ FRESHET_GUARDED_BY(mutex_);
  protocol::VersionTimes known_ FRESHET_GUARDED_BY(mutex_);
  protocol::Staleness staleness_ FRESHET_GUARDED_BY(mutex_);
  FileDescriptor updates_ FRESHET_GUARDED_BY(mutex_);  ///< None before somebody asks for it.
};

}  // namespace freshet::detail
