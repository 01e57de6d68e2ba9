// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The versions that a subscriber delivers, one after another: every version in order, or the newest whenever the taker
/// is ready.

#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "transport/subscriber.h"

namespace freshet::cli {

/// Within this time, a command that waits for a publisher says nothing.
inline constexpr Duration kWaitPatience = std::chrono::seconds(5);
/// Then this tells why: nobody publishes the model at `at`, or in the directory, which has other models.
std::string nobody_text(const std::string& model, const std::string& at, const std::string& directory);

/// One thread at a time.
class VersionFeed {
 public:
  struct Options {
    std::string model;
    std::vector<std::string> at;
    std::string directory;
    Notifier notifier = Notifier::publisher;
    SecurityOptions security;
    bool every = false;
    bool staged = false;  ///< A member of the group that commits versions together.
    bool applies = false;  ///< The taker says by applied() which version it has put to use.
    std::optional<ChannelKind> channel;
    std::string label = "freshet subscribe";
    std::shared_ptr<PublisherHub> relay;  ///< Serves versions again; null for none.
    std::size_t relay_keep_versions = 2;
  };
  static Result<std::unique_ptr<VersionFeed>> open(const Options& options);
  ~VersionFeed();

  /// timed_out when none came. In the newest-only mode the update counts the bytes fetched since the last taken update.
  Result<Subscriber::Delivery> next(Duration at_most);

  /// As Subscriber::applied().
  void applied(VersionNumber version) { subscriber_->applied(version); }

  SubscriberStatus status() const;

 private:
  /// Holds at most one version, the newest; pinned, so that it stays as it is until it is taken. Filled on the
  /// subscriber's thread.
  class Mailbox;
  VersionFeed();

  bool every_ = false;
  std::unique_ptr<Mailbox> mailbox_;        // Outlives the subscriber, whose thread fills it,
  std::unique_ptr<Subscriber> subscriber_;  // but is emptied before it: snapshots must not outlive their subscriber.
};

}  // namespace freshet::cli
