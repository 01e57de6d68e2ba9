// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Carries what is current between a hub and the directory, whose answers come when they come, on whatever thread.

#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "transport/directory/directory.h"

namespace freshet {

class PublisherHub;

/// Any thread. Shared with the answers that are on their way.
class CurrentKeeper : public std::enable_shared_from_this<CurrentKeeper> {
 public:
  /// Both must stay until stop() has returned.
  CurrentKeeper(Directory::Claim& claim, PublisherHub& hub, std::string model)
      : claim_(&claim), hub_(&hub), model_(std::move(model)) {}

  /// The answer goes to the hub, as PublisherHub::current_swapped takes it.
  void swap(const CurrentVersion& expected, const CurrentVersion& desired) FRESHET_EXCLUDES(mutex_);
  /// Answers that come later go nowhere.
  void stop() FRESHET_EXCLUDES(mutex_);

 private:
  void on_answer(const CurrentVersion& expected, Result<CurrentVersion> answer) FRESHET_EXCLUDES(mutex_);

  Directory::Claim* const claim_;
  PublisherHub* const hub_;
  const std::string model_;
  Mutex mutex_;
  bool stopped_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet
