// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The owner's books of one claim in Redis: what is to stand there, what is known to stand there, and which numbers may
/// be given. A machine: it is told what was asked for and what was answered, at which time, and says what to send next.
///
/// Numbers are reserved in blocks ahead of their use, so that a publisher goes on while Redis is away: a number up to
/// `reserved` may be given without asking, since whoever claims the name next counts on from there. While Redis
/// answers, the block is filled up when half of it is used. What was not given is given back by a release in good
/// order; after a death it is a gap in the numbers.
///
/// A claim is lost when Redis says that somebody else has the name, or had it since the lease lapsed; never merely
/// because Redis does not answer. Lost is for ever. A lease that lapsed while nobody else came (Redis was away, or lost
/// all it had) is written again, with the numbers, the incarnation, the entry and the current pair known here, each of
/// which only moves forward. Whoever was not answered for longer than a lease says so: if the directory lost all it had
/// meanwhile, somebody else may have had the name, who then is given the time to say so first.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/clock.h"
#include "transport/redis/scripts.h"

namespace freshet::redis {

class Lease {
 public:
  struct Options {
    Duration lease = std::chrono::seconds(5);
    Duration retry_after = std::chrono::milliseconds(200);  ///< After a keep that failed.
    VersionNumber block = 1024;
    Time taken_at{};  ///< When the name was asked for.
  };
  Lease(Options options, std::string model, const Record& taken)
      : options_(options),
        model_(std::move(model)),
        given_(taken.number),
        reserved_(taken.number),
        wanted_{.number = taken.number, .incarnation = taken.incarnation, .current = taken.current},
        sure_at_(options.taken_at) {}

  // What the owner asks for. Each answers the revision that must be kept before it holds; 0 when it holds already.
  std::uint64_t give(VersionNumber number);
  std::uint64_t begin(std::uint64_t incarnation);
  std::uint64_t advertise(std::string entry);
  /// What was learned about current; kept when it is convenient.
  void saw(const CurrentVersion& current);

  // What the thread does.
  /// When the next keep is due; the end of time while one is on its way, or when the claim is lost.
  Time next_keep() const;
  Keep begin_keep(Time now);
  /// True when the claim had lapsed and stands again.
  bool on_kept(const Kept& kept, Time now);
  void on_failed(Time now);
  /// The connection is new: find out at once whether the claim still stands.
  void on_reconnected(Time now);

  VersionNumber given() const { return given_; }
  VersionNumber reserved() const { return reserved_; }
  std::uint64_t incarnation() const { return wanted_.incarnation; }
  const CurrentVersion& current() const { return wanted_.current; }
  bool holds(std::uint64_t revision) const { return kept_revision_ >= revision; }
  const std::optional<std::string>& lost() const { return lost_; }

 private:
  std::uint64_t change();

  const Options options_;
  const std::string model_;
  VersionNumber given_;     ///< The last one.
  VersionNumber reserved_;  ///< Known to be ours up to here.
  Keep wanted_;             ///< Its number is the highest ever asked for.
  std::uint64_t revision_ = 0;
  std::uint64_t kept_revision_ = 0;
  std::uint64_t sent_revision_ = 0;
  VersionNumber sent_number_ = 0;
  Time sent_at_{};
  Time sure_at_;  ///< The name was ours then, or later.
  bool on_its_way_ = false;
  Time due_{};  ///< At once: the first keep reserves the first block.
  std::optional<std::string> lost_;
};

}  // namespace freshet::redis
