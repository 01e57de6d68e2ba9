// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where a subscriber finds its publisher, by the directory: which of the advertised addresses it can use, when
/// somebody else publishes the model from now on, and when the directory points to a ghost, who is asked about again
/// after pauses that grow. Where relays of the model may be followed too, those that the directory lists come first, in
/// an order of this subscriber's own, so that many spread over them; then the publisher. An address without an answer
/// gives way to the next.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "transport/directory/directory.h"

namespace freshet {

/// Owned by its loop's thread. Nothing here waits.
class PublisherFinder {
 public:
  /// `host`: this_host() of the subscriber. `relays`: the seed of the order in which they are tried; nothing where none
  /// is to be followed.
  PublisherFinder(std::unique_ptr<Directory::Watch> watch, std::string model, std::string host,
                  std::optional<std::uint64_t> relays = std::nullopt)
      : watch_(std::move(watch)), model_(std::move(model)), host_(std::move(host)), relays_(relays) {}

  Directory::Watch& watch() { return *watch_; }
  int descriptor() const { return watch_->descriptor(); }
  /// Takes the directory's news. True when the model is published by somebody else, or elsewhere, than look() said
  /// last.
  bool take_news();
  /// What is current by the directory, if take_news() heard something since the last call.
  std::optional<CurrentVersion> take_current();
  /// Whoever look() found has answered.
  void on_connected();
  /// Look at the next opportunity.
  void hurry() { look_at_ = Time{}; }
  bool due(Time now) const { return now >= look_at_; }

  /// The address to be connected to. not_found when nobody is there; failed_precondition when none of the addresses can
  /// be used from this host.
  Result<std::string> look(Time now);
  /// Whether there is another one than look() found.
  bool knows_others() const { return others_; }
  /// After a look() that was `unavailable`: whether it has been for longer than a first answer takes.
  bool worth_telling(Time now) const;
  /// After look(): how often in a row it found the same one, and nobody answered there.
  int looks_in_vain() const { return looks_in_vain_; }

 private:
  Result<std::string> usable_address(const Directory::Entry& entry) const;
  /// In the order in which they are to be tried.
  std::vector<std::string> relays() const;
  std::string choose(std::vector<std::string> addresses);

  const std::unique_ptr<Directory::Watch> watch_;
  const std::string model_;
  const std::string host_;
  const std::optional<std::uint64_t> relays_;
  std::string address_;    ///< That look() gave last.
  bool answered_ = false;  ///< There, by the last look.
  bool others_ = false;
  bool heard_ = false;
  Directory::Entry found_;  ///< By the last look; without a model before.
  int looks_in_vain_ = 0;
  std::optional<Time> unavailable_since_;
  Time look_at_{};
};

}  // namespace freshet
